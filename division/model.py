"""compress(model), restore(model), measure(model, *inputs): the one-line use.

Every module gets a forward pre-hook and a forward hook (callable objects, so that deepcopy and
pickle copy them with the model). The outermost module that runs opens the capture; the hooks of the
others only keep the path of the running module, which names the sites. Parameters, buffers, their
identity and the keys of `state_dict` stay as they are.
"""

import sys
import threading
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import nn

from division.calibrate import unwatch, watch
from division.capture import Capture
from division.ledger import Ledger
from division.method import Method, Vanilla, resolve
from division.state import unchanged
from division.wrapping import Wrapping

M = TypeVar("M", bound=nn.Module)


class _Session:
    """What the hooks of one compressed model share."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.ledger: Ledger | None = None
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the method; what a running forward holds stays behind."""
        return {"method": self.method}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["method"])  # type: ignore[misc]

    def enter(self, path: str, module: nn.Module) -> None:
        running = self._running()
        if running and not _on_call_stack(self._local.frame):
            running.clear()
            self._local.capture.abandon()
        if not running:
            self._local.frame = sys._getframe(2)
            self._local.capture = Capture(self.method, self.ledger, self._where)
            self._local.capture.__enter__()
        running.append((path, module))

    def leave(self) -> None:
        running = self._running()
        if running:
            running.pop()
            if not running:
                self._local.frame = None
                self._local.capture.__exit__(None, None, None)

    def _running(self) -> list[tuple[str, nn.Module]]:
        if not hasattr(self._local, "running"):
            self._local.running = []
        running: list[tuple[str, nn.Module]] = self._local.running
        return running

    def _where(self) -> tuple[str, nn.Module | None] | None:
        running = self._running()
        return running[-1] if running and _on_call_stack(self._local.frame) else None


class _Enter:
    def __init__(self, session: _Session, path: str) -> None:
        self.session = session
        self.path = path

    def __call__(self, module: nn.Module, inputs: object) -> None:
        if not torch.compiler.is_compiling():
            self.session.enter(self.path, module)


class _Leave:
    def __init__(self, session: _Session) -> None:
        self.session = session

    def __call__(self, module: nn.Module, inputs: object, output: object) -> None:
        if not torch.compiler.is_compiling():
            self.session.leave()


def _on_call_stack(frame: FrameType) -> bool:
    """Tell whether a frame still runs: an interrupt (Ctrl-C) ends a forward without its hooks."""
    caller: FrameType | None = sys._getframe(2)
    while caller is not None and caller is not frame:
        caller = caller.f_back
    return caller is not None


def _session(module: nn.Module) -> _Session | None:
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, _Enter):
            return hook.session
    return None


def _sessions(model: nn.Module) -> list[_Session]:
    found = {id(session): session for session in map(_session, model.modules()) if session}
    return list(found.values())


def compress(model: M, method: str | Method = "division", **options: object) -> M:
    """Compress the saved activations of a model from now on, in place.

    Args:
        model: any module; parameters, buffers and state_dict keys stay as they are.
        method: a registered name ("division", "identity", "vanilla", ...) or a Method object.
        **options: the method's options, such as bits=2, block=8.

    Returns:
        The same model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"compress takes a torch.nn.Module; got {type(model).__name__}")
    resolved = resolve(method, **options)
    for path, module in model.named_modules():
        if _session(module) is not None:
            where = f"its part {path!r}" if path else "it"
            raise ValueError(f"the model is compressed already ({where}); call restore first")
    check_trainable(model)
    if not isinstance(resolved, Vanilla):
        resolved.attach(model)
        _attach(model, resolved)
        watch(model, resolved)
    return model


def check_trainable(model: nn.Module) -> None:
    """Raise ValueError if training the model would save nothing."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"nothing to compress: {type(model).__name__} has no parameter that requires a gradient"
        )


def restore(model: M) -> M:
    """Give back the stock model, bit for bit; a model that is not compressed stays as it is."""
    methods = [session.method for session in _sessions(model)]
    _detach(model)
    unwatch(model)
    for method in methods:
        method.detach(model)
    return model


def method_of(model: nn.Module) -> Method | None:
    """Return the method that a model is compressed with: its state belongs in a checkpoint."""
    sessions = _sessions(model)  # a wrapper such as DDP has none of its own
    if len(sessions) > 1:
        names = ", ".join(session.method.name for session in sessions)
        raise ValueError(f"parts of the model have methods of their own: {names}; ask each part")
    return sessions[0].method if sessions else None


def _attach(model: nn.Module, method: Method) -> _Session:
    """Put hooks on every module that has none of ours yet."""
    session = _Session(method)
    for path, module in model.named_modules():
        if _session(module) is None:
            module.register_forward_pre_hook(_Enter(session, path), prepend=True)
            module.register_forward_hook(_Leave(session), always_call=True)
    return session


def _detach(model: nn.Module, only: _Session | None = None) -> None:
    """Take off our hooks, or those of one session."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(hook, _Enter | _Leave) and only in (None, hook.session):
                    del hooks[key]
                    module._forward_hooks_always_called.pop(key, None)


def _forward(
    model: nn.Module, sessions: list[_Session], inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> Ledger:
    """Run one forward that leaves no trace and return its ledger."""
    ledger = Ledger()
    ledger.disregard([*model.parameters(), *model.buffers()])
    for session in sessions:
        session.ledger = ledger
    with unchanged(model), torch.enable_grad():
        model(*inputs, **keywords)
    return ledger


def measure(model: nn.Module, *inputs: Any, **keywords: Any) -> Ledger:
    """Run one forward and count what autograd holds, as the model is compressed now.

    Buffers, random generators and the method's own random numbers are put back. Works under
    FakeTensorMode, where the sizes are exact and nothing is computed.
    """
    sessions = _sessions(model)
    wrapping = [s.method for s in sessions if isinstance(s.method, Wrapping)]
    # What is not compressed is watched by a session of its own.
    watching = _attach(model, Vanilla())
    sessions.append(watching)
    states = [session.method.state_dict() for session in sessions]
    try:
        stock_bytes = None
        if wrapping:
            with ExitStack() as paused:
                for method in wrapping:
                    paused.enter_context(method.paused())
                stock_bytes = _forward(model, sessions, inputs, keywords).original_bytes
        ledger = _forward(model, sessions, inputs, keywords)
        ledger.stock_bytes = stock_bytes
    finally:
        _detach(model, watching)
        for session, state in zip(sessions, states, strict=True):
            session.ledger = None
            session.method.load_state_dict(state)
    if not ledger.rows:
        raise RuntimeError(
            f"nothing was saved for backward: {type(model).__name__} built no graph "
            "(is everything frozen, or the forward under no_grad?)"
        )
    return ledger
