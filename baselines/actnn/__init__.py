"""ActNN (Chen et al. 2021); see README.md beside this file."""

from baselines.actnn.codec import ActNNCodec
from baselines.actnn.method import ActNN

__all__ = ["ActNN", "ActNNCodec"]
