"""The rivals that DIVISION is compared with: each a method of its own, in a file or folder."""

from baselines.autocast import Autocast
from baselines.checkpoint import Checkpoint
from baselines.offload import Offload
from baselines.pooling import Pooling

__all__ = ["Autocast", "Checkpoint", "Offload", "Pooling"]
