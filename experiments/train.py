"""One training run: `python -m experiments.train method=division model=resnet20 dataset=digits`."""

import sys
import time
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

import division
from experiments import build, record
from experiments.config import check_overrides, flatten
from experiments.data import Data
from experiments.loop import Diverged, Trainer
from experiments.progress import Display
from experiments.timing import Quantiles
from experiments.tracking import Mirror

EVERY_EPOCH = {"loss": "nats", "top1": "%"}
OVER_THE_RUN = {"images_per_s": "images/s", "loading_share": "1"}


def run(config: DictConfig) -> list[record.Row]:
    """Train as a config says and return the rows that were recorded; none if it was done before."""
    started = time.monotonic()
    results = Path(config.paths.results)
    settings = flatten(config)
    record.check_writable(results)
    if not config.force and record.is_done(results, config.name, settings):
        print(f"recorded already, skipped (force=true runs it again): {_title(config)}")
        return []
    if config.hardware.threads:
        torch.set_num_threads(config.hardware.threads)
    data = build.dataset(config)
    model = build.model(config, data)
    trainer = _trainer(config, model, data, settings)
    if config.resume == "auto" and trainer.resume():
        print(f"resumed after epoch {trainer.epoch}: {_title(config)}")
    status = "ok"
    memory = _memory(model, data, config)
    with Mirror(config) as mirror, Display(_title(config), trainer, config.progress) as display:
        display.saved_bytes = memory["saved_bytes"]
        try:
            for epoch in trainer.run(display.step):
                display.epoch(epoch)
                mirror.log(epoch)
        except Diverged as error:
            status = _failed("diverged", error)
        except (MemoryError, torch.OutOfMemoryError) as error:
            status = _failed("oom", error)
    rows = record.complete(_rows(config, settings, trainer, memory, status), started)
    record.append(results, rows)
    return rows


def _trainer(
    config: DictConfig, model: nn.Module, data: Data, settings: dict[str, object]
) -> Trainer:
    folder = Path(config.paths.checkpoints) / config.name
    label = f"{config.method.name}-{config.model.name}-{data.name}-seed{config.seed}"
    return Trainer(
        model,
        data,
        OmegaConf.to_object(config.optim),
        config.seed,
        config.hardware.device,
        config.hardware.channels_last,
        folder / f"{label}-{record.config_hash(settings)}.pt",
    )


def _failed(status: str, error: BaseException) -> str:
    print(f"{status}: {error}", file=sys.stderr)
    return status


def _title(config: DictConfig) -> str:
    return f"{config.method.name} {config.model.name} {config.dataset.name} seed {config.seed}"


def _memory(model: nn.Module, data: Data, config: DictConfig) -> dict[str, int]:
    """Return what autograd saves for one training batch, stock and as the method keeps it."""
    x, _ = next(iter(data.train.batches(config.optim.batch, 0, config.seed, train=True)))
    model.train()
    ledger = division.measure(model, x.to(config.hardware.device))
    return {"saved_bytes": ledger.saved_bytes, "original_bytes": ledger.original_bytes}


def _rows(
    config: DictConfig,
    settings: dict[str, object],
    trainer: Trainer,
    memory: dict[str, int],
    status: str,
) -> list[record.Row]:
    _, options = build.options(config.method)
    common = {
        "experiment": config.name,
        "method": config.method.name,
        "options": options,
        "model": config.model.name,
        "dataset": trainer.data.name,
        "seed": config.seed,
        "scale": config.scale,
        "config": settings,
    }
    rows = [record.Row(metric=m, unit="B", value=v, **common) for m, v in memory.items()]
    for epoch in trainer.history:
        for metric, unit in EVERY_EPOCH.items():
            value = getattr(epoch, metric)
            rows.append(
                record.Row(metric=metric, unit=unit, value=value, epoch=epoch.number, **common)
            )
    if trainer.history:
        for metric, unit in OVER_THE_RUN.items():
            found = Quantiles.of([getattr(epoch, metric) for epoch in trainer.history])
            spread = {"value": found.p50, "p20": found.p20, "p80": found.p80, "n": found.n}
            rows.append(record.Row(metric=metric, unit=unit, **spread, **common))
    final = trainer.history[-1].top1 if status == "ok" else None
    rows.append(record.Row(metric="final_top1", unit="%", value=final, status=status, **common))
    return rows


@hydra.main(version_base="1.3", config_path="../configs", config_name="train")
def main(config: DictConfig) -> None:
    """Train, and end with an error if the run did not."""
    try:
        rows = run(config)
    except (OSError, ValueError) as error:  # what a user can mend: one sentence, no traceback
        sys.exit(f"error: {error}")
    if rows and rows[-1].status != "ok":
        sys.exit(f"the run ended as {rows[-1].status}; the row is recorded")
    if rows:
        print(f"{_title(config)}: top-1 {rows[-1].value:.2f} %")


if __name__ == "__main__":
    check_overrides(sys.argv[1:])
    main()
