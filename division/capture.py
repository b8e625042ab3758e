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
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import TracingContext
from torch.autograd.graph import node_creation_hook

from division import kernels
from division.attention import AS_A_WHOLE, Product
from division.codec import FLOAT_TYPES, Codec
from division.forms import Form
from division.ledger import Ledger
from division.method import Method
from division.obstacles import obstacle, off_limits
from division.recognize import is_weight
from division.recompute import IN_RECIPES
from division.site import Site
from division.slots import SLOTS, Keep, Rule, Through
from division.store import Store
from division.stored import Rebuilt, Slot, Stored

_innermost: ContextVar["Capture | None"] = ContextVar("division_capture", default=None)
_OF_A_WEIGHT = "torch::autograd::AccumulateGrad"  # built before the node that has the weight
COMPILED = "a region compiled by torch.compile, left as it is"


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
        self.method = method
        self.ledger = ledger
        self.where = where
        self.store = Store(method, masks_wait=ledger is None)
        # The stored factors of matrix products, by their nodes: softmax may need them again.
        self.products: dict[int, Product] = {}
        self._hook = node_creation_hook(self._on_node)
        self._outer: Capture | None = None
        self._open = False

    def __enter__(self) -> "Capture":
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self.method.begin()  # a new forward, not one that checkpointing repeats
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
        self.store.clear()
        self.products.clear()

    def _on_node(self, node: Any) -> None:
        waiting, name = self.store.waiting, node.name()
        self._look_at(node, name)
        if waiting is not None and name != _OF_A_WEIGHT:
            self.store.settle(waiting)

    def _look_at(self, node: Any, name: str) -> None:
        """Have the slots of a node packed, if the node is ours."""
        if not self._concerns(name):
            return
        # What torch.compile builds while it looks at the code is no real graph.
        if TracingContext.try_get() is not None or not self._is_innermost():
            return
        path, module = self.where() or ("", None)
        why = off_limits()
        if why:
            if self.ledger is not None and _has_slots(node):
                self.ledger.note(Site(path, module, name, "").labels(), why)
            return
        self._remember(node, name)
        special = AS_A_WHOLE.get(name)
        if special is not None and special(self, node, partial(Site, path, module, name)):
            return
        rules = SLOTS.get(name, {})
        kept = self._on_slots(node, rules, partial(Site, path, module, name))
        if self.store.recipes is not None:
            self.store.recipes.note(node, name, kept, module)
        if self.ledger is not None:
            why = COMPILED if name.startswith("CompiledFunction") else "no rule for this slot"
            for slot, raw in _other_slots(node, rules):
                self.leave(Site(path, module, name, slot), raw.data, why)

    def _concerns(self, name: str) -> bool:
        """Tell whether nodes of this name may have to be looked at."""
        if name in SLOTS or name in AS_A_WHOLE or self.ledger is not None:
            return True
        return self.store.recipes is not None and name in IN_RECIPES

    def _remember(self, node: Any, name: str) -> None:
        """Note what later nodes may ask for: sizes of maps, and products that may be scores."""
        if name == "ConvolutionBackward0":
            self.store.note_map(tuple(node._input_metadata[0].shape))
        elif name == "BmmBackward0":
            factors = node._raw_saved_self.data, node._raw_saved_mat2.data
            if all(isinstance(factor, Tensor) for factor in factors):
                self.products[node._sequence_nr()] = Product(*factors)

    def _is_innermost(self) -> bool:
        """Of captures inside each other only the innermost acts, abandoned ones left aside."""
        capture = _innermost.get()
        while capture is not None and not (capture._open and capture.where()):
            capture = capture._outer
        return capture is self

    def _on_slots(
        self, node: Any, rules: dict[str, Rule], where: Callable[[str], Site]
    ) -> dict[str, tuple[Slot, Tensor]]:
        """Have the slots packed that rules name; return those that were, with the originals."""
        kept = {}
        for name, rule in rules.items():
            raw = getattr(node, f"_raw_saved_{name}")
            original = raw.data
            slot = self._on_slot(node, raw, rule, where(name))
            if slot is not None:
                kept[name] = (slot, original)
        return kept

    def _on_slot(self, node: Any, raw: Any, rule: Rule, site: Site) -> Slot | None:
        """Have one slot packed as its rule says, if it can be; return what it holds then."""
        tensor = raw.data
        if not isinstance(tensor, Tensor) or tensor.dim() == 0:
            return None
        why = obstacle(tensor)
        if why:
            self.leave(site, tensor, why)
            return None
        if is_weight(tensor):
            return None
        slot = None
        decision = rule(node, tensor, site)
        if isinstance(decision, Keep):
            self.leave(site, tensor, decision.why)
        elif isinstance(decision, Through):
            slot = self.through(node, tensor, decision.form, site.of(tensor, decision.form))
            if slot is not None:
                raw.register_hooks(lambda _: slot, Slot.unpack)
                product = self.products.get(node._sequence_nr())
                if product is not None:
                    product.factors.append(weakref.ref(slot))
        elif not decision.takes(tensor.dtype):
            self.leave(site, tensor, f"{tensor.dtype} is not compressed")
        elif self.method.masks:
            slot, _ = self._keep(tensor, decision, Form(), site, exact=True)
            raw.register_hooks(lambda _: slot, Slot.unpack)
        else:
            self.leave(site, tensor, f"{self.method.name} stores no masks (masks=False)")
        return slot

    def through(self, node: Any, tensor: Tensor, form: Form, site: Site) -> Slot | None:
        """Pack a tensor with the method's codec, or leave it and say why."""
        if tensor.dtype not in FLOAT_TYPES:
            self.leave(site, tensor, f"{tensor.dtype} is not compressed")
            return None
        codec = self.method.codec(site)
        if codec is None:
            self.leave(site, tensor, f"{self.method.name} leaves it")
            return None
        slot, shared = self._keep(tensor, codec, form, site, exact=False)
        if isinstance(slot.stored, Stored):
            self.method.stored(site, node, tensor.detach(), slot.stored.packed, shared)
        return slot

    def _keep(
        self, tensor: Tensor, codec: Codec, form: Form, site: Site, exact: bool
    ) -> tuple[Slot, bool]:
        """Have a copy kept, and note what it costs."""
        slot, shared = self.store.keep(tensor, codec, form, site.path or site.node, exact)
        if self.ledger is not None:
            self.ledger.kernels = kernels.active(tensor.device)
            stored, name = slot.stored, codec.name
            size, why = 0, f"shared with {stored.site}"
            if isinstance(stored, Rebuilt):
                name, why = "rebuilt", f"rebuilt from what {stored.site} stores"
                size = stored.nbytes if stored.readers == 1 else 0
            elif not shared:
                size, why = stored.packed.nbytes, "" if exact else self.method.remark(site)
            self.ledger.add(site.labels(), tensor, name, why, size)
        return slot, shared

    def leave(self, site: Site, tensor: object, why: str) -> None:
        """Note a tensor that stays as it is, unless it is a weight."""
        ledger = self.ledger
        if ledger is None or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            return
        if not (is_weight(tensor) or ledger.owns(tensor)):
            ledger.add(site.labels(), tensor, "stock", why, None)


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


def running() -> Capture | None:
    """Return the capture that sees what is built now, if there is one."""
    return _innermost.get()
