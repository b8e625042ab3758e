"""Where a number comes from: commit, machine and versions, as plain values for a row."""

import functools
import hashlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
_CODE = ("division", "baselines", "experiments", "configs")
_PACKAGES = ("torch", "torchvision", "timm", "numba", "numpy")


@functools.cache
def commit() -> tuple[str, bool]:
    """Return the commit of the code that runs, and whether files differ from it."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return "unknown", True
    # Results are what runs write: they do not make the code another one.
    changed = _git("status", "--porcelain", "--", ".", ":!results")
    return head, bool(changed)


@functools.cache
def code() -> str:
    """Identify the code and configs that run, committed or not; tests and prose do not count."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml"):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def machine() -> dict[str, object]:
    """Describe the hardware well enough to know which rows may stand in one table."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "gpu": gpu,
        "system": platform.system(),
    }


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide numbers."""
    installed = {dist.metadata["Name"].lower() for dist in metadata.distributions()}
    found = {name: metadata.version(name) for name in _PACKAGES if name in installed}
    return {"python": platform.python_version(), **found}


def command() -> str:
    """Return the command that runs, as one would type it."""
    script = Path(sys.argv[0])
    module = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = script.resolve()
    shown = name.relative_to(ROOT) if name.is_relative_to(ROOT) else script.name
    first = f"python -m {module.name}" if module else f"python {shown}"
    return " ".join([first, *sys.argv[1:]])


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
