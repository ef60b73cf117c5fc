"""Sum over a set of workers the figures from which every row and the cost follow; rounding and swaps compare them.

A set's totals are a vector: cost, useful rate, receivers, variance that each worker has alone, the copies that each
price level of egress can pass on, each region's rate, and the deviation that each region's workers share. Adding a
worker adds its row of ``features``; thousands of changed sets are judged at once. Of the set that is chosen in the
end, each worker gets the copies that it sends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capacity.model.egress import Copies, Egress, cheapest_copies, egress_usd_per_hour
from capacity.planner.columns import Floats, Mask
from capacity.planner.programme import TOLERANCE, Programme

COST, RATE, RECEIVERS, VARIANCE, LEVELS = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Weights of broken rows: USD/h for each missing rollout/s and for each copy that no sender can pass on."""

    rate: float
    copies: float


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Totals of the sets of one split.

    Args:
        features: shape [n + 1, 4 + levels + regions + regions]; the last row stands for no worker. Regions are counted
            as far as rows ask for them: their rates, and their shared deviations.
        shared: index of the first region's shared deviation.
    """

    programme: Programme
    features: Floats
    shared: int

    def of(self, chosen: Mask) -> Floats:
        sums: Floats = self.features[:-1][chosen].sum(axis=0)
        return sums

    def judged(self, totals: Floats) -> tuple[Floats, Floats, Floats]:
        """Return USD/h with egress, rollouts/s missing in the worst rate row, and copies without a sender; each [m].

        Args:
            totals: shape [m, d]; copies without a sender cost nothing.
        """
        programme = self.programme
        egress, copies, _ = sending(programme, totals)
        rate = self._rate_missing(totals)
        enough = rate <= (TOLERANCE * programme.rate_bought if np.isfinite(programme.rate_bought) else 0.0)
        rate = np.where(enough, 0.0, rate)
        copies = np.where(copies <= TOLERANCE * np.maximum(1.0, totals[:, RECEIVERS]), 0.0, copies)
        return totals[:, COST] + egress, rate, copies

    def usd_per_hour(self, totals: Floats) -> Floats:
        """Return price and egress in USD/h; shape [m] for totals of shape [m, d]."""
        return self.judged(totals)[0]

    def feasible(self, totals: Floats) -> Mask:
        _, rate, copies = self.judged(totals)
        holds: Mask = (rate == 0) & (copies == 0)
        return holds

    def penalised(self, totals: Floats, weights: Weights) -> Floats:
        usd, rate, copies = self.judged(totals)
        return usd + weights.rate * rate + weights.copies * copies

    def _rate_missing(self, totals: Floats) -> Floats:
        programme, demand = self.programme, self.programme.demand
        missing: Floats = programme.rate_bought - totals[:, RATE]
        if demand.chance_z > 0:
            shared = totals[:, self.shared :]
            variance = totals[:, VARIANCE] + np.einsum("mr,mr->m", shared, shared)
            missing = missing + demand.chance_z * np.sqrt(np.maximum(0.0, variance))
        if demand.share_without_a_region > 0 and programme.columns.regions:
            left = demand.share_without_a_region * (programme.rate_needed or 0.0)
            largest = totals[:, LEVELS + programme.level_copy_usd.size : self.shared].max(axis=1)
            missing = np.maximum(missing, left - (totals[:, RATE] - largest))
        return missing


def totals_of(programme: Programme) -> Totals:
    size, levels = len(programme.columns), programme.level_copy_usd.size
    demand, regions = programme.demand, len(programme.columns.regions)
    correlated = demand.chance_z > 0 and demand.region_correlation > 0
    shared = LEVELS + levels + (regions if demand.share_without_a_region > 0 else 0)
    features = np.zeros((size + 1, shared + (regions if correlated else 0)))
    features[:-1, COST] = programme.cost
    features[:-1, RATE] = programme.useful
    features[:-1, RECEIVERS] = 1.0
    features[:-1, VARIANCE] = programme.own_variance
    every = np.arange(size)
    features[every, LEVELS + programme.columns.level] = programme.feeds
    known = np.flatnonzero(programme.columns.region >= 0)
    region = programme.columns.region[known]
    if demand.share_without_a_region > 0:
        features[known, LEVELS + levels + region] = programme.useful[known]
    if correlated:
        features[known, shared + region] = programme.shared_deviation[known]
    return Totals(programme, features, shared)


def sending(programme: Programme, totals: Floats) -> tuple[Floats, Floats, Floats]:
    """Assign copies to senders: the cheapest first, the origin at least one copy.

    Args:
        totals: shape [m, d].

    Returns:
        USD/h, shape [m]; copies that no sender has capacity for, [m]; copies sent, [m, levels + 1], the origin's last.
    """
    levels = programme.level_copy_usd.size
    receivers = totals[:, RECEIVERS]
    first = np.minimum(1.0, receivers)
    room = np.column_stack(
        [totals[:, LEVELS : LEVELS + levels], np.full(len(totals), max(0.0, programme.origin_feeds - 1.0))]
    )
    usd = np.append(programme.level_copy_usd, programme.origin_copy_usd)
    order = np.argsort(usd, kind="stable")
    before = np.cumsum(room[:, order], axis=1) - room[:, order]
    sent = np.empty_like(room)
    sent[:, order] = np.clip((receivers - first)[:, None] - before, 0.0, room[:, order])
    missing = receivers - first - sent.sum(axis=1)
    sent[:, -1] += first
    return sent @ usd, missing, sent


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
