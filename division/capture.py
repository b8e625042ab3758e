"""Capture: sees every autograd node as it is built and packs its saved tensors at once.

`torch.autograd.graph.node_creation_hook` hands over each finished node; `register_hooks` on one of
its raw saved slots swaps the tensor for a packed copy, and the stock backward gets it unpacked.
Three rules keep this safe:

- only the pack result owns the packed copy: no closure over the node, no table with strong
  references, so a graph that is dropped without a backward frees everything;
- tensors are recognised as recognize.py says, never by address: addresses are reused as soon as
  an original is freed;
- where other saved-tensor hooks are active (activation checkpointing) or a backward pass is
  running (its re-entrant variant), nothing is looked at and nothing is changed.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import TracingContext
from torch.autograd.graph import node_creation_hook

from division import kernels
from division.codec import FLOAT_TYPES, Codec, Packed
from division.ledger import Ledger
from division.method import Method, resolve
from division.recognize import Fingerprint, fingerprint, is_weight
from division.site import Site
from division.slots import SLOTS, Keep, Rule, Through

_innermost: ContextVar["Capture | None"] = ContextVar("division_capture", default=None)
COMPILED = "a region compiled by torch.compile, left as it is"
SMALL = 4096  # bytes below which packing costs more than it frees


class Stored:
    """A packed copy of one saved tensor, with the strides that backward must see."""

    __slots__ = ("__weakref__", "codec", "nbytes", "packed", "site", "stride")

    def __init__(self, codec: Codec, packed: Packed, stride: tuple[int, ...], site: str) -> None:
        self.codec = codec
        self.packed = packed
        self.nbytes = packed.nbytes
        self.site = site
        self.stride = stride

    def unpack(self) -> Tensor:
        """Return the tensor that backward sees, in the layout of the original."""
        tensor = self.codec.decompress(self.packed)
        if tensor.stride() == self.stride:
            return tensor
        exact = torch.empty_strided(
            tensor.shape, self.stride, dtype=tensor.dtype, device=tensor.device
        )
        return exact.copy_(tensor)


class Capture:
    """Packs what autograd saves while it is open, as its method decides.

    Args:
        method: decides the codec of each site.
        ledger: where every slot is noted; None saves the time of doing so.
        where: tells the module that is running, as (path, module), or None once the forward that
            opened the capture is over, however it ended.
    """

    def __init__(
        self,
        method: Method,
        ledger: Ledger | None = None,
        where: Callable[[], tuple[str, nn.Module | None] | None] = lambda: ("", None),
    ) -> None:
        self._method = method
        self._ledger = ledger
        self._where = where
        self._shared: dict[tuple[Any, ...], tuple[weakref.ref[Stored], Fingerprint]] = {}
        self._hook = node_creation_hook(self._on_node)
        self._outer: Capture | None = None
        self._open = False

    def __enter__(self) -> "Capture":
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._method.begin()  # a new forward, not one that checkpointing repeats
        self._outer = _innermost.get()
        _innermost.set(self)
        self._open = True
        self._hook.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()
        self._hook.__exit__(*error)
        _innermost.set(self._outer)

    def abandon(self) -> None:
        """Go inert without leaving torch's stack of hooks, which only its top may leave."""
        self._open = False
        self._shared.clear()

    def _on_node(self, node: Any) -> None:
        name = node.name()
        rules = SLOTS.get(name, {})
        if not rules and self._ledger is None:
            return
        # What torch.compile builds while it looks at the code is no real graph.
        if TracingContext.try_get() is not None or not self._is_innermost():
            return
        path, module = self._where() or ("", None)
        off_limits = _off_limits()
        if off_limits:
            if self._ledger is not None and _has_slots(node):
                self._ledger.note(Site(path, module, name, "").labels(), off_limits)
            return
        for slot, rule in rules.items():
            raw = getattr(node, f"_raw_saved_{slot}")
            self._on_slot(node, raw, rule, Site(path, module, name, slot))
        if self._ledger is not None:
            why = COMPILED if name.startswith("CompiledFunction") else "no rule for this slot"
            for slot, raw in _other_slots(node, rules):
                self._leave(Site(path, module, name, slot), raw.data, why)

    def _is_innermost(self) -> bool:
        """Of captures inside each other only the innermost acts, abandoned ones left aside."""
        capture = _innermost.get()
        while capture is not None and not (capture._open and capture._where()):
            capture = capture._outer
        return capture is self

    def _on_slot(self, node: Any, raw: Any, rule: Rule, site: Site) -> None:
        tensor = raw.data
        if not isinstance(tensor, Tensor) or tensor.dim() == 0:
            return
        obstacle = _obstacle(tensor)
        if obstacle:
            self._leave(site, tensor, obstacle)
            return
        if is_weight(tensor):
            return
        decision = rule(node, tensor, site)
        if isinstance(decision, Keep):
            self._leave(site, tensor, decision.why)
        elif isinstance(decision, Through):
            self._through(node, raw, tensor, decision.channel, site)
        elif not decision.takes(tensor.dtype):
            self._leave(site, tensor, f"{tensor.dtype} is not compressed")
        elif self._method.masks:
            self._pack(raw, tensor, decision, 1, site, (decision, 1))
        else:
            self._leave(site, tensor, f"{self._method.name} stores no masks (masks=False)")

    def _through(self, node: Any, raw: Any, tensor: Tensor, channel: int, site: Site) -> None:
        if tensor.dtype not in FLOAT_TYPES:
            self._leave(site, tensor, f"{tensor.dtype} is not compressed")
            return
        codec = self._method.codec(site)
        if codec is None:
            self._leave(site, tensor, f"{self._method.name} leaves it")
        else:
            # Whatever its codec, a copy that is there serves all who go through the method's.
            stored, shared = self._pack(raw, tensor, codec, channel, site, (None, channel))
            self._method.stored(site, node, tensor.detach(), stored.packed, shared)

    def _pack(
        self,
        raw: Any,
        tensor: Tensor,
        codec: Codec,
        channel: int,
        site: Site,
        form: tuple[Any, int],
    ) -> tuple[Stored, bool]:
        """Swap a saved tensor for a packed copy: one that is there in the same form, or a new one.

        Returns the copy, and whether it was there.
        """
        mark = fingerprint(tensor)
        key = (mark.key, *form)
        found = self._shared.get(key) if self._method.share else None
        stored = found[0]() if found and found[1].same(mark) else None
        shared = stored is not None
        if stored is None:
            packed = codec.compress(tensor.detach(), self._method.next_seed(), channel)
            stored = Stored(codec, packed, tensor.stride(), site.path or site.node)
            self._shared[key] = (weakref.ref(stored), mark)
        raw.register_hooks(lambda _: stored, Stored.unpack)
        if self._ledger is not None:
            self._ledger.kernels = kernels.active(tensor.device)
            size, why = (0, f"shared with {stored.site}") if shared else (stored.nbytes, "")
            self._ledger.add(site.labels(), tensor, stored.codec.name, why, size)
        return stored, shared

    def _leave(self, site: Site, tensor: object, why: str) -> None:
        ledger = self._ledger
        if ledger is None or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            return
        if not (is_weight(tensor) or ledger.owns(tensor)):
            ledger.add(site.labels(), tensor, "stock", why, None)


def _off_limits() -> str:
    """Say why saved tensors must not be touched right now, or nothing."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "other saved-tensor hooks are active here (activation checkpointing or the like)"
    if torch._C._current_graph_task_id() != -1:
        return "built while a backward pass runs (re-entrant checkpointing or double backward)"
    return ""


def _obstacle(tensor: Tensor) -> str:
    """Say why a tensor cannot be packed whatever its slot, or nothing."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"layout {tensor.layout} is not compressed"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside a torch.func transform"
    if tensor.numel() * tensor.element_size() < SMALL:
        return f"small (under {SMALL} bytes)"
    if any(
        step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return "an expanded view, small in memory"
    return ""


def _has_slots(node: Any) -> bool:
    return any(name.startswith("_raw_saved_") for name in dir(node))


def _other_slots(node: Any, rules: dict[str, Rule]) -> Iterator[tuple[str, Any]]:
    """Yield (slot, raw saved tensor) of the slots that no rule names, lists flattened."""
    for attribute in dir(node):
        slot = attribute.removeprefix("_raw_saved_")
        if slot == attribute or slot in rules:
            continue
        value = getattr(node, attribute)
        for raw in value if isinstance(value, tuple | list) else (value,):
            if raw is not None:
                yield slot, raw


def account(
    tensor: Tensor, kept_by: str, why: str, codec: str = "stock", stored: int | None = None
) -> None:
    """Note a tensor that a method keeps by its own means, if a ledger is being written.

    `stored` is what its copy takes, or None where the tensor itself is kept.
    """
    running = _innermost.get()
    if running is None or running._ledger is None:
        return
    path, module = running._where() or ("", None)
    if not (is_weight(tensor) or running._ledger.owns(tensor)):
        site = Site(path, module, kept_by, "tensor")
        running._ledger.add(site.labels(), tensor, codec, why, stored)


@contextmanager
def capture(method: str | Method = "division", **options: object) -> Iterator[Ledger]:
    """Compress whatever autograd saves inside the context; yields the ledger.

    A compressed model inside keeps its own method, and its tensors are not in this ledger.

    >>> net = torch.nn.Conv2d(3, 8, 3)
    >>> with capture("division", bits=2) as ledger:
    ...     loss = net(torch.randn(4, 3, 32, 32)).square().mean()
    >>> loss.backward()
    >>> ledger.ratio > 1
    True
    """
    ledger = Ledger()
    with Capture(resolve(method, **options), ledger):
        yield ledger
