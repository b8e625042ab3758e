"""Identity: an exact copy. It proves that capture itself changes nothing."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from division.codec import Codec, Packed


@dataclass(frozen=True)
class Identity(Codec):
    """Keeps a copy of the tensor as it is.

    A copy, not a reference: a later in-place edit of the original must not reach what is stored.
    It is the one codec that stores more than bf16 would: exactness is its purpose.
    """

    name: ClassVar[str] = "identity"
    keeps_precision: ClassVar[bool] = True

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        return {"data": x.clone()}

    def _unpack(self, packed: Packed) -> Tensor:
        return packed.tensors["data"]
