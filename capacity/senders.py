"""Who passes on how many copies of each version in a chosen set: those whose bytes cost least first."""

from __future__ import annotations

import numpy as np

from capacity.columns import Floats, Mask
from capacity.programme import Programme, usd_per_hour_of_a_copy


def copies_sent(programme: Programme, chosen: Mask) -> tuple[Floats, float]:
    """Copies of a version that each worker and the origin send; shape [n], and a number.

    Workers of one price share in proportion to what they can send; the origin sends at least one copy. By exact prices,
    where the programme may have rounded them to levels.
    """
    receivers = float(chosen.sum())
    sent = np.zeros(len(programme.columns))
    if receivers == 0 or programme.demand.update_bytes == 0:
        return sent, 0.0
    prices = programme.columns.egress_usd_per_gb
    origin_price = programme.demand.learner_egress_usd_per_gb
    feeding = chosen & (programme.feeds > 0)
    left, origin = receivers - 1.0, 1.0
    for price in np.unique(np.append(prices[feeding], origin_price)):
        here = feeding & (prices == price)
        origin_room = programme.origin_feeds - 1.0 if price == origin_price else 0.0
        room = float(programme.feeds[here].sum()) + origin_room
        share = min(1.0, left / room) if room > 0 else 0.0
        sent[here] = programme.feeds[here] * share
        origin += origin_room * share
        left -= room * share
    return sent, origin


def egress_usd_per_hour(programme: Programme, sent: Floats, origin_copies: float) -> tuple[Floats, float]:
    """USD/h of each worker's copies, shape [n], and of the origin's."""
    per_copy = usd_per_hour_of_a_copy(programme.demand)
    return (
        sent * programme.columns.egress_usd_per_gb * per_copy,
        origin_copies * programme.demand.learner_egress_usd_per_gb * per_copy,
    )


def marginal_usd_per_gb(programme: Programme, sent: Floats) -> float:
    """The dearest price at which somebody sends: cheaper relays are worth their whole uplink."""
    sending = sent > 0
    return float(programme.columns.egress_usd_per_gb[sending].max()) if sending.any() else 0.0
