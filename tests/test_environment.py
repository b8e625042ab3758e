"""The environment files agree with each other, with what is installed, and name no machine."""

import os
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!+]+)")
TARGET = re.compile(r"^([\w-]+):.*## (.+)$", re.MULTILINE)
# The root of a path, not a folder inside one: no word, dot or dash stands before its slash.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|tmp|root|home|opt|Users)/[\w.-]+")


def pins(lines):
    """Map package to version; a line that is no plain pin fails."""
    found = {}
    for line in lines:
        match = PIN.fullmatch(line)
        assert match, f"not a plain name==version: {line!r}"
        name = canonicalize_name(match[1])
        assert name not in found, f"{name} is pinned twice"
        found[name] = match[2]
    return found


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def direct(project):
    extras = project["optional-dependencies"].values()
    listed = [*project["dependencies"], *(line for extra in extras for line in extra)]
    return [Requirement(line) for line in listed]


@pytest.fixture(scope="module")
def locked():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return pins(line for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def conda():
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


@pytest.fixture(scope="module")
def conda_pip(conda):
    (section,) = [entry["pip"] for entry in conda if isinstance(entry, dict)]
    return section


def test_lock_satisfies_every_direct_dependency(direct, locked):
    for need in direct:
        have = locked.get(canonicalize_name(need.name))
        assert have is not None, f"constraints.txt lacks {need.name}: run make lock"
        assert need.specifier.contains(have), f"constraints.txt has {need.name} {have}, not {need}"


def test_every_direct_dependency_has_a_range(direct):
    for need in direct:
        bounds = {part.operator for part in need.specifier}
        assert bounds == {">=", "<"}, f"{need} is not a range from >= to <"


def test_conda_pins_are_the_locked_ones(direct, locked, conda_pip):
    pinned = pins(line for line in conda_pip if not line.startswith("-"))
    wanted = {canonicalize_name(need.name) for need in direct}
    assert pinned == {name: locked.get(name) for name in wanted}


def test_conda_installs_the_project_under_the_lock(project, conda_pip):
    options = [line for line in conda_pip if line.startswith("-")]
    extras = ",".join(project["optional-dependencies"])
    assert options == ["-c constraints.txt", f"-e .[{extras}]"]


def test_conda_python_is_supported(project, conda):
    (line,) = [entry for entry in conda if isinstance(entry, str) and entry.startswith("python=")]
    assert SpecifierSet(project["requires-python"]).contains(line.removeprefix("python="))


def test_installed_packages_satisfy_the_core_ranges(project):
    for line in project["dependencies"]:
        need = Requirement(line)
        have = version(need.name)
        assert need.specifier.contains(have), f"{need.name} {have} is installed, not {need}"


def test_help_lists_every_documented_target():
    makefile = (ROOT / "Makefile").read_text()
    documented = dict(TARGET.findall(makefile))
    # Inside `make test` the outer make would hand its own flags down.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["make", "-C", str(ROOT), "--no-print-directory", "help"]
    shown = subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout
    assert dict(line.split(maxsplit=1) for line in shown.splitlines()) == documented

    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split()
    assert set(phony) == set(documented), "a target lacks its ## comment or its .PHONY entry"
    promised = {"setup", "test", "test-slow", "lint", "format", "benchmark-kernels"}
    assert promised <= documented.keys()


@pytest.mark.parametrize("folder", ["work", "tmp", "root", "home", "opt", "Users"])
@pytest.mark.parametrize("before", ["", " ", '"', "=", "file://"])
def test_machine_path_pattern_finds(before, folder):
    assert MACHINE_PATH.search(f"{before}/{folder}/name")


@pytest.mark.parametrize("text", ["results/tmp/x", "../work/x", "example.org/home/x", "a /tmp b"])
def test_machine_path_pattern_passes_over(text):
    assert not MACHINE_PATH.search(text)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_file_names_a_machine_path():
    # Files about to be added count too, so that a path is found before it is committed.
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = set(listed.split("\0")[:-1])
    assert Path(__file__).relative_to(ROOT).as_posix() in names
    found = []
    for name in sorted(names):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" in content:  # an image or the like
            continue
        text = content.decode("utf-8", errors="replace")
        found += [f"{name}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert not found, "\n".join(found)
