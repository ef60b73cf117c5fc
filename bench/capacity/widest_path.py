"""Find relay paths over given links: the path, and the tree, whose slowest link is the fastest.

Where links rather than access lines limit (between data centres), a blob goes from region to region: each relay passes
on what it has while the rest arrives, so a receiver's rate is that of the slowest link on its path. The tree of widest
paths from one source is a maximum spanning tree seen from it; Dijkstra's algorithm with min for + and max for min finds
it (Pollack, "The maximum capacity through a network", 1960).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class RelayTree:
    """The path of each node from the source.

    Args:
        parents: sender to each node, shape [nodes], int64; the source is its own parent, -1: no node can reach it.
        bytes_per_second: rate of the slowest link on each node's path, shape [nodes], float64; inf at the source, 0
            where there is no path.
    """

    parents: NDArray[np.int64]
    bytes_per_second: NDArray[np.float64]


def widest_paths(links: NDArray[np.float64], source: int) -> RelayTree:
    """Return the tree of widest paths.

    Args:
        links: bytes per second from row to column, shape [nodes, nodes]; 0 where there is no link.

    Raises:
        ValueError: the matrix is not square, has a negative or missing entry, or there is no such source.
    """
    _check(links, source)
    nodes = len(links)
    widths = np.zeros(nodes)
    parents = np.full(nodes, -1, np.int64)
    widths[source], parents[source] = math.inf, source
    queue = [(-math.inf, source)]
    done = np.zeros(nodes, bool)
    while queue:
        _, node = heapq.heappop(queue)
        if done[node]:
            continue
        done[node] = True
        reached = np.minimum(widths[node], links[node])
        for other in np.flatnonzero((reached > widths) & ~done):
            widths[other], parents[other] = reached[other], node
            heapq.heappush(queue, (-float(reached[other]), int(other)))
    return RelayTree(parents, widths)


def direct_seconds(update_bytes: float, links: NDArray[np.float64], source: int) -> float:
    """Return the seconds until every node has its copy over its own link from the source; inf if one has no link.

    Raises:
        ValueError: see widest_paths.
    """
    _check(links, source)
    return _seconds(update_bytes, np.delete(links[source], source))


def relayed_seconds(update_bytes: float, links: NDArray[np.float64], source: int) -> float:
    """Return the seconds until the last node has its copy over the tree of widest paths; inf if one has no path.

    Raises:
        ValueError: see widest_paths.
    """
    return _seconds(update_bytes, np.delete(widest_paths(links, source).bytes_per_second, source))


def _seconds(update_bytes: float, rates: NDArray[np.float64]) -> float:
    slowest = float(rates.min()) if rates.size else math.inf
    return update_bytes / slowest if slowest > 0 else math.inf


def _check(links: NDArray[np.float64], source: int) -> None:
    if links.ndim != 2 or links.shape[0] != links.shape[1] or not (links >= 0).all():
        raise ValueError("links must be a square matrix of rates that are not negative")
    if not 0 <= source < len(links):
        raise ValueError("the source must be one of the nodes")
