"""DDP and FSDP2 on two gloo ranks: gradients as in one process, gathered weights left alone."""

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import division

RANKS = 2


class Net(nn.Module):
    """Convolutions and a token mixer; no batch norm, whose statistics would differ by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.block(tokens).mean(1))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(8, 3, 16, 16, generator=generator), torch.arange(8) % 5


def local_gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        whole = parameter.grad
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        gradients[name.removeprefix("module.")] = whole.detach().clone()
    return gradients


def wrap(kind: str, model: nn.Module, method: str) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(division.compress(model, method))
    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(model.block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return division.compress(model, method)


def rank_main(rank: int, kind: str, method: str, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = Net()
    x, y = (part.chunk(RANKS)[rank] for part in data())
    alone = local_gradients(division.compress(copy.deepcopy(model), method), x, y)
    wrapped = wrap(kind, model, method)
    together = local_gradients(wrapped, x, y)
    for gradient in alone.values():
        dist.all_reduce(gradient)
        gradient /= RANKS
    ledger = division.measure(wrapped, x)
    weights = {tuple(p.shape) for p in Net().parameters() if p.dim() > 1}
    packed = {row.shape for row in ledger.rows if row.compressed}
    if rank == 0:
        result = {"alone": alone, "together": together, "ratio": ledger.ratio}
        torch.save({**result, "weights": sorted(packed & weights)}, f"{folder}/result.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["identity", "division"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_gradients_are_the_mean_of_what_the_ranks_find_alone(
    kind: str, method: str, tmp_path: Path
) -> None:
    torch.multiprocessing.spawn(rank_main, (kind, method, str(tmp_path)), RANKS)
    result = torch.load(tmp_path / "result.pt", weights_only=True)
    assert result["alone"].keys() == result["together"].keys()
    for name, gradient in result["alone"].items():
        torch.testing.assert_close(result["together"][name], gradient, rtol=1e-5, atol=1e-6)
    assert result["weights"] == []
    if method == "division":
        assert result["ratio"] > 5
