"""Autocast by torch: convolutions and products compute, and so save, in 16 bits.

The card of this method is in README.md beside this file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from division.codec import check_choice
from division.wrapping import Wrapping

_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Autocast(Wrapping):
    """Runs the model under `torch.autocast`; what it returns is fp32 again, for the loss.

    Attributes:
        dtype: "bfloat16", or "float16", for which the training loop has to scale the loss.
    """

    dtype: str = "bfloat16"
    name: ClassVar[str] = "autocast"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("dtype", self.dtype, tuple(_TYPES))

    def chosen(self, model: nn.Module) -> list[nn.Module]:
        """Return the whole model."""
        return [model]

    def run(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the model under autocast."""
        device = next(module.parameters()).device.type
        with torch.autocast(device, dtype=_TYPES[self.dtype]):
            output = forward(*args, **kwargs)
        narrow = _TYPES[self.dtype]
        return tree_map_only(Tensor, lambda t: t.float() if t.dtype == narrow else t, output)
