"""How long a version takes to reach every chosen worker, by the shape that the copies travel in.

The fluid bound: with stripes over many trees all copies finish within tau iff, with rho = eta M / tau, the source's
uplink is at least rho, every receiver's downlink is at least rho, and ``sum(rho - u_i) <= U0`` over the receivers.
Sources: Kumar and Ross, "Peer-assisted file distribution: the minimum distribution time" (2006); ECHO-2 (arXiv
2602.02192), section on peer-assisted pipelined broadcast; the factors eta were measured (docs/capacity.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["stripes", "tree", "chain", "star"]


@dataclass(frozen=True, slots=True)
class Topology:
    """Args: stripes: trees that share the chunks; 1 for a tree, and of no meaning for a chain or a star."""

    shape: Shape = "stripes"
    stripes: int = 8

    def __str__(self) -> str:
        return f"stripes={self.stripes}" if self.shape == "stripes" else self.shape
