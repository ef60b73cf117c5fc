"""Compute how long a version takes to reach every receiver, from the links alone: the fluid bound of each topology.

Plans, the coordinator's relay planning and the simulator all take the bound from here.

In the fluid model bytes flow without latency or loss and only access links limit them; pieces are small, so that a
receiver passes on what it has while the rest arrives. For ``n`` receivers with uplinks ``u_i`` and downlinks ``d_i``,
a source with uplink ``U0`` and ``M`` bytes:

stripes  All copies finish within tau iff, with ``rho = eta M / tau``: ``U0 >= rho``, every ``d_i >= rho`` and
         ``sum(rho - u_i) <= U0``. With eta = 1 that is the bound of Kumar and Ross, "Peer-assisted file distribution:
         the minimum distribution time" (2006), equation 1; eta is what a finite number of trees costs. In place of
         the slowest downlink's rate for all, ``fluid_rate`` gives fast receivers the rate that slow ones leave unused.
tree     Every inner node sends whole copies at the common rate r, so it feeds ``floor(u_i / r)`` others. A tree of
         rate r exists iff ``U0 >= r``, every ``d_i >= r`` and ``floor(U0 / r) + sum floor(u_i / r) >= n``: hang nodes
         on in order of falling uplink, then no node that can feed another takes a place without giving one.
chain    Each receiver feeds the next; the one with the slowest uplink is last. The rate is the slowest link of all.
star     The source sends every copy: ``U0 / n`` each, or the slowest downlink. The bound of the design notes on
         capacity, and of every system that serves weights from one machine.

A receiver that may not relay counts with ``u_i = 0``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from capacity.model.topologies import Topology

Rates = NDArray[np.float64]

#: 1 / stripes -> T / fluid bound, measured in the design notes on capacity with asymmetric links. The loss of whole
#: copies explains it: a node with ``u / (rho / k)`` places uses the floor of it, half a place less on average, of about
#: k places that each receiver needs: 1 + 1 / (2k) = 1.5, 1.125, 1.0625, 1.031.
_ETA_BY_INVERSE_STRIPES = ((0.0, 1.0), (1 / 16, 1.03), (1 / 8, 1.06), (1 / 4, 1.13), (1.0, 1.45))
_BISECTIONS = 60  # relative, of a tree's rate: to the last bit of a float64


def stripe_factor(topology: Topology) -> float:
    """Return eta of ``rho = eta M / tau``: the cost of a finite number of stripes over the fluid bound; no unit.

    1 for a tree, a chain and a star, whose bounds count whole copies and hold as they stand. Between the measured
    numbers of stripes it is interpolated in 1 / stripes, in which the loss of whole copies is linear.
    """
    if topology.shape != "stripes":
        return 1.0
    if topology.stripes < 1:
        raise ValueError("stripes must be at least 1")
    inverse, eta = zip(*_ETA_BY_INVERSE_STRIPES, strict=True)
    return float(np.interp(1.0 / topology.stripes, inverse, eta))


def common_rate(source_upload: float, uploads_total: float, receivers: int) -> float:
    """Return the bytes a second that each of ``receivers`` can get at once, where their downlinks limit nothing.

    The bound of Kumar and Ross (2006, equation 1): the source sends each byte at least once, and all uplinks together
    send every copy.
    """
    return min(source_upload, (source_upload + uploads_total) / receivers)


def common_seconds(size_bytes: float, source_upload: float, uploads_total: float, receivers: int) -> float:
    """Return the seconds until every receiver has ``size_bytes`` at ``common_rate``.

    Equation 1 as the paper states it. It is not written as a division by the rate, because that rounds the last bit
    differently, and the simulator, whose digests must not change, adds these seconds to its clock.
    """
    return max(size_bytes / source_upload, receivers * size_bytes / (source_upload + uploads_total))


def fluid_rate(source_upload: float, uploads: Sequence[float], downloads: Sequence[float]) -> float:
    """Return the bytes a second for every receiver that no schedule exceeds, where slower downlinks take what they can.

    Where every downlink takes that much, it is ``common_rate``.
    """
    total = source_upload + sum(uploads)
    return min(source_upload, level_for(total, ((1.0, download) for download in downloads)))


def level_for(budget: float, receivers: Iterable[tuple[float, float]]) -> float:
    """Return the largest rate R with ``sum(weight * min(R, limit)) <= budget`` over receivers (weight, limit).

    It is inf where the budget suffices for all limits.
    """
    ordered = sorted(receivers, key=lambda one: one[1])
    weight = sum(one[0] for one in ordered)
    for own_weight, limit in ordered:
        if budget <= weight * limit:
            return budget / weight if weight > 0 else math.inf
        budget -= own_weight * limit
        weight -= own_weight
    return math.inf


def broadcast_rate(source_upload: float, uploads: Rates, downloads: Rates, topology: Topology) -> float:
    """Return the bytes a second at which every receiver gets its copy at once; ``broadcast_seconds`` is M over it.

    Returns:
        inf without receivers, 0.0 where the shape cannot reach them all.
    """
    uploads, downloads = np.asarray(uploads, np.float64), np.asarray(downloads, np.float64)
    _check(source_upload, uploads, downloads)
    receivers = uploads.size
    if receivers == 0:
        return math.inf
    ends = min(source_upload, float(downloads.min()))
    match topology.shape:
        case "stripes":
            return min(ends, common_rate(source_upload, float(uploads.sum()), receivers)) / stripe_factor(topology)
        case "tree":
            return whole_copies_rate(np.append(uploads, source_upload), ends, receivers)
        case "chain":
            links = float(np.partition(uploads, 1)[1]) if receivers > 1 else math.inf
            return min(ends, links)
        case "star":
            return min(source_upload / receivers, float(downloads.min()))
        case _:
            assert_never(topology.shape)


def broadcast_seconds(
    update_bytes: float, source_upload: float, uploads: Rates, downloads: Rates, topology: Topology
) -> float:
    """Return T_bcast, the seconds until the last receiver holds its copy; the time to verify and load it is excluded.

    Args:
        update_bytes: M, of one version: a keyframe, or a delta.
        source_upload: U0, bytes per second.
        uploads: shape [n], bytes per second of each receiver; 0 where it may not relay.
        downloads: shape [n], bytes per second.

    Returns:
        0.0 without receivers or bytes, inf where the shape cannot reach them all.

    Raises:
        ValueError: a rate or the size is negative or not a number, or the arrays differ in length.
    """
    if not update_bytes >= 0:
        raise ValueError("update_bytes must not be negative")
    rate = broadcast_rate(source_upload, uploads, downloads, topology)
    if update_bytes == 0:
        return 0.0
    return update_bytes / rate if rate > 0 else math.inf


def tree_places(source_upload: float, uploads: Rates, rate: float) -> tuple[int, NDArray[np.int64]]:
    """Return the most receivers that the source and each receiver feed in a tree of this rate: ``floor(u / rate)``."""
    return math.floor(source_upload / rate), np.floor(np.asarray(uploads, np.float64) / rate).astype(np.int64)


def whole_copies_rate(uploads: Rates, rate_max: float, copies: int) -> float:
    """Return the largest rate r <= rate_max with ``sum floor(u_i / r) >= copies``: all send whole copies at rate r.

    The sum only falls as r grows, at the rates ``u_i / j``: bisect to a rate that holds, then step up to the next of
    these, which holds too.

    Args:
        uploads: shape [senders], bytes per second, the source's among them.
    """
    if rate_max <= 0 or not uploads.any():
        return 0.0

    def reaches_all(rate: float) -> bool:
        with np.errstate(over="ignore"):  # so slow a rate that every sender can send any number of copies
            return float(np.floor(uploads / rate).sum()) >= copies

    if reaches_all(rate_max):
        return rate_max
    # Before rounding down there are copies + senders places at this rate; rounding takes less than one of each sender.
    low, high = float(uploads.sum()) / (copies + uploads.size), rate_max
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if reaches_all(middle) else (low, middle)
    sending = uploads[uploads >= low]
    return float((sending / np.floor(sending / low)).min())


def _check(source_upload: float, uploads: Rates, downloads: Rates) -> None:
    if uploads.shape != downloads.shape or uploads.ndim != 1:
        raise ValueError("uploads and downloads must be one figure per receiver")
    if not source_upload >= 0 or not (uploads >= 0).all() or not (downloads >= 0).all():
        raise ValueError("rates must not be negative or missing")
