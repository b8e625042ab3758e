"""What a training step asks of a GPU: bytes and flops of every operator, counted without data.

An operator of torch reads its arguments once and writes its results once; batch norm takes its
statistics in a pass of its own, and the backward of a convolution is two kernels. What our kernels
move is known by arithmetic (division/kernels/gpu_traffic.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from division.frequency import is_channels_last
from division.kernels import gpu_traffic as kernels
from division.kernels.gpu_traffic import Traffic
from division.samples import sample_bytes

aten = torch.ops.aten
# Nothing is moved: memory is asked for, or something other than data is looked at.
_FREE = ("aten::empty", "aten::new_empty", "aten::detach", "prim::", "profiler::")


@dataclass(frozen=True)
class Work:
    """One operator: what it moves through the memory, and what it computes."""

    name: str
    moved: int
    flops: int
    dtype: str  # of what is multiplied


class Meter(TorchDispatchMode):
    """Notes the work of every operator while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Work] = []
        self._packed: dict[int, Tensor] = {}  # alive, so that no two have the same id

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        name = operator.name()
        if operator.is_view or name.startswith(_FREE):
            return result
        if name.startswith("division::"):
            moved = self._kernel(name.removeprefix("division::"), args, result)
            self.work.append(Work(name, moved, 0, ""))
            return result
        tensors = _tensors((args, kwargs))
        written = _tensors(result) or _tensors(args[:1])
        moved = sum(t.nbytes for t in (*tensors, *written)) + _again(operator, args)
        count = flop_registry.get(operator.overloadpacket)
        flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        self.work.append(Work(name, moved, flops, dtype))
        return result

    def _kernel(self, name: str, args: Any, result: Any) -> int:
        """Return the bytes that one of our kernels moves."""
        if name not in _KERNELS:
            raise ValueError(f"the bytes that {name!r} moves are not known")
        moved = _KERNELS[name](args, result).moved
        if name == "unpack_bounded" and id(args[1]) not in self._packed:
            # Without data the size of a packed copy is assumed, and no kernel packs it.
            self._packed[id(args[1])] = args[1]
            moved += kernels.pack_bounded(
                result.numel(), result.dtype, args[1].numel(), missing=0
            ).moved
        return moved


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _again(operator: Any, args: Any) -> int:
    """Return the bytes that an operator of torch reads a second time."""
    packet = operator.overloadpacket
    if packet is aten.native_batch_norm:
        return args[0].nbytes
    if packet is aten.native_batch_norm_backward:
        return args[0].nbytes + args[1].nbytes
    if packet is aten.convolution_backward and args[-1][0] and args[-1][1]:
        return args[0].nbytes
    return 0


def _split_maps(args: Any, result: Any) -> Traffic:
    x, bits, rows, cols, window, _ = args
    if window:
        raise ValueError("the published alignment has no kernel, so its bytes are not known")
    return kernels.split_maps(x.shape, bits, rows, cols, x.dtype, is_channels_last(x))


def _rebuilt(args: Any, maps: Tensor) -> tuple[Any, ...]:
    """Return what the counts of rebuilding maps ask for, of an operator's arguments."""
    low, _, _, _, bits, *_ = args
    blocks = low.numel() // (maps.shape[0] * maps.shape[1])  # of a map
    return maps.shape, bits, blocks, 1, maps.dtype, is_channels_last(maps)


def _coded_apart(args: Any, result: Any) -> Traffic:
    raise ValueError("Huffman coding has no GPU kernel (division.kernels.gpu.WITHOUT): no bytes")


def _split_samples(args: Any, result: Any) -> Traffic:
    x, _, total, group, _, low, _ = args
    return kernels.split_samples(len(x), x[0].numel(), total, group, x.dtype, known=low is not None)


def _merge_samples(args: Any, result: Any) -> Traffic:
    codes, bits, _, _, channels, positions, group, dtype, _ = args
    size = channels * positions
    total = codes.numel() // sample_bytes(size)
    return kernels.merge_samples(len(bits), size, total, group, dtype)


_KERNELS: dict[str, Callable[[Any, Any], Traffic]] = {
    "split_maps": _split_maps,
    "split_maps_masked": lambda args, _: kernels.split_maps_masked(
        args[0].shape, *args[1:4], args[0].dtype
    ),
    "merge_maps": lambda args, out: kernels.merge_maps(*_rebuilt(args, out)),
    "merge_maps_into": lambda args, _: kernels.merge_maps(*_rebuilt(args, args[5])),
    "merge_maps_affine": lambda args, out: kernels.merge_maps_affine(
        *_rebuilt(args, out), masked=args[11] is not None
    ),
    "pack_mask": lambda args, _: kernels.pack_mask(args[0].numel(), args[0].dtype),
    "unpack_mask": lambda args, out: kernels.unpack_mask(out.numel(), out.dtype),
    "pack_window_index": lambda args, out: kernels.pack_window_index(out.numel()),
    "unpack_window_index": lambda args, out: kernels.unpack_window_index(out.numel()),
    "group_ranges": lambda args, _: kernels.group_ranges(
        len(args[0]), args[0][0].numel(), args[1], args[0].dtype
    ),
    "split_samples": _split_samples,
    "merge_samples": _merge_samples,
    "pack_bounded": lambda args, out: kernels.pack_bounded(
        args[0].numel(), args[0].dtype, out[1].numel(), out[2].numel()
    ),
    "unpack_bounded": lambda args, out: kernels.unpack_bounded(
        out.numel(), out.dtype, args[1].numel()
    ),
    "pack_huffman": _coded_apart,
    "unpack_huffman": _coded_apart,
}
