"""Name the shapes in which copies of a version travel; capacity/model/broadcast_bound.py bounds the time of each.

Source of the stripes: ECHO-2 (arXiv 2602.02192), section on peer-assisted pipelined broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["stripes", "tree", "chain", "star"]


@dataclass(frozen=True, slots=True)
class Topology:
    """A shape in which copies travel.

    Args:
        stripes: trees that share the chunks; 1 for a tree, and of no meaning for a chain or a star.
    """

    shape: Shape = "stripes"
    stripes: int = 8

    def __str__(self) -> str:
        return f"stripes={self.stripes}" if self.shape == "stripes" else self.shape
