"""The slot table against torch's own list of derivatives: names cannot drift unnoticed."""

import inspect
import re
from collections import Counter
from pathlib import Path

import pytest
import torchgen
import yaml

from division.again import _LAYERS, _weight_and_bias
from division.attention import AS_A_WHOLE
from division.fused import FUSED, INPUTS
from division.slots import SLOTS

SAVED: dict[str, set[str]] = {
    **{node: {"result"} for node in AS_A_WHOLE.keys() - FUSED.keys()},
    **{node: {*INPUTS, *kind.outputs, "dropout_p", "is_causal"} for node, kind in FUSED.items()},
}


def asked_of(node: str) -> set[str]:
    """Return what a layer that is computed again asks of its node, by its source."""
    source = inspect.getsource(_LAYERS[node])
    if "_weight_and_bias(" in source:
        source += inspect.getsource(_weight_and_bias)
    asked = set(re.findall(r"_saved_(\w+)", source))
    # Batch norms call the same number by two names: each node has one of them.
    return asked - {"epsilon" if node.startswith("Native") else "eps"}


NAMED = {
    node: set(SLOTS.get(node, ()))
    | SAVED.get(node, set())
    | (asked_of(node) if node in _LAYERS else set())
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


def test_what_layers_ask_for_is_found_in_their_source() -> None:
    assert asked_of("NativeLayerNormBackward0") == {"result1", "result2", "weight", "bias"}
    assert asked_of("GeluBackward0") == {"approximate"}
    assert {"weight", "training", "eps"} <= asked_of("NativeBatchNormBackward0")
    assert {"group", "weight"} <= asked_of("NativeGroupNormBackward0")


def test_a_wrong_name_would_be_noticed(known: dict[str, set[str]]) -> None:
    assert len(known) > 500
    assert "ReluBackward1" not in known
    assert "weight" not in known["ReluBackward0"]
