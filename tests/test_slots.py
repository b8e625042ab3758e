"""The slot table against torch's own list of derivatives: names cannot drift unnoticed."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torchgen
import yaml

from division.again import _LAYERS
from division.attention import AS_A_WHOLE
from division.fused import FUSED, INPUTS
from division.slots import SLOTS

SAVED: dict[str, set[str]] = {
    **{node: {"result"} for node in AS_A_WHOLE.keys() - FUSED.keys()},
    **{node: {*INPUTS, *kind.outputs, "dropout_p", "is_causal"} for node, kind in FUSED.items()},
    "NativeBatchNormBackward0": {"result1", "result2", "running_mean", "running_var", "eps"},
    "CudnnBatchNormBackward0": {"result1", "result2", "running_mean", "running_var", "epsilon"},
}
NAMED = {
    node: set(SLOTS.get(node, ())) | SAVED.get(node, set())
    for node in dict.fromkeys((*SLOTS, *SAVED, *_LAYERS))
}
ON_CUDA = {
    "CudnnBatchNormBackward0",
    "NativeDropoutBackward0",
    "ScaledDotProductFlashAttentionBackward0",
    "ScaledDotProductEfficientAttentionBackward0",
    "ScaledDotProductCudnnAttentionBackward0",
}


def derivatives() -> dict[str, set[str]]:
    """Map node names to the names their formulas use, as torch's code generator numbers them."""
    path = Path(torchgen.__file__).parent / "packaged/autograd/derivatives.yaml"
    entries = yaml.safe_load(path.read_text())
    nodes: dict[str, set[str]] = {}
    numbers: Counter[str] = Counter()
    for entry in entries:
        function = re.split(r"[.(]", entry["name"])[0].rstrip("_")
        camel = "".join(part[:1].upper() + part[1:] for part in function.split("_"))
        number = numbers[camel]
        numbers[camel] += 1
        formulas = " ".join(str(v) for k, v in entry.items() if k not in ("name", "result"))
        nodes[f"{camel}Backward{number}"] = set(re.findall(r"[a-z_]\w*", formulas))
    return nodes


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    return derivatives()


@pytest.mark.parametrize("node", NAMED)
def test_every_node_and_slot_exists(node: str, known: dict[str, set[str]]) -> None:
    name = re.sub(r"(\d)d", r"\1D", node)
    lookup = {re.sub(r"(\d)d", r"\1D", key): value for key, value in known.items()}
    assert name in lookup
    assert NAMED[node] <= lookup[name]


def test_the_nodes_that_only_a_gpu_builds_are_there() -> None:
    assert NAMED.keys() >= ON_CUDA
    assert all(NAMED[node] for node in ON_CUDA)


def test_a_wrong_name_would_be_noticed(known: dict[str, set[str]]) -> None:
    assert len(known) > 500
    assert "ReluBackward1" not in known
    assert "weight" not in known["ReluBackward0"]
