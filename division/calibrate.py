"""Spends a budget: watches the first training steps of a model and then chooses the bits.

A plain training loop is enough. The model's own forward tells the inputs, hooks on its outputs the
gradients that arrive there; when the next forward begins, the graph of the last step is gone, and
its batch is run again to see what the noise of each unit does to the gradients of the weights. The
weights have moved by one step since, which changes little. Nothing else of the training changes:
buffers, random numbers and `.grad` stay as they are, and memory stays within the budget.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from division.budget import Budget
from division.capture import Capture, running
from division.ledger import Ledger, size_text
from division.method import Division, Method
from division.obstacles import off_limits
from division.probe import Forward, gradient_errors, trace, with_gradient
from division.units import Table


def watch(model: nn.Module, method: Method) -> None:
    """Put hooks on a model whose method has a budget to spend."""
    if isinstance(method, Division) and method.spent is not None:
        watcher = _Watcher(method, method.spent)
        model.register_forward_pre_hook(_Before(watcher), with_kwargs=True)
        model.register_forward_hook(_After(watcher), prepend=True)


def unwatch(model: nn.Module) -> None:
    """Take the hooks off again."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(hook, _Before | _After):
                    del hooks[key]
                    module._forward_pre_hooks_with_kwargs.pop(key, None)


class _Watcher:
    """What the two hooks share."""

    def __init__(self, method: Division, budget: Budget) -> None:
        self.method = method
        self.budget = budget
        self.has_warned = False

    def before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Get ready for a forward: count, look back at the last batch, keep this one."""
        capture = running()
        if capture is None or not _builds_a_graph():
            return
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        size = sum(tensor.numel() for tensor in tensors)
        budget, forward = self.budget, Forward(model, args, kwargs, capture.where)
        is_larger, budget.largest = size > budget.largest, max(size, budget.largest)
        is_measured = capture.ledger is not None
        has_data = not any(isinstance(t, FakeTensor) for t in (*tensors, *model.parameters()))
        if budget.is_settled:
            if is_larger and not is_measured and has_data and not self.has_warned:
                capture.ledger = _ledger(model)
            return
        is_step = has_data and not is_measured
        budget.waited += is_step
        begins = is_step and budget.waited == budget.warmup + 1  # noise as it is by now
        if budget.table is None or is_larger or begins or not is_step:
            _check_parameters(model, budget)
            budget.start(trace(forward, self.method))
        if is_step and budget.waited > budget.warmup:
            self._look_back(model, capture)
            self._keep(model, args, kwargs)

    def after(self, model: nn.Module, output: Any) -> None:
        """Wait for the gradients of the output; or see what a larger batch took."""
        capture, record = running(), self.budget.record
        if capture is None or not _builds_a_graph():
            return
        if self.budget.is_settled:
            if capture.ledger is not None:
                self._warn(capture.ledger)
        elif record is not None and not record["arrived"] and capture.ledger is None:
            outputs = with_gradient(output)
            record["arrived"] = [None] * len(outputs)
            for place, tensor in enumerate(outputs):
                tensor.register_hook(_Arrival(record["arrived"], place))

    def _keep(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a copy of the inputs: the loop may write the next batch into the same memory."""
        if not self.budget.is_settled:
            args, kwargs = tree_map_only(Tensor, _copied, (args, kwargs))
            self.budget.record = {
                "args": args, "kwargs": kwargs, "arrived": [], "training": model.training,
            }  # fmt: skip

    def _look_back(self, model: nn.Module, capture: Capture) -> None:
        """See what noise does to the gradients of the last batch, if it had any."""
        budget, record = self.budget, self.budget.record
        if record is None or record["training"] != model.training or budget.table is None:
            return
        if all(gradient is None for gradient in record["arrived"]):
            return
        budget.record = None
        forward = Forward(model, record["args"], record["kwargs"], capture.where)
        errors = gradient_errors(forward, self.method, budget.table.units, record["arrived"])
        if errors is not None:
            budget.note(errors)
        budget.tried += 1
        if budget.tried % budget.batches == 0:
            self._settle(budget)

    def _settle(self, budget: Budget) -> None:
        """Choose, together with the other processes of the run if there are any."""
        tables, found = [budget.table], [budget.found]
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            parts: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(parts, (budget.table, budget.found))
            tables, found = ([part[i] for part in parts] for i in (0, 1))
        known = [table for table in tables if table is not None]
        if len({table.keys() for table in known}) > 1:
            raise ValueError(
                f"{budget.option}: the processes of this run store different tensors, so they "
                "cannot choose bits together; give bits"
            )
        rows = [errors for part in found for errors in part]
        if rows:  # else the gradients of all batches were infinite, as they are under a scaler
            mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
            budget.settle(max(known, key=_least_size), mean)

    def _warn(self, ledger: Ledger) -> None:
        choice = self.budget.choice
        if choice is not None and self.budget.option == "budget":
            taken = ledger.saved_bytes
            if taken > choice.limit:
                self.has_warned = True
                warnings.warn(
                    f"{choice.given}: a batch takes {size_text(taken)}; the bits were chosen for "
                    f"smaller ones, of {size_text(choice.nbytes)}",
                    stacklevel=2,
                )


class _Before:
    """The hook that runs before a forward; it copies and pickles with the model."""

    def __init__(self, watcher: _Watcher) -> None:
        self.watcher = watcher

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            self.watcher.before(module, args, kwargs)


class _After:
    """The hook that runs after a forward."""

    def __init__(self, watcher: _Watcher) -> None:
        self.watcher = watcher

    def __call__(self, module: nn.Module, args: object, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.watcher.after(module, output)


class _Arrival:
    """Adds up the gradients that arrive at one output; a loop may run several backward passes."""

    def __init__(self, arrived: list[Tensor | None], place: int) -> None:
        self._arrived, self._place = arrived, place

    def __call__(self, gradient: Tensor) -> None:
        known = self._arrived[self._place]
        new = gradient.detach()
        self._arrived[self._place] = new.clone() if known is None else known + new


def _builds_a_graph() -> bool:
    """Tell whether a training forward begins, as against one that checkpointing repeats."""
    return torch.is_grad_enabled() and not off_limits()


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _ledger(model: nn.Module) -> Ledger:
    ledger = Ledger()
    ledger.disregard([*model.parameters(), *model.buffers()])
    return ledger


def _least_size(table: Table) -> int:
    return table.size(table.uniform(1))


def _check_parameters(model: nn.Module, budget: Budget) -> None:
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError(
            f"{budget.option} needs whole gradients, and the weights of this model are sharded "
            "(FSDP2); give bits"
        )
