"""Assign the copies of each version to the members of a chosen set, the cheapest senders first."""

from __future__ import annotations

import numpy as np

from capacity.model.egress import Copies, Egress, cheapest_copies, egress_usd_per_hour
from capacity.planner.columns import Mask
from capacity.planner.programme import Programme


def copies_sent(programme: Programme, chosen: Mask) -> Copies:
    """Return the copies of a version that the origin and each worker, shape [n], send at the least cost.

    Workers of one price share in proportion to what they can send, so that no uplink is full while another is idle.

    Raises:
        ValueError: the set cannot send a copy to each of its workers in time.
    """
    places = np.flatnonzero(chosen)
    sent = np.zeros(len(programme.columns))
    if programme.demand.update_bytes == 0:
        return Copies(0.0, sent)
    feeds, prices = programme.feeds[places], programme.columns.egress_usd_per_gb[places]
    source_usd_per_gb = programme.demand.learner_egress_usd_per_gb
    cheapest = cheapest_copies(programme.origin_feeds, source_usd_per_gb, feeds, prices)
    if cheapest is None:
        raise ValueError("the set cannot send a copy to each of its workers in time")
    for price in np.unique(prices):
        here = prices == price
        room = float(feeds[here].sum())
        if room > 0:
            sent[places[here]] = feeds[here] * (float(cheapest.receivers[here].sum()) / room)
    return Copies(cheapest.source, sent)


def egress_of(programme: Programme, copies: Copies) -> Egress:
    """Return the USD/h of the origin's copies and of each worker's, shape [n]."""
    demand = programme.demand
    return egress_usd_per_hour(
        copies,
        update_bytes=demand.update_bytes,
        publish_period_s=demand.publish_every_steps * demand.t_train_s,
        source_usd_per_gb=demand.learner_egress_usd_per_gb,
        usd_per_gb=programme.columns.egress_usd_per_gb,
    )


def marginal_usd_per_gb(programme: Programme, copies: Copies) -> float:
    """Return the dearest price at which a worker sends; cheaper relays use their whole uplink."""
    return float(programme.columns.egress_usd_per_gb[copies.receivers > 0].max(initial=0.0))
