"""A mask that is packed when its tensor is next read, together with what else is stored of it.

The result of ReLU is most often the input that the next layer saves. To pack the mask at once and
to compress the input then would read the tensor twice. So a mask waits, at the longest until the
next node of the graph is there or the capture ends, and keeps its tensor alive as long.
"""

from torch import Tensor

from division.codec import Codec, Packed, memory_format_of
from division.codecs.mask import Mask


class Waiting:
    """The mask of one tensor, not packed yet."""

    def __init__(self, codec: Mask, tensor: Tensor) -> None:
        self._codec = codec
        self._source: Tensor | None = tensor.detach()  # with the version of the tensor, no graph
        self._version = tensor._version

    def is_of(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is the one that the mask is of, with nothing written to it."""
        source = self._source
        return (
            source is not None
            and tensor._version == self._version
            and tensor.untyped_storage()._cdata == source.untyped_storage()._cdata
            and (tensor.storage_offset(), tensor.shape) == (source.storage_offset(), source.shape)
            and tensor.is_contiguous()
        )

    def is_spoilt(self) -> bool:
        """Tell whether the tensor was written to before its mask was packed; it is let go then."""
        if self._source is not None and self._source._version != self._version:
            self._source = None
        return self._source is None

    def pack(self) -> Packed:
        """Pack the mask by itself."""
        source = self._source
        if source is None or self.is_spoilt():
            raise RuntimeError(
                "the result of a layer was modified by an inplace operation right after it was"
                " made, and its backward needs it (plain autograd refuses this as well)"
            )
        return self._codec.compress(source)

    def pack_with(self, x: Tensor, codec: Codec, seed: int) -> tuple[Packed, Packed] | None:
        """Return the mask and a copy of its tensor through another codec, if one pass makes both.

        The tensor must be the one that the mask is of, as it was then.
        """
        made = codec.compress_masked(x, seed, self._codec.low, self._codec.high)
        if made is None:
            return None
        packed, bits = made
        return Packed({"bits": bits}, x.shape, x.dtype, memory_format_of(x)), packed
