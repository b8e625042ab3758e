"""The slot table against torch's own list of derivatives: names cannot drift unnoticed."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torchgen
import yaml

from division.slots import SLOTS


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


@pytest.mark.parametrize("node", SLOTS)
def test_every_node_and_slot_exists(node: str, known: dict[str, set[str]]) -> None:
    name = re.sub(r"(\d)d", r"\1D", node)
    lookup = {re.sub(r"(\d)d", r"\1D", key): value for key, value in known.items()}
    assert name in lookup
    assert set(SLOTS[node]) <= lookup[name]


def test_a_wrong_name_would_be_noticed(known: dict[str, set[str]]) -> None:
    assert len(known) > 500
    assert "ReluBackward1" not in known
    assert "weight" not in known["ReluBackward0"]
