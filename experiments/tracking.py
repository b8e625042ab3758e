"""An optional mirror of the metrics to Weights & Biases; nothing is ever read back from it."""

from types import TracebackType
from typing import Any

from omegaconf import DictConfig

from experiments.config import flatten
from experiments.loop import Epoch

MODES = ("offline", "online", "disabled")


class Mirror:
    """Logs epochs where the config asks for it, and does nothing otherwise."""

    def __init__(self, config: DictConfig) -> None:
        if config.logger.name not in ("none", "wandb"):
            raise ValueError(f"logger.name must be none or wandb; got {config.logger.name!r}")
        if config.logger.mode not in MODES:
            raise ValueError(
                f"logger.mode must be one of {', '.join(MODES)}; got {config.logger.mode!r}"
            )
        self._config = config
        self._run: Any = None

    def __enter__(self) -> "Mirror":
        if self._config.logger.name == "wandb":
            import wandb  # slow to import, and needed by nobody else

            self._run = wandb.init(
                project=self._config.logger.project,
                mode=self._config.logger.mode,
                config=flatten(self._config),
                group=self._config.name,
                dir="outputs",
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(kind is not None))

    def log(self, epoch: Epoch) -> None:
        """Pass one epoch on."""
        if self._run is not None:
            self._run.log(vars(epoch), step=epoch.number)
