"""Per-site choice: patterns of module paths, each with options of its own or None for stock.

A pattern is matched part by part ("blocks.*.attn") and covers everything below what it names. Of
several that match, the most specific wins: the longest, then the one with more letters that are no
wildcards.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

T = TypeVar("T")


def covers(pattern: str, path: str) -> bool:
    """Tell whether a pattern names a module or one above it.

    >>> covers("blocks.*.attn", "blocks.3.attn.qkv"), covers("blocks.*.attn", "blocks.3.mlp")
    (True, False)
    """
    wanted, parts = pattern.split("."), path.split(".")
    return len(wanted) <= len(parts) and all(map(fnmatchcase, parts, wanted))


def most_specific(choices: Mapping[str, T], path: str, otherwise: T) -> T:
    """Return the choice of the most specific pattern that covers a path."""
    matching = [pattern for pattern in choices if covers(pattern, path)]
    return choices[max(matching, key=_specificity)] if matching else otherwise


def check_patterns(patterns: Iterable[str], paths: Iterable[str]) -> None:
    """Raise ValueError for a pattern that covers no module."""
    known = [path for path in paths if path]
    for pattern in patterns:
        if not any(covers(pattern, path) for path in known):
            some = ", ".join(known[:8])
            raise ValueError(f"overrides: {pattern!r} matches no module; there are {some}, ...")


def _specificity(pattern: str) -> tuple[int, int]:
    return pattern.count("."), sum(letter not in "*?[]" for letter in pattern)
