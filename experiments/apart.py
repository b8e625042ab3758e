"""Tasks in processes of their own, so that none lives off memory that another has left behind.

A training has one method in one process. With several methods in one, each finds the heap as the
one before left it: maps that vanilla has freed are pages that the next method need not fault in.
"""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection

import torch

Build = Callable[[], Callable[[], float]]  # made in the process: returns what gives the seconds


@contextmanager
def apart(builders: Mapping[str, Build]) -> Iterator[dict[str, Callable[[], float]]]:
    """Start a process for every builder; yield what runs each task there and returns its seconds.

    Only one task runs at a time: a process waits, asleep, until it is asked.
    """
    with ExitStack() as stack:
        pipes = {name: stack.enter_context(_process(build)) for name, build in builders.items()}
        for name, pipe in pipes.items():  # all are built before the first is timed
            _answer(name, pipe)
        yield {name: partial(_ask, name, pipe) for name, pipe in pipes.items()}


@contextmanager
def _process(build: Build) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, build, torch.get_num_threads())
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()  # which ends the process
        process.join()


def _serve(pipe: Connection, build: Build, threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        task = build()
        pipe.send(0.0)
        while True:
            try:
                pipe.recv()
            except EOFError:
                return
            pipe.send(task())
    except Exception:
        pipe.send(traceback.format_exc())


def _ask(name: str, pipe: Connection) -> float:
    pipe.send(None)
    return _answer(name, pipe)


def _answer(name: str, pipe: Connection) -> float:
    try:
        answer = pipe.recv()
    except EOFError:
        raise RuntimeError(f"the process of {name} ended; was it out of memory?") from None
    if isinstance(answer, str):
        raise RuntimeError(f"{name} failed in its process:\n{answer}")
    return float(answer)
