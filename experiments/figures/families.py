"""Families of DIVISION's settings: those that share a line or a marker in a figure."""

from collections.abc import Mapping

from experiments.figures import style

PUBLISHED = {"align": "reference", "share": False, "fine_bits": 2}
# Colour, marker, and whether it is filled; what is not in the paper has a colour of its own.
LOOKS = {
    "": (style.VERMILION, "s", True),
    "as published": (style.VERMILION, "s", False),
    "recompute": (style.WINE, "o", True),
    "recompute deep": (style.WINE, "o", False),
    "budget": (style.WINE, "p", False),
    "budget, recompute": (style.WINE, "p", True),
    "budget, recompute deep": (style.WINE, "H", True),
}


def family(options: Mapping[str, object]) -> str:
    """Name the family of a setting of DIVISION; the plain one has no name.

    >>> family({"recompute": "deep", "bits": 3}), family({"bits": 3})
    ('recompute deep', '')
    """
    if PUBLISHED.items() <= options.items():
        return "as published"
    parts = []
    if options.get("budget") is not None or options.get("ratio") is not None:
        parts.append("budget")
    if options.get("recompute"):
        parts.append("recompute deep" if options["recompute"] == "deep" else "recompute")
    return ", ".join(parts)


def name_of(method: str, options: Mapping[str, object]) -> str:
    """Name a setting of a method, as a legend does.

    >>> name_of("division", {"recompute": True, "bits": 3})
    'division, recompute, 3 bits'
    """
    own = family(options) if method == "division" else ""
    if not own:
        return method
    bits = options.get("bits")
    return f"{method}, {own}" + ("" if bits in (None, 2) else f", {bits} bits")


def look(method: str, name: str) -> tuple[str, str, bool]:
    """Return the colour and marker of a method's family, and whether the marker is filled."""
    if method == "division" and name in LOOKS:
        return LOOKS[name]
    return style.colour(method), style.marker(method), True
