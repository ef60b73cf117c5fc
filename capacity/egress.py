"""Who sends the copies of a version, and what their egress costs.

Each receiver's copy is sent by somebody: n copies a version, whatever the shape. Who sends them decides the bill, since
the price of an outgoing byte runs from nothing (a home line) to 0.15 $/GB (a cloud): one outgoing copy of an 8B bf16
version each minute at 0.09 $/GB costs 89 $/h (design notes on capacity).

stripes  In proportion to uplinks, the source at least one copy: with real uplinks as weights all senders finish
         together (Mutualcast; Li, Chou and Zhang 2005). Where the relay row binds this is every uplink full, so that
         worker i sends ``u_i T_bcast / eta`` bytes a version: its column in the programme.
tree     Whole copies by the places of the fastest tree, filled from the fastest uplink down.
chain    Everybody but the last sends one copy.
star     The source sends all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from capacity.broadcast_bound import broadcast_rate, stripe_factor, tree_places
from capacity.topologies import Topology

GB = 1e9  # bytes in the unit of egress prices
SECONDS_PER_HOUR = 3600.0

Rates = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Egress:
    """Dollars an hour for what is sent: by the origin, and by each worker, shape [n], in the order given."""

    origin_usd_per_hour: float
    workers_usd_per_hour: NDArray[np.float64]

    @property
    def usd_per_hour(self) -> float:
        return self.origin_usd_per_hour + float(self.workers_usd_per_hour.sum())


def copies_sent(
    source_upload: float, uploads: Rates, downloads: Rates, topology: Topology
) -> tuple[float, NDArray[np.float64]]:
    """Copies of each version that the source sends, and each receiver, shape [n]; together n.

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
        return 0.0, np.zeros(0)
    match topology.shape:
        case "star":
            return float(receivers), np.zeros(receivers)
        case "chain":
            sent = np.ones(receivers)
            sent[int(uploads.argmin())] = 0.0
            return 1.0, sent
        case "tree":
            rate = broadcast_rate(source_upload, uploads, downloads, topology)
            return _tree_copies(source_upload, uploads, rate)
        case "stripes":
            return _proportional_copies(source_upload, uploads)
        case _:
            assert_never(topology.shape)


def egress_usd_per_hour(
    *,
    update_bytes: float,
    publish_period_s: float,
    source_upload: float,
    source_usd_per_gb: float,
    uploads: Rates,
    downloads: Rates,
    usd_per_gb: Rates,
    topology: Topology,
) -> Egress:
    """What a chosen set pays for its traffic.

    Args:
        update_bytes: M.
        publish_period_s: seconds between two versions: kappa T_train.
        usd_per_gb: shape [n], price of what each receiver sends; 1 GB = 1e9 bytes.
        source_upload, uploads, downloads: see copies_sent.

    Raises:
        ValueError: the period is not positive; see also broadcast_bound.broadcast_rate.
    """
    if not publish_period_s > 0:
        raise ValueError("publish_period_s must be positive")
    source_copies, copies = copies_sent(source_upload, uploads, downloads, topology)
    gb_per_hour_per_copy = update_bytes / GB * SECONDS_PER_HOUR / publish_period_s
    return Egress(
        source_copies * gb_per_hour_per_copy * source_usd_per_gb,
        copies * gb_per_hour_per_copy * np.asarray(usd_per_gb, np.float64),
    )


def share_usd_per_hour(
    *, t_bcast_s: float, publish_period_s: float, uploads: Rates, usd_per_gb: Rates, topology: Topology
) -> NDArray[np.float64]:
    """What a receiver's uplink costs while it is full for the whole broadcast: the cost column of the programme.

    That is what it sends where the relay row binds, and more than it sends where there is uplink to spare.

    Args:
        t_bcast_s: tau, what the broadcast may take.
        uploads: shape [n], bytes per second; 0 where it may not relay.

    Returns:
        Shape [n], dollars per hour.
    """
    uploads = np.asarray(uploads, np.float64)
    if topology.shape == "star":
        return np.zeros(uploads.size)
    sent_gb = uploads * t_bcast_s / stripe_factor(topology) / GB
    return np.asarray(sent_gb * np.asarray(usd_per_gb, np.float64) * SECONDS_PER_HOUR / publish_period_s)


def _proportional_copies(source_upload: float, uploads: Rates) -> tuple[float, NDArray[np.float64]]:
    receivers, relayed_upload = uploads.size, float(uploads.sum())
    if relayed_upload == 0.0:
        return float(receivers), np.zeros(receivers)
    source_copies = max(1.0, receivers * source_upload / (source_upload + relayed_upload))
    return source_copies, uploads * ((receivers - source_copies) / relayed_upload)


def _tree_copies(source_upload: float, uploads: Rates, rate: float) -> tuple[float, NDArray[np.float64]]:
    receivers = uploads.size
    if rate <= 0.0:
        return float(receivers), np.zeros(receivers)
    # A rate is one of the u_i / j: take a hair less, or rounding would lose a place.
    source_places, places = tree_places(source_upload, uploads, rate * (1 - 1e-12))
    fastest_first = np.argsort(-uploads, kind="stable")
    source_copies = min(receivers, source_places)
    filled = np.minimum(np.cumsum(places[fastest_first]), receivers - source_copies)
    sent = np.zeros(receivers)
    sent[fastest_first] = np.diff(filled, prepend=0)
    return float(source_copies), sent
