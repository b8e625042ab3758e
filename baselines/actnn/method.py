"""ActNN: which bits each layer's input has, learnt from the ranges and gradients of the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from baselines.actnn.codec import ActNNCodec, check_bits, check_group
from baselines.actnn.sample_norms import SampleNorms
from baselines.actnn.sensitivity import (
    Share,
    allocate_layers,
    energies,
    layer_factor,
    row_step,
    squared_norms,
)
from division.codec import Codec, Packed, check_choice, check_range
from division.method import Method
from division.site import Site

LEVELS = {"L0": None, "L1": 4, "L2": 4, "L3": 2}  # and their bits
_LAYERS = ("convolution", "linear")


@dataclass
class ActNN(Method):
    """Chen et al. 2021: per-group quantization, adaptive bits per sample and per layer.

    Attributes:
        bits: average bits of a code; a fraction (1.5, 1.25) at level L3 only. None: the level's.
        level: "L0" masks only; "L1" 4 bits for convolutions and linear layers; "L2" 4 bits for
            everything; "L3" 2 bits on average, allocated to samples and layers.
        group: neighbours that share a grid; a multiple of 32.
        samples: number of training samples, if the norm of each one's gradient is to be
            remembered; then `set_indices` names the samples of a batch before each forward. 0: off.
    """

    bits: float | None = None
    level: str = "L3"
    group: int = 256
    samples: int = 0
    _bits: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _shares: dict[str, Share] = field(default_factory=dict, init=False, repr=False, compare=False)
    _gradients: dict[str, Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _is_news: bool = field(default=False, init=False, repr=False, compare=False)
    name: ClassVar[str] = "actnn"
    one_copy: ClassVar[bool] = True  # codecs differ by what was learnt; the tensor is the same

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("level", self.level, tuple(LEVELS))
        check_group(self.group)
        check_range("samples", self.samples, 0, 2**31 - 1)
        if self.level == "L0" and self.bits is not None:
            raise ValueError(f"bits: level 'L0' quantizes nothing; got {self.bits!r}")
        if self.samples and self.level != "L3":
            raise ValueError(f"samples: level {self.level!r} allocates nothing; use level 'L3'")
        self._average = LEVELS[self.level] if self.bits is None else self.bits
        if self._average is not None:
            check_bits(self._average, may_be_fraction=self.level == "L3")
        self._norms = SampleNorms(self.samples) if self.samples else None
        self._forget_forward()

    def _forget_forward(self) -> None:
        """Drop what is known of a forward while it runs."""
        self._recent: str | None = None  # the share of the last convolution or linear layer
        self._runs: dict[str, int] = {}
        self._owners: WeakKeyDictionary[Packed, str | None] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle what was learnt; what a running forward holds stays behind."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_recent", "_runs", "_owners")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_forward()

    def set_indices(self, indices: Sequence[int] | Tensor) -> None:
        """Name the samples of the next training batch, by their place in the training set."""
        if self._norms is None:
            raise ValueError("set_indices needs the option samples: the size of the training set")
        self._norms.set_next(indices)

    def begin(self) -> None:
        """Allocate bits to the layers, from what the last step has shown."""
        if self.level != "L3":
            return
        if self._norms is not None:
            self._norms.begin()
        if self._is_news:
            self._bits.update(allocate_layers(self._shares, self._gradients, self._average))
            self._is_news = False
        self._shares.clear()
        self._forget_forward()

    def codec(self, site: Site) -> Codec | None:
        """Return the codec with the bits of the site's layer, or of the one that ran last."""
        if self.level == "L0" or (self.level == "L1" and site.kind not in _LAYERS):
            return None
        if self.level != "L3":
            return ActNNCodec(self._average, self.group, per_sample=False)
        weights, key = None, self._recent
        if site.kind in _LAYERS:
            key = _key(site)
            if self._norms is not None:
                weights = self._norms.weights(self._layer(key))
        return ActNNCodec(self._bits.get(key or "", self._average), self.group, weights=weights)

    def stored(self, site: Site, node: Any, tensor: Tensor, packed: Packed, shared: bool) -> None:
        """Count a tensor to its layer's share, and watch the layer's gradient."""
        if self.level != "L3" or "bits" not in packed.tensors:
            return  # too small for groups
        is_layer = site.kind in _LAYERS
        key = _key(site)
        if not shared:
            self._owners[packed] = key if is_layer else self._recent
        owner = self._owners.get(packed)
        share = None
        if owner is not None:
            share = self._shares.setdefault(owner, Share())
            share.elements += 0 if shared else tensor.numel()
        if not is_layer:
            return
        self._recent = owner or self._recent
        layer = self._layer(key)
        self._runs[key] = self._runs.get(key, 0) + 1
        rows = len(packed.tensors["bits"])
        if self._norms is not None:
            self._norms.check_batch(rows, is_first=len(self._runs) == 1, kind=site.kind)
        if share is not None and not isinstance(tensor, FakeTensor):
            found = energies(packed, self.group)
            share.terms.append((layer, layer_factor(site, node, packed.shape), found))
            indices = self._norms.current if self._norms else None
            node.register_prehook(_Watch(self, layer, rows, indices))

    def _layer(self, key: str) -> str:
        """Return the name of a layer's run: a module may run several times in one forward."""
        run = self._runs.get(key, 0)
        return f"{key} #{run + 1}" if run else key

    @torch.no_grad()
    def watch(self, layer: str, gradient: Tensor, rows: int, indices: Tensor | None) -> None:
        """Take note of a gradient that arrives at the output of a layer."""
        per_sample = indices is not None and rows % len(indices) == 0
        parts = len(indices) if per_sample else 1
        norms = squared_norms(gradient, parts)
        if not bool(norms.isfinite().all()):
            return  # a step that a gradient scaler skips
        if per_sample:
            norms = self._norms.update(layer, indices, norms).repeat_interleave(rows // parts)
            norms = norms[:: row_step(rows)] / (rows // parts)
        self._gradients[layer] = norms if per_sample else norms / rows
        self._is_news = True

    def report(self) -> str:
        """Return a table of the bits that each layer's share of the elements has."""
        elements = sum(share.elements for share in self._shares.values())
        lines = [f"{'bits':>6}  {'share':>6}  layer"]
        spent = 0.0
        for key, share in self._shares.items():
            bits = self._bits.get(key, self._average)
            spent += bits * share.elements
            lines.append(f"{bits:6.3f}  {share.elements / max(elements, 1):6.1%}  {key}")
        if elements:
            lines.append(f"{spent / elements:6.3f}  {1:6.1%}  all; the budget is {self._average}")
        return "\n".join(lines)

    def state_dict(self) -> dict[str, object]:
        """Return the bits, sensitivities and sample norms, besides what every method saves."""
        return {
            **super().state_dict(),
            "bits": dict(self._bits),
            "shares": {k: (s.elements, list(s.terms)) for k, s in self._shares.items()},
            "gradients": {k: g.cpu() for k, g in self._gradients.items()},
            "is_news": self._is_news,
            "norms": self._norms.state_dict() if self._norms else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        missing = {"bits", "shares", "gradients", "is_news", "norms"} - state.keys()
        if missing:
            raise ValueError(f"this is no state of actnn: it lacks {sorted(missing)}")
        super().load_state_dict(state)
        self._bits = dict(state["bits"])
        self._shares = {
            key: Share(elements, [tuple(term) for term in terms])
            for key, (elements, terms) in state["shares"].items()
        }
        self._gradients = dict(state["gradients"])
        self._is_news = bool(state["is_news"])
        if self._norms is not None:
            self._norms.load_state_dict(state["norms"])
        self._forget_forward()


def _key(site: Site) -> str:
    return f"{site.path} {site.node}.{site.slot}".strip()


class _Watch:
    """Runs before a layer's backward; knows the method, and neither node nor tensor."""

    __slots__ = ("_indices", "_layer", "_method", "_rows")

    def __init__(self, method: ActNN, layer: str, rows: int, indices: Tensor | None) -> None:
        self._method, self._layer, self._rows, self._indices = method, layer, rows, indices

    def __call__(self, gradients: Sequence[Tensor | None]) -> None:
        if gradients[0] is not None:
            self._method.watch(self._layer, gradients[0], self._rows, self._indices)
