"""Define a plan: the chosen workers, their cost and rate, the rows that limit it, and the reason for each worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from capacity.model.demand import Demand
from capacity.model.workers import Speed, Worker

RowName = Literal["rate", "relay", "learner_uplink", "downlink", "region", "chance", "budget", "staleness", "pins"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the programme at the chosen set.

    Args:
        value: left-hand side at the chosen set.
        limit: right-hand side.
        at_least: whether ``value >= limit`` must hold; else ``value <= limit``.
        shadow_usd_per_hour: what one more unit of the limit saves or costs, from the LP; 0 where it does not bind.
    """

    name: RowName
    subject: str  # the region of a region row, else empty
    unit: str
    value: float
    limit: float
    at_least: bool
    shadow_usd_per_hour: float

    @property
    def slack(self) -> float:
        """Distance from binding; negative where the row is broken."""
        return self.value - self.limit if self.at_least else self.limit - self.value


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker in a plan.

    Args:
        chosen: whether it is on.
        speed: at the plan's split; None where no concurrency is young enough.
        usd_per_hour: its price and the egress that it would cost, if it were on.
        useful_rollouts_per_second: its rate after preemption and swaps, if it were on.
        reduced_usd_per_hour: its reduced cost in the LP: by how much its price would have to fall for it to be chosen.
        reason: why it is on or off, in words.
        copies_sent: copies of each version that it passes on in this plan; cheaper senders send first.
        barred: whether it cannot be chosen at any price, because it or its link is too slow.
    """

    worker: Worker
    chosen: bool
    speed: Speed | None
    usd_per_hour: float
    useful_rollouts_per_second: float
    reduced_usd_per_hour: float
    reason: str
    copies_sent: float = 0.0
    barred: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """A division of the staleness budget: seconds for generating (p90) and for broadcasting."""

    t_gen_s: float
    t_bcast_s: float


@dataclass(frozen=True, slots=True)
class SlackTrial:
    """What a headroom and a margin give.

    Args:
        margin_steps: learner steps of S that the rows leave free.
        workers: number of workers on.
        utilisation: share of the time in which the learner trains, as predicted.
        usd_per_hour, usd_per_step: the whole bill: workers, traffic, learner, coordinator and storage.
    """

    headroom: float
    margin_steps: float
    workers: int
    utilisation: float
    usd_per_hour: float
    usd_per_step: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What the run of a plan is expected to do, by a model of the fleet with groups, waits and pacing.

    Args:
        utilisation: share of the time in which the learner trains.
        dropped_share: share of the ended rollouts that come too late for any batch; they are paid for.
        t_bcast_p95_s: seconds from announcement to the last worker's copy, 95th percentile.
        mean_age: of trained rollouts, in learner steps.
        trials: the slacks that were tried, those of other sets mostly by short predictions; the plan's own makes the
            bill of a step least.
    """

    utilisation: float
    dropped_share: float
    t_bcast_p95_s: float
    mean_age: float
    trials: tuple[SlackTrial, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A feasible set, or the reason why there is none (``infeasible`` is not None and no worker is chosen).

    Args:
        t_bcast_s: by the fluid bound of the chosen set, at most ``split.t_bcast_s``.
        t_gen_p90_s: seconds within which the slowest chosen worker completes its share of groups in time; without
            groups the p90 of one rollout.
        staleness_needed: of the chosen set; at most S.
        workers_usd_per_hour, egress_usd_per_hour: of the chosen set; the origin's egress is in the latter.
        lp_bound_usd_per_hour: no set costs less at any split: the certificate. Incumbents at their discount.
        gap: (cost - bound) / bound, incumbents at their discount; 0 where the bound is 0.
        utilisation: share of the time in which the learner trains: that of ``expected``, else by rates alone.
        solve_s: wall time.
        integer_bound_usd_per_hour: no set of whole workers costs less at any split, incumbents at their discount; 0
            where it is not known. Few workers are far above the LP bound, which takes parts of workers.
        expected: what the run is expected to do; None where nothing was predicted.
    """

    demand: Demand
    candidates: tuple[Candidate, ...]
    rows: tuple[Row, ...]
    split: Split
    rate_rollouts_per_second: float
    rate_needed_rollouts_per_second: float
    t_bcast_s: float
    t_gen_p90_s: float
    staleness_needed: int
    workers_usd_per_hour: float
    egress_usd_per_hour: float
    lp_bound_usd_per_hour: float
    gap: float
    utilisation: float
    solve_s: float
    infeasible: Infeasible | None = None
    integer_bound_usd_per_hour: float = 0.0
    expected: Expected | None = None

    @property
    def feasible(self) -> bool:
        return self.infeasible is None

    @property
    def chosen(self) -> tuple[Candidate, ...]:
        return tuple(candidate for candidate in self.candidates if candidate.chosen)

    @property
    def usd_per_hour(self) -> float:
        """Cost of workers and traffic, without the learner and storage."""
        return self.workers_usd_per_hour + self.egress_usd_per_hour


@dataclass(frozen=True, slots=True)
class Infeasible:
    """The reason why no set is feasible, and the single changes that help.

    Args:
        binding: the row that cannot be met.
        what: the reason in words, with figures.
        remedies: single changes that make it feasible, smallest first: ("S", "4 -> 5"), in words.
        proven: whether it is proven that no set exists; else none was found in the time limit.
    """

    binding: RowName
    what: str
    remedies: tuple[str, ...]
    proven: bool = True
