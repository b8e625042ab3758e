"""Where a tensor is saved, and which kind of layer saves it."""

from dataclasses import dataclass

from torch import nn

_LINEAR = ("AddmmBackward0", "MmBackward0")


@dataclass(frozen=True)
class Site:
    """Where a tensor is saved: the module being run, the autograd node and its slot.

    `role` is "data" for what nothing learnt has touched yet, such as a batch of images, "vector"
    for a row of features a sample, and "map" for everything else.
    """

    path: str
    module: nn.Module | None
    node: str
    slot: str
    role: str = "map"

    @property
    def kind(self) -> str:
        """Return "convolution", "linear", "norm" or "other", told from the node."""
        if self.node.startswith("Convolution"):
            return "convolution"
        if self.node in _LINEAR:
            return "linear"
        return "norm" if "Norm" in self.node else "other"

    @property
    def module_type(self) -> str:
        """Class name of the module, or nothing outside of any."""
        return type(self.module).__name__ if self.module is not None else ""

    def labels(self) -> tuple[str, str, str, str]:
        """Return what the ledger writes of a site."""
        return self.path, self.module_type, self.node, self.slot
