"""Activation checkpointing by torch: keep the inputs of blocks, run each block again in backward.

The card of this method is in README.md beside this file.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import division
from division.codec import Codec, Packed
from division.context import account
from division.state import unchanged
from division.wrapping import Wrapping

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
WHY = "input of a block that is run again in backward"


@dataclass
class Checkpoint(Wrapping):
    """Runs blocks under `torch.utils.checkpoint`; batch statistics are updated only once.

    Attributes:
        blocks: patterns of module paths, such as "layer?.*"; none finds the blocks: the parts of a
            Sequential, ModuleList or ModuleDict that consist of several layers.
        boundary: name of a codec for the inputs of the blocks; none keeps them as they are.
        boundary_options: options of that codec.
    """

    blocks: tuple[str, ...] = ()
    boundary: str | None = None
    boundary_options: Mapping[str, Any] = field(default_factory=dict)
    name: ClassVar[str] = "checkpoint"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.blocks = tuple(self.blocks)  # a config has lists
        if self.boundary_options and not self.boundary:
            raise ValueError(f"boundary_options need a boundary; got {dict(self.boundary_options)}")
        self._boundary: Codec | None = None
        if self.boundary:
            self._boundary = division.codecs.get(self.boundary, **self.boundary_options)

    def chosen(self, model: nn.Module) -> list[nn.Module]:
        """Return the blocks of a model."""
        if not self.blocks:
            found = list(_blocks(model))
            if not found:
                raise ValueError(
                    f"checkpoint finds no blocks in {type(model).__name__}: no Sequential or "
                    "ModuleList holds parts of several layers; name some with blocks=('path.*',)"
                )
            return found
        named = dict(model.named_modules())
        for pattern in self.blocks:
            if not any(fnmatchcase(path, pattern) for path in named):
                known = ", ".join(path for path in list(named)[1:9])
                raise ValueError(f"blocks: {pattern!r} matches no module; there are {known}, ...")
        return [m for path, m in named.items() if any(fnmatchcase(path, b) for b in self.blocks)]

    def run(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a block so that only its inputs are kept."""
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), unchanged(module)  # the second run must not count for the norms

        if self._boundary is None:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    account(leaf, self.name, WHY)
            return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)
        # Only what checkpoint itself saves goes through these hooks: inside it has its own.
        with saved_tensors_hooks(self._pack, self._unpack):
            return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    def _pack(self, tensor: Tensor) -> Tensor | Packed:
        if self._boundary is None or not self._boundary.takes(tensor.dtype):
            account(tensor, self.name, WHY)
            return tensor
        packed = self._boundary.compress(tensor, self.next_seed())
        account(tensor, self.name, WHY, self._boundary.name, packed.nbytes)
        return packed

    def _unpack(self, kept: Tensor | Packed) -> Tensor:
        if isinstance(kept, Tensor) or self._boundary is None:
            assert isinstance(kept, Tensor)
            return kept
        return self._boundary.decompress(kept)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost parts of containers that are no containers and have several layers."""
    for child in module.children():
        composite = next(child.children(), None) is not None
        if isinstance(module, _CONTAINERS) and composite and not isinstance(child, _CONTAINERS):
            yield child
        else:
            yield from _blocks(child)
