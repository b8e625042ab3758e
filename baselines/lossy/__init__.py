"""Error-bounded lossy compression (COMET); see README.md beside this file."""

from baselines.lossy.codec import LossyCodec
from baselines.lossy.method import Lossy

__all__ = ["Lossy", "LossyCodec"]
