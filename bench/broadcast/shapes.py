"""Compare each shape of a broadcast with the fluid bound, in the pool of ``bench plan``: T / bound.

Only uplinks limit here: with them all shapes differ, and a slow downlink would limit all alike.

``stripes_8`` counts whole copies: that many trees of a share of the bytes each, every sender's uplink divided into
whole streams. ``eta_8`` is the factor that plans use instead, which keeps their rows linear. ``tree``, ``chain`` and
``star`` are the bounds of those shapes. ``*_ms`` is the time to compute one of them, median of repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from bench.broadcast import plan
from bench.machine import Outcome
from capacity.model.broadcast_bound import Rates, broadcast_rate, stripe_factor, whole_copies_rate
from capacity.model.topologies import Shape, Topology

STRIPES = (1, 2, 4, 8, 16)
SHAPES: tuple[Shape, ...] = ("stripes", "tree", "chain", "star")
REPEATS = 9
_UNBOUNDED = Topology("stripes", 1 << 30)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    origin, *peers = plan.pool(arguments.peers, arguments.seed)
    source = origin.uplink_bytes_per_second or 0.0
    uploads = np.array([node.uplink_bytes_per_second for node in peers], np.float64)
    downloads = np.full(uploads.size, np.inf)
    bound = broadcast_rate(source, uploads, downloads, _UNBOUNDED)
    figures: dict[str, float] = {}
    for stripes in STRIPES:
        figures[f"stripes_{stripes}"] = bound / striped_rate(source, uploads, stripes)
        figures[f"eta_{stripes}"] = stripe_factor(Topology("stripes", stripes))
    for shape in SHAPES:
        topology = Topology(shape)
        rate = broadcast_rate(source, uploads, downloads, topology)
        if shape != "stripes":
            figures[shape] = bound / rate
        figures[f"{shape}_ms"] = _milliseconds(broadcast_rate, source, uploads, downloads, topology)
    return Outcome({"peers": arguments.peers, "seed": arguments.seed}, figures)


def striped_rate(source: float, uploads: Rates, stripes: int) -> float:
    """Return the rate of a receiver of one stream from each of so many trees, if senders send whole streams only."""
    return stripes * whole_copies_rate(np.append(uploads, source), source / stripes, stripes * uploads.size)


def _milliseconds(
    bound: Callable[[float, Rates, Rates, Topology], float],
    source: float,
    uploads: Rates,
    downloads: Rates,
    topology: Topology,
) -> float:
    times_ms = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        bound(source, uploads, downloads, topology)
        times_ms.append((time.perf_counter() - started_s) * 1000.0)
    return median(times_ms)
