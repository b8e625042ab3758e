"""Pooled activations: weight gradients from maps that are constant in small blocks."""

from dataclasses import dataclass
from typing import ClassVar

from baselines.pooling.codec import PoolingCodec
from division.codec import Codec, check_choice, check_range
from division.codecs import Identity
from division.method import Method
from division.site import Site

SCOPES = {"conv": ("convolution",), "all": ("convolution", "norm")}


@dataclass
class Pooling(Method):
    """Barley & Froening 2024: convolutions keep a pooled copy of their input.

    Attributes:
        block: edge of a block; 1 leaves everything as it is.
        reduce: "mean" or "max".
        scope: "conv" pools the inputs of convolutions, "all" those of norms too.
        align: "area", or "reference" as released; there a block of 1 stores a full copy.
    """

    block: int = 2
    reduce: str = "mean"
    scope: str = "conv"
    align: str = "area"
    name: ClassVar[str] = "pooling"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("block", self.block, 1, 1024)
        check_choice("scope", self.scope, tuple(SCOPES))
        pooled = PoolingCodec(max(self.block, 2), self.reduce, self.align)
        copied = Identity() if self.align == "reference" else None
        self._codec: Codec | None = pooled if self.block > 1 else copied

    def codec(self, site: Site) -> Codec | None:
        """Return the pooling codec for the layers in scope."""
        return self._codec if site.kind in SCOPES[self.scope] else None
