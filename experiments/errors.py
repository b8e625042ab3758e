"""Gradient error and stored bytes of many specs: `python -m experiments.errors`.

One vanilla training gives the states; at each of them every spec is measured on the same batches.
What is recorded already, with the same config and code, is skipped.
"""

import copy
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional as F

import division
from division.gradients import GradientError
from division.ledger import Ledger
from division.method import Method, resolve
from division.state import unchanged
from experiments import build, provenance, record, spectrum
from experiments.config import check, check_overrides, flatten, one_sentence
from experiments.data import Data
from experiments.data.dataset import Batch
from experiments.specs import Spec, specs_of
from experiments.states import at_state, states, steps
from experiments.timing import Quantiles

LAST = "gradient_error"  # recorded last, once a spec is measured
NOISE, SPECTRUM = "batch-noise", "spectrum"  # labels of what is measured of a state, not of a spec
_TOTALS = ("bias", "cosine", "relative")
_NAMES = {"relative": LAST, "cosine": "gradient_cosine", "bias": "gradient_bias"}


def settings(config: DictConfig, at: str, step: int, spec: Spec) -> dict[str, object]:
    """Return the flat config of one spec at one state; the other specs do not enter it."""
    flat = flatten(config)
    own = {k: v for k, v in flat.items() if k.split(".")[0] not in ("specs", "at", "layers")}
    return {**own, "label": spec.label, "at": at, "step": step, "spec": [spec.method, spec.options]}


def run(config: DictConfig) -> int:
    """Measure what is not recorded yet; return how many specs, over all states, were measured."""
    results = Path(config.paths.results)
    check(config)
    specs = specs_of(config)
    provenance.commit()
    record.check_writable(results)
    if config.hardware.threads:
        torch.set_num_threads(config.hardware.threads)
    data = build.dataset(config)
    of_states = [Spec(NOISE, "vanilla", {}), Spec(SPECTRUM, "vanilla", {})]
    todo = [
        (at, step, spec)
        for at, step in steps(config, data).items()
        for spec in [*of_states, *specs]
        if config.force or not _is_done(config, at, step, spec)
    ]
    skipped = len(config.at) * (len(specs) + len(of_states)) - len(todo)
    if skipped:
        print(f"recorded already, skipped (force=true measures again): {skipped} of {config.name}")
    if todo:
        _measure(config, data, todo, results)
    return len(todo)


def rows_for(config: DictConfig, results: Path) -> list[record.Row]:
    """Return the newest row of each total that a config asks for; needs no data."""
    wanted = [settings(config, str(at), 0, spec) for at in config.at for spec in specs_of(config)]
    keys = {record.config_hash({**each, "step": None}) for each in wanted}
    found: dict[tuple[str, str], record.Row] = {}
    for row in sorted(record.load(results, config.name), key=lambda row: row.utc):
        key = record.config_hash({**row.config, "step": None})
        if key in keys:
            found[key, row.metric] = row
    return list(found.values())


def _is_done(config: DictConfig, at: str, step: int, spec: Spec) -> bool:
    last = {NOISE: "batch_noise", SPECTRUM: "low_share"}.get(spec.label, LAST)
    wanted = settings(config, at, step, spec)
    return record.is_done(Path(config.paths.results), config.name, wanted, last)


def _measure(
    config: DictConfig, data: Data, todo: list[tuple[str, int, Spec]], results: Path
) -> None:
    trained = states(config, data)
    batches = list(_batches(config, data))
    console = Console(stderr=True)
    live = config.progress and sys.stderr.isatty()
    with Progress(console=console, disable=not live) as bar:
        task = bar.add_task("gradient errors", total=len(todo))
        for at, step, spec in todo:
            model = at_state(config, data, trained[at])
            rows = list(_rows(config, data, (at, step, spec), model, batches))
            record.append(results, record.complete(rows))
            if config.progress and rows[-1].metric == LAST:
                text = f"{spec.label} at {at}: error {rows[-1].value:.4f}"
                console.print(text, highlight=False)
            bar.advance(task)


def _batches(config: DictConfig, data: Data) -> Iterator[Batch]:
    """Yield the batches of an epoch that the training did not see."""
    needed = config.batches + config.warmup
    layout = torch.channels_last if config.hardware.channels_last else torch.contiguous_format
    size, seed = config.batch, config.seed
    for epoch in itertools.count(config.optim.epochs):
        for x, y in data.train.batches(size, epoch, seed, train=True, drop_last=True):
            if not needed:
                return
            needed -= 1
            x = x.to(config.hardware.device).contiguous(memory_format=layout)
            yield x, y.to(config.hardware.device)


def _rows(
    config: DictConfig,
    data: Data,
    where: tuple[str, int, Spec],
    model: nn.Module,
    batches: list[Batch],
) -> Iterator[record.Row]:
    at, step, spec = where
    common = {
        "experiment": config.name,
        "method": spec.method,
        "options": spec.options,
        "model": config.model.name,
        "dataset": data.name,
        "seed": config.seed,
        "scale": config.scale,
        "data_sha256": data.sha256,
    }
    own = settings(config, at, step, spec)

    def row(metric: str, unit: str, values: list[float], **more: object) -> record.Row:
        found = Quantiles.of(values)
        spread = {"value": found.p50, "p20": found.p20, "p80": found.p80, "n": found.n}
        return record.Row(metric=metric, unit=unit, config={**own, **more}, **spread, **common)

    compared = batches[: config.batches]
    if spec.label == NOISE:
        yield row("batch_noise", "1", [batch_noise(model, batches)])
    elif spec.label == SPECTRUM:
        inputs = spectrum.inputs_of_convolutions(model, compared[0][0])
        low = {layer: spectrum.low_share(maps, 8) for layer, maps in inputs.items()}
        for layer, maps in inputs.items():
            for band, share in spectrum.shares(maps).items():
                yield row("energy_share", "1", [share], layer=layer, band=band)
            yield row("low_share", "1", [low[layer]], layer=layer)
        yield row("low_share", "1", list(low.values()))  # over the layers
    else:
        method = learnt(model, resolve(spec.method, **spec.options), batches[config.batches :])
        ledger = ledger_of(model, method, compared[0][0])
        yield row("saved_bytes", "B", [ledger.saved_bytes])
        yield row("original_bytes", "B", [ledger.original_bytes])
        yield row("bits_per_element", "bit", [32 / ledger.ratio])
        found = [
            division.gradient_error(model, method, batch, F.cross_entropy, config.draws)
            for batch in compared
        ]
        if spec.label in config.layers:
            for layer, values in by_layer(model, found).items():
                yield row("layer_error", "1", values, layer=layer)
        for name in _TOTALS:
            yield row(_NAMES[name], "1", [getattr(error, name) for error in found])


def learnt(model: nn.Module, method: Method, batches: list[Batch]) -> Method:
    """Let a method that learns from gradients do so, on a network that stands still."""
    if not method.learns:
        return method
    probe = division.compress(copy.deepcopy(model), method)
    method.hurry()
    for x, y in batches:
        with unchanged(probe):
            probe.zero_grad(set_to_none=True)
            F.cross_entropy(probe(x), y).backward()
    division.restore(probe)
    return method


def ledger_of(model: nn.Module, method: Method, x: Tensor) -> Ledger:
    """Return what a method holds for one batch."""
    return division.measure(division.compress(copy.deepcopy(model), copy.deepcopy(method)), x)


def by_layer(model: nn.Module, found: list[GradientError]) -> dict[str, list[float]]:
    """Return the errors of the weights of layers (not of norms and biases), one a batch."""
    weights = [name for name, p in model.named_parameters() if p.dim() > 1]
    tables = [{layer.name: layer.relative for layer in error.layers} for error in found]
    return {
        name.removesuffix(".weight"): [table[name] for table in tables if name in table]
        for name in weights
    }


def batch_noise(model: nn.Module, batches: list[Batch]) -> float:
    """Return how far the gradient of one batch is from the mean over many, relative to itself.

    The error of sampling that SGD lives with anyway, on the scale of the errors of compression.
    """
    probe, gradients = copy.deepcopy(model), []
    for x, y in batches:
        with unchanged(probe):
            probe.zero_grad(set_to_none=True)
            F.cross_entropy(probe(x), y).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in probe.parameters()]).double())
    all_of_them = torch.stack(gradients)
    spread = all_of_them.var(0).sum().sqrt()  # n - 1: the mean is of these very batches
    return float(spread / all_of_them.square().sum(1).mean().sqrt())


@hydra.main(version_base="1.3", config_path="../configs", config_name="errors")
def main(config: DictConfig) -> None:
    """Measure and record."""
    with one_sentence():
        count = run(config)
    print(f"{count} measured; rows in {config.paths.results}/runs/{config.name}.jsonl")


if __name__ == "__main__":
    check_overrides(sys.argv[1:], "errors")
    main()
