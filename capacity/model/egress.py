"""Decide which members send the copies of a version, and what their egress costs.

Every version is sent n times to n receivers, whatever the shape. The senders decide the bill, because
the price of an outgoing byte runs from nothing (a home line) to 0.15 $/GB (a cloud): one outgoing copy of an 8B bf16
version each minute at 0.09 $/GB costs 89 $/h (design notes on capacity).

There are two answers. ``copies_by_uplink`` models relays that share the work by their links:

stripes  in proportion to uplinks, the source at least one copy: with real uplinks as weights all senders finish
         together (Mutualcast; Li, Chou and Zhang 2005);
tree     whole copies by the places of the fastest tree, filled from the fastest uplink down;
chain    every member but the last sends one copy;
star     the source sends all.

``cheapest_copies`` is the least that the same set can cost: the cheapest senders first, as much as each can send in
time. Where the relay row binds, every uplink is full and the two agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from capacity.model.broadcast_bound import broadcast_rate, tree_places
from capacity.model.topologies import Topology
from capacity.model.units import BYTES_PER_GB, SECONDS_PER_HOUR

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Copies of each version that the source sends, and each receiver, shape [n], in the order given."""

    source: float
    receivers: Floats

    @property
    def total(self) -> float:
        return self.source + float(self.receivers.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Egress:
    """Dollars an hour for the traffic sent by the origin and by each worker, shape [n], in the order given."""

    origin_usd_per_hour: float
    workers_usd_per_hour: Floats

    @property
    def usd_per_hour(self) -> float:
        return self.origin_usd_per_hour + float(self.workers_usd_per_hour.sum())


def copies_by_uplink(source_upload: float, uploads: Floats, downloads: Floats, topology: Topology) -> Copies:
    """Return the copies that each member sends where relays share the work by their links; n copies together.

    Args:
        source_upload: U0, bytes per second.
        uploads: shape [n], bytes per second; 0 where a receiver may not relay, which then sends nothing.
        downloads: shape [n], bytes per second.

    Raises:
        ValueError: see broadcast_bound.broadcast_rate.
    """
    uploads = np.asarray(uploads, np.float64)
    receivers = uploads.size
    if receivers == 0:
        return Copies(0.0, np.zeros(0))
    match topology.shape:
        case "star":
            return Copies(float(receivers), np.zeros(receivers))
        case "chain":
            sent = np.ones(receivers)
            sent[int(uploads.argmin())] = 0.0
            return Copies(1.0, sent)
        case "tree":
            return _tree_copies(source_upload, uploads, broadcast_rate(source_upload, uploads, downloads, topology))
        case "stripes":
            return _proportional_copies(source_upload, uploads)
        case _:
            assert_never(topology.shape)


def cheapest_copies(
    source_capacity: float, source_usd_per_gb: float, capacities: Floats, usd_per_gb: Floats
) -> Copies | None:
    """Return the copies that each member sends at the least cost; the source sends at least one, as it has the version.

    Args:
        source_capacity: copies that the source can send in time.
        capacities: shape [n], copies that each receiver can pass on in time.
        usd_per_gb: shape [n], price of what it sends.

    Returns:
        None where all of them together cannot send n copies in time.
    """
    receivers = len(capacities)
    if receivers == 0:
        return Copies(0.0, np.zeros(0))
    if source_capacity < 1.0:
        return None
    all_capacities = np.append(np.asarray(capacities, np.float64), source_capacity - 1.0)
    cheapest_first = np.argsort(np.append(usd_per_gb, source_usd_per_gb), kind="stable")
    filled = np.minimum(np.cumsum(all_capacities[cheapest_first]), receivers - 1.0)
    if filled[-1] < (receivers - 1.0) * (1 - 1e-9):
        return None
    sent = np.empty(receivers + 1)
    sent[cheapest_first] = np.diff(filled, prepend=0.0)
    return Copies(1.0 + float(sent[-1]), sent[:-1])


def egress_usd_per_hour(
    copies: Copies, *, update_bytes: float, publish_period_s: float, source_usd_per_gb: float, usd_per_gb: Floats
) -> Egress:
    """Return what a set of workers pays for its traffic.

    Args:
        copies: of each version, by sender.
        update_bytes: M, of one version.
        publish_period_s: seconds between two versions: kappa T_train.
        usd_per_gb: shape [n], price of what each receiver sends; 1 GB = 1e9 bytes.

    Raises:
        ValueError: the period is not positive.
    """
    gb_per_hour = gb_per_hour_of_a_copy(update_bytes, publish_period_s)
    return Egress(
        copies.source * gb_per_hour * source_usd_per_gb,
        copies.receivers * gb_per_hour * np.asarray(usd_per_gb, np.float64),
    )


def gb_per_hour_of_a_copy(update_bytes: float, publish_period_s: float) -> float:
    """Return the GB/h that one outgoing copy of every version makes, which is USD/h per USD/GB.

    Raises:
        ValueError: the period is not positive.
    """
    if not publish_period_s > 0:
        raise ValueError("publish_period_s must be positive")
    return update_bytes / BYTES_PER_GB * SECONDS_PER_HOUR / publish_period_s


def _proportional_copies(source_upload: float, uploads: Floats) -> Copies:
    receivers, relayed_upload = uploads.size, float(uploads.sum())
    if relayed_upload == 0.0:
        return Copies(float(receivers), np.zeros(receivers))
    source_copies = max(1.0, receivers * source_upload / (source_upload + relayed_upload))
    return Copies(source_copies, uploads * ((receivers - source_copies) / relayed_upload))


def _tree_copies(source_upload: float, uploads: Floats, rate: float) -> Copies:
    receivers = uploads.size
    if rate <= 0.0:
        return Copies(float(receivers), np.zeros(receivers))
    # The rate is one of the u_i / j: take a hair less, or rounding would lose a place.
    source_places, places = tree_places(source_upload, uploads, rate * (1 - 1e-12))
    fastest_first = np.argsort(-uploads, kind="stable")
    source_copies = min(receivers, source_places)
    filled = np.minimum(np.cumsum(places[fastest_first]), receivers - source_copies)
    sent = np.zeros(receivers)
    sent[fastest_first] = np.diff(filled, prepend=0)
    return Copies(float(source_copies), sent)
