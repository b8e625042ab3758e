"""The lossy method: error-bounded compression with one bound a layer, renewed as training goes."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from baselines.lossy.adaptive import Layer, Probe, renewed, weight_gradient_of, weight_of
from baselines.lossy.codec import LossyCodec, check_number
from division.bounded import LARGEST_BOUND, SMALLEST_BOUND
from division.codec import Codec, Packed, check_choice, check_range
from division.method import Method
from division.site import Site

SCOPES = ("conv", "all")


@dataclass
class Lossy(Method):
    """Error-bounded compression of convolution inputs, or of everything.

    Attributes:
        error_bound: the bound of every site, until the first renewal where `adaptive`.
        coding: "fixed" or "huffman", see `LossyCodec`.
        adaptive: renew the bound of each layer from the statistics of the run.
        target: the error that a weight gradient may have, relative to the mean magnitude of its
            momentum.
        momentum: of our own average of the weight gradients.
        interval: steps (forwards that build a graph) between renewals.
        scope: "conv", the inputs of convolutions as in the paper, or "all".
        dither: subtractive dither.
        assumed_ratio: see `LossyCodec`.
    """

    error_bound: float = 1e-2
    coding: str = "fixed"
    adaptive: bool = True
    target: float = 0.01
    momentum: float = 0.9
    interval: int = 50
    scope: str = "conv"
    dither: bool = False
    assumed_ratio: float = 6.0
    name: ClassVar[str] = "lossy"
    one_copy: ClassVar[bool] = True  # codecs differ by what was learnt; the tensor is the same
    _step: int = field(default=0, init=False, repr=False, compare=False)
    _layers: dict[str, Layer] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._codec(self.error_bound)  # checks what goes into it
        check_number("target", self.target, 1e-9, 1e9)
        check_number("momentum", self.momentum, 0.0, 1 - 1e-9)
        check_range("interval", self.interval, 1, 2**31 - 1)
        check_choice("adaptive", self.adaptive, (True, False))
        check_choice("scope", self.scope, SCOPES)
        self._forget_run()

    def _forget_run(self) -> None:
        """Start without what belongs to this process: who made a copy, and hooks."""
        self._calls: dict[str, int] = {}
        self._copies: weakref.WeakKeyDictionary[Packed, str] = weakref.WeakKeyDictionary()
        self._watches: dict[int, _Watch] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out hooks: new parameters get theirs at the next forward."""
        left_out = ("_calls", "_copies", "_watches")
        return {k: v for k, v in self.__dict__.items() if k not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_run()

    def _codec(self, bound: float) -> LossyCodec:
        return LossyCodec(bound, self.coding, self.dither, self.assumed_ratio)

    def codec(self, site: Site) -> Codec | None:
        """Return a codec with the site's bound; None out of scope."""
        if self.scope == "conv" and site.kind != "convolution":
            return None
        layer = self._layers.get(self._key(site))
        return self._codec(layer.bound if layer else self.error_bound)

    def _key(self, site: Site) -> str:
        """Name a site; a layer that runs several times in a forward has several."""
        name = f"{site.path}:{site.node}.{site.slot}"
        return f"{name}#{self._calls.get(name, 0)}"

    def begin(self) -> None:
        """Count a step; every `interval` steps renew the bounds."""
        self._calls.clear()
        if self.adaptive and self._step and self._step % self.interval == 0:
            for key, bound in renewed(self._layers, self.target).items():
                self._layers[key].bound = min(max(bound, SMALLEST_BOUND), LARGEST_BOUND)
            for layer in self._layers.values():
                layer.bound = self._layers[layer.copied].bound
                layer.is_fresh = False
        self._step += 1

    def stored(self, site: Site, node: Any, tensor: Tensor, packed: Packed, shared: bool) -> None:
        """Get to know a site; where it is its turn, look at its statistics."""
        if not self.adaptive:
            return
        key = self._key(site)
        name = key.rpartition("#")[0]
        self._calls[name] = self._calls.get(name, 0) + 1
        if not shared:
            self._copies[packed] = key
        if key not in self._layers:
            self._layers[key] = Layer(self.error_bound, len(self._layers), key)
        layer = self._layers[key]
        layer.copied = self._copies.get(packed, key)
        if isinstance(tensor, FakeTensor):
            return
        weight = weight_of(site, node)
        layer.weight = self._watch(weight, key) if weight is not None else ""
        turn = self.interval - 1 - layer.order % self.interval
        # Later too, if its turn has passed without a backward that shows its statistics.
        if (self._step - 1) % self.interval >= turn and not layer.is_fresh:
            self._sample(site, node, tensor, packed, key)

    @torch.no_grad()
    def _sample(self, site: Site, node: Any, tensor: Tensor, packed: Packed, key: str) -> None:
        layer = self._layers[key]
        layer.spread = float(tensor.float().std())
        layer.share = float(tensor.count_nonzero()) / tensor.numel()
        if not layer.weight:
            layer.is_fresh = True
            return
        bound = self._layers[layer.copied].bound
        kept = self._codec(bound).decompress(packed).reshape(tensor.shape)  # rows, not tokens
        error = tensor.float() - kept.float()
        gradient = weight_gradient_of(site, node)
        node.register_prehook(Probe(lambda: self._layers.get(key), error, bound, gradient))

    def _watch(self, weight: Tensor, key: str) -> str:
        """Average a weight's gradients from now on; return the site that they are kept at."""
        watch = self._watches.get(id(weight))
        if watch is None or watch.weight() is not weight:
            watch = self._watches[id(weight)] = _Watch(self, weight, key)
        return watch.key

    def _accumulate(self, key: str, gradient: Tensor) -> None:
        if key in self._layers:
            self._layers[key].accumulate(gradient, self.momentum)

    def detach(self, model: nn.Module) -> None:
        """Take the hooks off a model's parameters."""
        for parameter in model.parameters():
            watch = self._watches.pop(id(parameter), None)
            if watch is not None:
                watch.handle.remove()

    def state_dict(self) -> dict[str, object]:
        """Return what has to be saved to continue a run bit for bit."""
        layers = {key: layer.state() for key, layer in self._layers.items()}
        return {**super().state_dict(), "step": self._step, "layers": layers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        super().load_state_dict(state)
        check_range("step", state["step"], 0, 2**63 - 1)
        self._step = state["step"]
        self._layers = {k: Layer.from_state(layer) for k, layer in state["layers"].items()}

    def report(self) -> str:
        """Return a table of the bounds, one line a layer."""
        lines = [f"{'bound':>9} {'bound/std':>9} {'kappa':>6} {'non-zero':>8}  layer"]
        for key, layer in self._layers.items():
            relative = f"{layer.bound / layer.spread:.3f}" if layer.spread else "-"
            kappa, share = (f"{layer.kappa:.2f}", f"{layer.share:.2f}") if layer.rows else "--"
            serves = "" if layer.copied == key else f" (copy of {layer.copied})"
            lines.append(f"{layer.bound:9.2e} {relative:>9} {kappa:>6} {share:>8}  {key}{serves}")
        return "\n".join(lines)


class _Watch:
    """Hands a weight's gradients to a method, for as long as the method lives."""

    def __init__(self, method: Lossy, weight: Tensor, key: str) -> None:
        self.key = key
        self.weight = weakref.ref(weight)
        self._method = weakref.ref(method)
        self.handle = weight.register_post_accumulate_grad_hook(self)

    def __call__(self, weight: Tensor) -> None:
        method = self._method()
        if method is None:
            self.handle.remove()
        elif weight.grad is not None:
            method._accumulate(self.key, weight.grad)
