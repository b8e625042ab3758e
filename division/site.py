"""Where a tensor is saved, and which kind of layer saves it."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from division.forms import Form

_LINEAR = ("AddmmBackward0", "MmBackward0")
_WEIGHTS_OF_ATTENTION = ("SoftmaxBackward0", "SafeSoftmaxBackward0")


@dataclass(frozen=True)
class Site:
    """Where a tensor is saved: the module being run, the autograd node and its slot.

    `role` is "data" for what nothing learnt has touched yet, such as a batch of images, "vector"
    for a row of features a sample, "tokens" where the channel is the last dimension, as linear
    layers, layer norms and attention have it, and "map" for everything else.
    """

    path: str
    module: nn.Module | None
    node: str
    slot: str
    role: str = "map"

    def of(self, tensor: Tensor, form: Form) -> "Site":
        """Return the site with the role of its tensor."""
        # A result is no data, though it has no gradient yet.
        if not tensor.requires_grad and not self.slot.startswith("result"):
            return replace(self, role="data")
        if tensor.dim() == 2 and not form.shape:
            return replace(self, role="vector")
        is_tokens = form.channel == -1 or self.node in _WEIGHTS_OF_ATTENTION
        return replace(self, role="tokens") if is_tokens else self

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
