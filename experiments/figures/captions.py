"""The page of the figures, results/figures/README.md: read back by name."""


def read_captions(page: str) -> dict[str, str]:
    """Return the captions of a page, by the name of the figure."""
    found = {}
    for part in page.split("\n## ")[1:]:
        lines = part.strip().split("\n")
        found[lines[0]] = lines[-1]
    return found
