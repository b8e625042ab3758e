"""The progress display of a run: epoch, loss, accuracy, speed, saved memory, time to go."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from division.ledger import size_text
from experiments.loop import Epoch, Trainer


class Display:
    """A progress bar on a terminal, one line an epoch elsewhere."""

    def __init__(self, title: str, trainer: Trainer, shown: bool) -> None:
        self._title = title
        self._trainer = trainer
        self._shown = shown
        self._console = Console(stderr=True)
        self._loss = float("nan")
        self.saved_bytes = 0
        columns = ("{task.description}", BarColumn(), "{task.fields[state]}", TimeRemainingColumn())
        parts = [TextColumn(c) if isinstance(c, str) else c for c in columns]
        live = shown and sys.stderr.isatty()
        self._bar = Progress(*parts, console=self._console, disable=not live)
        self._task = self._bar.add_task(
            title,
            total=trainer.optim.epochs * trainer.batches,
            completed=trainer.epoch * trainer.batches,
            state="",
        )

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def step(self, loss: float) -> None:
        """Advance by one batch."""
        self._loss = loss if self._loss != self._loss else 0.9 * self._loss + 0.1 * loss
        last = self._trainer.history[-1].top1 if self._trainer.history else 0.0
        speed = (self._bar.tasks[self._task].speed or 0.0) * self._trainer.optim.batch
        state = (
            f"epoch {self._trainer.epoch + 1}/{self._trainer.optim.epochs}  loss {self._loss:.3f}  "
            f"top-1 {last:.1f} %  {speed:.0f} images/s  saved {size_text(self.saved_bytes)}"
        )
        self._bar.update(self._task, advance=1, state=state)

    def epoch(self, epoch: Epoch) -> None:
        """Write the line of an epoch."""
        if self._shown:
            self._console.print(
                f"{self._title}: epoch {epoch.number}/{self._trainer.optim.epochs}  "
                f"loss {epoch.loss:.3f}  top-1 {epoch.top1:.2f} %  {epoch.images_per_s:.0f} "
                f"images/s  saved {size_text(self.saved_bytes)}",
                highlight=False,
                soft_wrap=True,
            )
