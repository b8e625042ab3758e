"""Pooled activations (Barley & Froening 2024); see README.md beside this file."""

from baselines.pooling.codec import PoolingCodec
from baselines.pooling.method import Pooling

__all__ = ["Pooling", "PoolingCodec"]
