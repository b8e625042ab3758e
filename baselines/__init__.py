"""The rivals that DIVISION is compared with: each a method of its own, in a file or folder."""

from baselines.actnn import ActNN
from baselines.autocast import Autocast
from baselines.checkpoint import Checkpoint
from baselines.lossy import Lossy
from baselines.offload import Offload
from baselines.pooling import Pooling

__all__ = ["ActNN", "Autocast", "Checkpoint", "Lossy", "Offload", "Pooling"]
