"""One training run: `python -m experiments.train method=division model=resnet20 dataset=digits`."""

import sys
from dataclasses import replace
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from torch import nn

import division
from division.method import Division
from experiments import batch, build, device, provenance, record
from experiments.config import check, check_overrides, flatten, one_sentence
from experiments.data import Data
from experiments.loop import Diverged, Trainer, autocast
from experiments.progress import Display
from experiments.timing import Quantiles
from experiments.tracking import Mirror

EVERY_EPOCH = {"loss": "nats", "top1": "%"}
OVER_THE_RUN = {"images_per_s": "images/s", "loading_share": "1"}


def run(config: DictConfig) -> list[record.Row]:
    """Train as a config says and return the rows that were recorded; none if it was done before."""
    results = Path(config.paths.results)
    settings = flatten(config)
    check(config)
    provenance.commit()  # as it is now: when the run ends, another may be checked out
    record.check_writable(results)
    if not config.force and record.is_done(results, config.name, settings):
        print(f"recorded already, skipped (force=true runs it again): {_title(config)}")
        return []
    if config.hardware.threads:
        torch.set_num_threads(config.hardware.threads)
    data = build.dataset(config)
    model = build.model(config, data)
    trainer = _trainer(config, model, data, settings, _batch(config, model, data))
    if config.resume == "auto" and not config.force and trainer.resume():
        print(f"resumed after epoch {trainer.epoch}: {_title(config)}")
    status, memory = "ok", {}
    with Mirror(config) as mirror, Display(_title(config), trainer, config.progress) as display:
        try:
            memory = _memory(trainer)
            display.saved_bytes = memory["saved_bytes"]
            device.reset_peaks(trainer.device)
            for epoch in trainer.run(display.step):
                display.epoch(epoch)
                mirror.log(epoch)
        except Diverged as error:
            status = _failed("diverged", error)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            status = _failed("oom", error)
    _show_choice(model)
    memory |= device.peaks(trainer.device)
    rows = record.complete(_rows(config, settings, trainer, memory, status))
    record.append(results, rows)
    return rows


def _is_out_of_memory(error: BaseException) -> bool:
    """Tell lack of memory from other errors: on a CPU torch raises a plain RuntimeError."""
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "can't allocate memory" in str(error)


def _trainer(
    config: DictConfig, model: nn.Module, data: Data, settings: dict[str, object], size: int
) -> Trainer:
    # In the name: the settings and the code. Other code must not finish what this code began.
    folder = Path(config.paths.checkpoints) / config.name
    label = f"{config.method.name}-{config.model.name}-{data.name}-seed{config.seed}"
    return Trainer(
        model,
        data,
        replace(OmegaConf.to_object(config.optim), batch=size),
        config.seed,
        config.hardware.device,
        config.hardware.channels_last,
        folder / f"{label}-{record.config_hash(settings)}-{provenance.code()}.pt",
    )


def _batch(config: DictConfig, model: nn.Module, data: Data) -> int:
    """Return the batch of a run; one that was asked for by its memory is measured and told."""

    def images(count: int) -> torch.Tensor:
        x, _ = next(iter(data.train.batches(count, 0, config.seed, train=True)))
        return device.to_device(x, config.hardware.device, config.hardware.channels_last)

    model.train()
    # Gradients, what the optimizer keeps, averaged weights.
    copies = 1 + (1 if config.optim.name == "sgd" else 2) + (config.optim.ema > 0)
    with autocast(config.optim.amp, config.hardware.device):
        size = batch.resolve(config.optim.batch, model, copies, len(data.train), images)
    if size != config.optim.batch:
        print(f"optim.batch={config.optim.batch}: {size} images a batch")
    return size


def _show_choice(model: nn.Module) -> None:
    """Print the bits that a budget was spent on."""
    method = division.method_of(model)
    if isinstance(method, Division) and method.choice is not None:
        print(method.choice)


def _failed(status: str, error: BaseException) -> str:
    print(f"{status}: {error}", file=sys.stderr)
    return status


def _title(config: DictConfig) -> str:
    return f"{config.method.name} {config.model.name} {config.dataset.name} seed {config.seed}"


def _memory(trainer: Trainer) -> dict[str, int]:
    """Return what autograd saves for one training batch, stock and as the method keeps it."""
    batches = trainer.data.train.batches(trainer.optim.batch, 0, trainer.seed, train=True)
    trainer.model.train()
    with trainer.autocast():
        ledger = division.measure(trainer.model, trainer.to_device(next(iter(batches))[0]))
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
        "data_sha256": trainer.data.sha256,
        "wall_s": round(trainer.seconds, 3),
    }
    rows = [record.Row(metric=m, unit="B", value=v, **common) for m, v in memory.items()]
    if trainer.optim.batch != config.optim.batch:
        rows.append(record.Row(metric="batch", unit="images", value=trainer.optim.batch, **common))
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
    """Train, and end with an error if the run did not end well; a sweep goes on to its next run."""
    with one_sentence():
        rows = run(config)
    if not rows:
        return
    if rows[-1].status == "ok":
        print(f"{_title(config)}: top-1 {rows[-1].value:.2f} %")
    elif HydraConfig.get().mode == RunMode.RUN:
        sys.exit(f"the run ended as {rows[-1].status}; the row is recorded")


if __name__ == "__main__":
    check_overrides(sys.argv[1:])
    main()
