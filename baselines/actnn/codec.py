"""The codec of ActNN: groups quantized between their own extremes, samples in bits of their own."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from baselines.actnn.allocation import FEWEST, MOST, allocate_equal
from division import kernels
from division.codec import Codec, Packed, flatten_memory, unflatten_memory
from division.codecs import Cast
from division.samples import group_count, sample_bytes

NAMES = ("codes", "bits", "offset", "scale")


@dataclass(frozen=True)
class ActNNCodec(Codec):
    """Quantizes groups of neighbours inside a sample; `bits` is the average over the samples.

    Attributes:
        bits: average bits of a code, 1 to 8; may be a fraction if the samples differ.
        group: neighbours (in NCHW order) that share a grid; a multiple of 32.
        per_sample: give more bits to samples with wider ranges; else all have the same.
        weights: how much each sample matters besides its range (its squared gradient norm). A
            tensor with several rows for each sample gives them all the sample's weight; one whose
            rows are no multiple of the samples is told apart by its ranges alone.

    >>> packed = ActNNCodec(bits=2).compress(torch.randn(4, 8, 16, 16))
    >>> 8 * packed.nbytes / (4 * 8 * 16 * 16)  # bits an element: codes, 1/8 for grids, 8 a sample
    2.12890625
    """

    bits: float = 2
    group: int = 256
    per_sample: bool = True
    weights: tuple[float, ...] | None = None
    name: ClassVar[str] = "actnn"

    def __post_init__(self) -> None:
        check_bits(self.bits, self.per_sample)
        check_group(self.group)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        x = x.view(sample_shape(x.shape, channel))
        if not self._pays(x.shape):
            return Cast()._pack(x, seed, channel)
        samples, total = _as_samples(x), self._total(x.shape)
        if self.per_sample:
            low, high = kernels.group_ranges(samples, self.group)
            bits = self._allocate(low, high, samples[0].numel(), total)
        else:
            low = high = None
            bits = torch.full((len(samples),), int(self.bits), dtype=torch.uint8, device=x.device)
        codes, offset, scale = kernels.split_samples(
            samples, bits, total, self.group, seed, low, high
        )
        return dict(zip(NAMES, (codes, bits, offset, scale), strict=True))

    def _unpack(self, packed: Packed) -> Tensor:
        shape = sample_shape(packed.shape, packed.channel)
        if not self._pays(shape):
            return Cast()._unpack(packed).view(packed.shape)
        parts = (packed.tensors[name] for name in NAMES)
        _, size = _geometry(shape)
        transposed = packed.memory_format != torch.contiguous_format
        channels = packed.shape[1] if transposed else 1
        y = kernels.merge_samples(
            *parts, channels, size // channels, self.group, packed.dtype, transposed
        )
        return unflatten_memory(flatten_memory(y), packed.shape, packed.memory_format)

    def _allocate(self, low: Tensor, high: Tensor, size: int, total: int) -> Tensor:
        """Return the bits of each sample (uint8), from the ranges of its groups."""
        if isinstance(low, FakeTensor):
            return low.new_empty(len(low), dtype=torch.uint8)
        costs = _energies(high.cpu().numpy(), low.cpu().numpy(), size, self.group)
        if self.weights is not None and len(costs) % len(self.weights) == 0:
            costs *= np.repeat(self.weights, len(costs) // len(self.weights))
        return torch.from_numpy(allocate_equal(costs, total)).to(low.device)

    def _total(self, shape: torch.Size) -> int:
        """Return the sum of the bits of all samples."""
        n, _ = _geometry(shape)
        # A mean of whole bits over n samples must give back their sum.
        return min(max(math.floor(self.bits * n + 1e-6), FEWEST * n), MOST * n)

    def _pays(self, shape: torch.Size) -> bool:
        """Tell whether groups take less than a bf16 copy, whatever the values."""
        n, size = _geometry(shape)
        grids = n * (4 * group_count(size, self.group) + 1)
        return self._total(shape) * sample_bytes(size) + grids < 2 * n * size


def _energies(high: np.ndarray, low: np.ndarray, size: int, group: int) -> np.ndarray:
    """Return the sum over a sample's groups of elements * range**2; a NaN range counts as 0."""
    reach = np.subtract(high, low, dtype=np.float64)
    for _ in range(2):
        # No matrix product: BLAS would wake threads of its own, which fight with torch's.
        whole = group * np.einsum("ng,ng->n", reach, reach)
        missing = reach.shape[1] * group - size  # in the last group
        costs = whole - missing * reach[:, -1] ** 2
        if not np.isnan(costs).any():
            break
        reach[np.isnan(reach)] = 0.0
    return costs


def check_bits(bits: float, may_be_fraction: bool) -> None:
    """Raise ValueError unless an average of this many bits can be stored."""
    if isinstance(bits, bool) or not isinstance(bits, int | float) or not FEWEST <= bits <= MOST:
        raise ValueError(f"bits must be a number from {FEWEST} to {MOST}; got {bits!r}")
    if not may_be_fraction and bits != int(bits):
        raise ValueError(f"bits must be whole where all samples have the same; got {bits!r}")


def check_group(group: int) -> None:
    """Raise ValueError unless codes of any width fill whole bytes in a group of this size."""
    whole = isinstance(group, int) and not isinstance(group, bool)
    if not whole or group % 32 or not 32 <= group <= 65536:
        raise ValueError(f"group must be a multiple of 32 from 32 to 65536; got {group!r}")


def sample_shape(shape: torch.Size, channel: int) -> torch.Size:
    """Return a shape whose first dimension counts the samples: with the channel last, the tokens.

    Tokens differ: one of small variance beside others would lose all its digits in their group.
    """
    if channel == 1 or len(shape) < 3:
        return shape
    return torch.Size((shape[:-1].numel(), shape[-1]))


def _geometry(shape: torch.Size) -> tuple[int, int]:
    """Return how many samples a tensor holds and how many elements each has."""
    if len(shape) < 2:
        return 1, shape.numel()
    return shape[0], shape[1:].numel()


def _as_samples(x: Tensor) -> Tensor:
    """View a dense tensor as (N, C, P), the channel fastest where it is in x."""
    if x.is_contiguous():
        n, size = _geometry(x.shape)
        return x.view(n, 1, size)
    return x.movedim(1, -1).flatten(1, -2).transpose(1, 2)
