"""Offloading by torch: saved tensors wait in host memory and come back for the backward pass.

The card of this method is in README.md beside this file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from division.context import account
from division.wrapping import Wrapping

NOTHING_SAVED = "it is in host memory already: offloading saves nothing on a CPU"


@dataclass
class Offload(Wrapping):
    """Runs the model under `torch.autograd.graph.save_on_cpu`.

    On a CPU there is nowhere to go: tensors stay where they are, and the ledger says so.

    Attributes:
        pin: keep the copies in pinned memory, which a GPU reads faster.
    """

    pin: bool = False
    name: ClassVar[str] = "offload"

    def chosen(self, model: nn.Module) -> list[nn.Module]:
        """Return the whole model."""
        return [model]

    def run(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the model with torch's hooks, each tensor noted on its way."""
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        torch_hooks = save_on_cpu(pin_memory=self.pin)

        def pack(tensor: Tensor) -> Any:
            if tensor.device.type == "cpu":
                account(tensor, self.name, NOTHING_SAVED)
                return _Here(tensor)
            account(tensor, self.name, "in host memory until backward", self.name, 0)
            return torch_hooks.pack_hook(tensor)

        def unpack(kept: Any) -> Tensor:
            return kept.unpack() if isinstance(kept, _Here) else torch_hooks.unpack_hook(kept)

        with saved_tensors_hooks(pack, unpack):
            return forward(*args, **kwargs)


class _Here:
    """A tensor that stays: detached, or it would keep its own graph alive; checked as by stock."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self._version = tensor._version

    def unpack(self) -> Tensor:
        if self._tensor._version != self._version:
            raise RuntimeError(
                "a tensor that backward needs was modified in place: it is at version "
                f"{self._tensor._version}, saved at version {self._version}"
            )
        return self._tensor
