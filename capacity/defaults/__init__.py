"""Ship the pool and the demand that the planner uses when none is given; configs/ links to the files."""

from __future__ import annotations

from importlib import resources

POOL, DEMAND = "pool.csv", "demand.toml"


def default_text(name: str) -> str:
    """Return the text of one of the two files."""
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
