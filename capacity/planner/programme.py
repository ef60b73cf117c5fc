"""Build the programme of one split: which workers give the rate at the least cost within the rows.

    minimise   sum x_i c_i + egress(x)
    rate       sum x_i useful_i >= phi R / T_train           (less of a step where workers pause while they receive)
    relay      sum x_i (1 - f_i) <= f_0                      copies: each receives one and can pass on f_i in time
    region r   sum of useful_i outside of r >= share R / T_train
    chance     sum x_i useful_i - z sqrt(V(x)) >= phi R / T_train
               V(x) = (1 - rho) sum x_i v_i + rho sum over regions (sum x_i sqrt(v_i))^2

With the correlation rho of two workers of one region V is the variance of the rate.

With ``r = M / tau`` the copies ``f`` that an uplink u passes on within tau are exact for every topology:
``u / (eta r)`` with stripes, ``floor(u / r)`` in a tree, at most one of these in a chain, none in a star
(capacity/model/broadcast_bound.py). With stripes the relay row is the one of the design notes, divided by rho = eta
M / tau.

Egress is linear too: each version is sent n times, the cheapest senders first, none beyond its ``f``. So it is the
optimum of a transport problem whose senders of one price are one variable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from capacity.model.broadcast_bound import stripe_factor
from capacity.model.demand import Demand, rollout_rate_needed
from capacity.model.egress import gb_per_hour_of_a_copy
from capacity.planner.columns import Columns, Floats, Ints, Mask
from capacity.planner.plans import Split

TOLERANCE = 1e-9  # relative: the violation up to which a row still counts as held
TOLERANCE_S = 1e-9  # share of tau: links that fit exactly must not fail because of rounding


@dataclass(frozen=True, slots=True, eq=False)
class Programme:
    """One split's programme. Arrays of shape [n] unless said otherwise.

    Args:
        option: index of the option that each worker takes (see Columns); -1 where none is young enough.
        useful: rollouts/s that are trained, after preemption, swaps and late groups; 0 where no option fits.
        cost: USD/h without egress, incumbents discounted.
        eligible: whether it may be chosen at this split.
        lower, upper: bounds of x, from pins and eligibility.
        feeds: copies that it passes on within tau, at most n.
        origin_feeds: copies that the source sends within tau, at most n.
        level_copy_usd: shape [levels of columns], USD/h for one copy of every version, ascending.
        origin_copy_usd: the same for the origin.
        rate_needed: R / T_train, or more where workers pause; None where no rate is enough.
        rate_bought: phi times that.
        own_variance: of its useful rate, which it has with probability 1 - q: the part that no other worker shares.
        shared_deviation: root of the part of that variance that it shares with all workers of its region.
        linearised_at: x at which the chance row is linearised; None: at 0.
    """

    demand: Demand
    columns: Columns
    split: Split
    copy_bytes_per_second: float
    option: Ints
    useful: Floats
    cost: Floats
    eligible: Mask
    lower: Floats
    upper: Floats
    feeds: Floats
    origin_feeds: float
    level_copy_usd: Floats
    origin_copy_usd: float
    rate_needed: float | None
    rate_bought: float
    own_variance: Floats
    shared_deviation: Floats
    linearised_at: Floats | None = None

    def deviation(self, x: Floats) -> float:
        """Return the standard deviation of the rate of a set, or of parts of workers; rollouts/s."""
        shared = self._shared_by_region(x)
        return float(np.sqrt(self.own_variance @ x + shared @ shared))

    def deviation_slopes(self, x: Floats) -> Floats:
        """Return by how much the deviation grows with each worker at x; 0 where nothing varies; shape [n]."""
        deviation, regions = self.deviation(x), self.columns.region
        shared = np.append(self._shared_by_region(x), 0.0)[regions] * self.shared_deviation
        return (self.own_variance / 2.0 + shared) / deviation if deviation > 0 else np.zeros_like(x)

    def _shared_by_region(self, x: Floats) -> Floats:
        known = self.columns.region >= 0
        size = len(self.columns.regions)
        shared = np.bincount(self.columns.region[known], (self.shared_deviation * x)[known], size)
        return shared.astype(np.float64)


def programme_of(demand: Demand, columns: Columns, split: Split, incumbent_discount: float = 0.0) -> Programme:
    """Build the programme of a split.

    Args:
        incumbent_discount: share of an active worker's price that is not counted.
    """
    option, rate = columns.fastest_within(split.t_gen_s)
    copy_rate = copy_bytes_per_second(demand, split.t_bcast_s)
    useful = rate * columns.kept
    eligible = (useful > 0) & (columns.download >= copy_rate * (1 - TOLERANCE_S))
    feeds = np.minimum(copies_within(demand, columns.upload, split.t_bcast_s), float(len(columns)))
    needed = _rate_needed(demand, split.t_bcast_s)
    variance = rate**2 * columns.kept * (1.0 - columns.kept)
    shared = np.where(columns.region >= 0, demand.region_correlation, 0.0) * variance
    per_copy = usd_per_hour_of_a_copy(demand)
    return Programme(
        demand=demand,
        columns=columns,
        split=split,
        copy_bytes_per_second=copy_rate,
        option=option,
        useful=useful,
        cost=columns.price * np.where(columns.active, 1.0 - incumbent_discount, 1.0),
        eligible=eligible,
        lower=(eligible & (columns.pin > 0)).astype(np.float64),
        upper=(eligible & (columns.pin >= 0)).astype(np.float64),
        feeds=feeds,
        origin_feeds=min(origin_feeds(demand, split.t_bcast_s), float(len(columns))),
        level_copy_usd=columns.level_usd_per_gb * per_copy,
        origin_copy_usd=demand.learner_egress_usd_per_gb * per_copy,
        rate_needed=needed,
        rate_bought=demand.headroom * needed if needed is not None else np.inf,
        own_variance=variance - shared,
        shared_deviation=np.sqrt(shared),
    )


def programme_over(
    demand: Demand, columns: Columns, times_s: Floats, first: int, last: int, incumbent_discount: float = 0.0
) -> Programme:
    """Build one programme that allows what any split between two allows, both included: its bound is one for all.

    Workers generate as the last split lets them and copies travel in the time of the first, because more time of either
    kind never takes a rollout or a copy away. Where workers pause while they receive, a broadcast that ends before its
    time is up lowers the rate needed, so that this is the one of the next longer time to generate.

    Args:
        times_s: the times to generate, ascending, seconds.
    """
    split = Split(float(times_s[last]), demand.broadcast_s(float(times_s[first])))
    programme = programme_of(demand, columns, split, incumbent_discount)
    if not demand.pauses_while_receiving:
        return programme
    next_s = float(times_s[last + 1]) if last + 1 < len(times_s) else demand.budget_s
    needed = _rate_needed(demand, demand.broadcast_s(next_s))
    return replace(programme, rate_needed=needed, rate_bought=demand.headroom * needed if needed else np.inf)


def _rate_needed(demand: Demand, t_bcast_s: float) -> float | None:
    return rollout_rate_needed(
        rollouts_per_step=demand.rollouts_per_step,
        t_train_s=demand.t_train_s,
        t_bcast_s=t_bcast_s,
        publish_every_steps=demand.publish_every_steps,
        pauses_while_receiving=demand.pauses_while_receiving,
    )


def usd_per_hour_of_a_copy(demand: Demand) -> float:
    """Return the USD/h per USD/GB for sending one copy of every version."""
    return gb_per_hour_of_a_copy(demand.update_bytes, demand.publish_every_steps * demand.t_train_s)


def copy_bytes_per_second(demand: Demand, tau_s: float) -> float:
    """Return rho, the rate of each receiver's copy, which every link must reach; the loss of stripes is included."""
    if demand.update_bytes == 0:
        return 0.0
    return stripe_factor(demand.topology) * demand.update_bytes / tau_s if tau_s > 0 else np.inf


def copies_within(demand: Demand, uploads: Floats, tau_s: float) -> Floats:
    """Return the copies of a version that links of these bytes/s pass on within tau; shape as ``uploads``."""
    rate = copy_bytes_per_second(demand, tau_s)
    if rate == 0 or not np.isfinite(rate):
        return np.full(uploads.shape, 0.0)
    copies = uploads / rate
    match demand.topology.shape:
        case "stripes":
            return copies
        case "tree":
            return np.floor(copies * (1 + TOLERANCE_S))
        case "chain":
            return np.minimum(1.0, np.floor(copies * (1 + TOLERANCE_S)))
        case "star":
            return np.zeros_like(copies)


def origin_feeds(demand: Demand, tau_s: float) -> float:
    """Return the copies of a version that the source sends within tau; below 1 not even the first is in time."""
    if demand.topology.shape != "star":
        upload = np.array([demand.learner_upload_bytes_per_second])
        return float(copies_within(demand, upload, tau_s)[0]) if demand.update_bytes > 0 else np.inf
    rate = copy_bytes_per_second(demand, tau_s)
    return demand.learner_upload_bytes_per_second / rate if rate > 0 else np.inf
