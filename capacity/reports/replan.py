"""Report a plan's replay: its decisions in order of time, and their cost and rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.model.demand import Demand
from capacity.model.units import SECONDS_PER_HOUR
from capacity.model.workers import Worker
from capacity.planner.plans import Plan
from capacity.replan.events import ReplanSettings, WorkerGone
from capacity.replan.replanning import Replanner
from capacity.replan.replaying import PoolEvent, Replay, Replayed
from capacity.reports.plots import Moment
from capacity.reports.tables import Column, Sheet

SAMPLES = 200  # points of a timeline


@dataclass(frozen=True, slots=True)
class Followed:
    """The replay of a plan.

    Args:
        replayed: decisions, and sums over the replay.
        moments: averages over SAMPLES equal intervals.
        started_first: number of workers that the first plan switched on.
    """

    replayed: Replayed
    moments: tuple[Moment, ...]
    started_first: int

    @property
    def switches_later(self) -> int:
        """Return the switches after those of the first plan."""
        return len(self.replayed.switches) - self.started_first


def with_incumbents(plan: Plan, workers: Sequence[Worker]) -> list[Worker]:
    """Return the workers, active where the plan has them on."""
    on = {one.worker.worker_id for one in plan.chosen}
    return [replace(worker, active=worker.worker_id in on) for worker in workers]


def follow(
    events: Sequence[tuple[float, PoolEvent]], settings: ReplanSettings, *, start_s: float, until_s: float
) -> Followed:
    """Replay events with the replanner, with every worker off at first.

    Args:
        events: seconds since the start and the event, in order of time.
        start_s: seconds from a worker's start to its first rollouts.
        until_s: length of the replay in seconds.
    """
    replay = Replay(Replanner(settings), start_s=start_s)
    moments: list[Moment] = []
    window_s, place, before = until_s / SAMPLES, 0, (0.0, 0.0)
    for sample in range(1, SAMPLES + 1):
        end_s = window_s * sample if sample < SAMPLES else until_s
        last = place
        while last < len(events) and events[last][0] <= end_s:
            last += 1
        result = replay.run(events[place:last], end_s)
        usd_per_hour, utilisation = (
            (result.usd - before[0]) * SECONDS_PER_HOUR / window_s,
            (result.useful_s - before[1]) / window_s,
        )
        on = _on(result, events[:last])
        moments.append(Moment(end_s, len(on), usd_per_hour, min(1.0, utilisation)))
        place, before = last, (result.usd, result.useful_s)
    first_s = min((switch.at_s for switch in replay.result.switches), default=0.0)
    first = sum(switch.at_s == first_s for switch in replay.result.switches)
    return Followed(replay.result, tuple(moments), first)


def switch_sheet(followed: Followed, gone: Sequence[tuple[float, str]]) -> Sheet:
    """Return a table of every decision after the first plan, with its reason."""
    columns = (
        Column("at_s", "at s", 0),
        Column("worker_id", "worker"),
        Column("now", "now"),
        Column("reason", "why", prose=True),
    )
    later = followed.replayed.switches[followed.started_first :]
    decided = [(one.at_s, one.worker_id, "on" if one.on else "off", one.reason) for one in later]
    left = [(at_s, worker_id, "gone", "") for at_s, worker_id in gone]
    rows = sorted(decided + left, key=lambda row: row[0])
    return Sheet("decisions", columns, tuple(rows), lines=followed_lines(followed))


def followed_lines(followed: Followed) -> tuple[str, ...]:
    """Return the sums over the replay as lines of text."""
    replayed = followed.replayed
    return (
        f"workers switched on at first: {followed.started_first}, switches later: {followed.switches_later}; "
        f"plans: {replayed.plans}, infeasible: {replayed.infeasible}",
        f"{replayed.seconds / SECONDS_PER_HOUR:,.2f} h · {replayed.usd:,.2f} $ for workers"
        f"{f' and {replayed.fixed_usd:,.2f} $ for the learner' if replayed.fixed_usd else ''} · utilisation "
        f"{replayed.utilisation:.1%} · {replayed.usd_per_useful_h:,.2f} $ per hour of training",
    )


def totals_json(followed: Followed) -> dict[str, float | int]:
    """Return the sums over the replay for JSON."""
    replayed = followed.replayed
    return {
        "hours": replayed.seconds / SECONDS_PER_HOUR,
        "usd": replayed.usd,
        "fixed_usd": replayed.fixed_usd,
        "utilisation": replayed.utilisation,
        "usd_per_useful_hour": replayed.usd_per_useful_h,
        "plans": replayed.plans,
        "infeasible_plans": replayed.infeasible,
        "started_first": followed.started_first,
        "switches_later": followed.switches_later,
    }


def subtitle(demand: Demand, followed: Followed) -> str:
    """Return the line under a timeline's title."""
    return (
        f"S = {demand.staleness_limit}, {demand.rollouts_per_step} rollouts a step of {demand.t_train_s:g} s; "
        f"switches after the first plan: {followed.switches_later}"
    )


def _on(result: Replayed, events: Sequence[tuple[float, PoolEvent]]) -> set[str]:
    """Return the workers that are on after these events: switched on, and not gone since."""
    gone = [(at_s, event.worker_id, False) for at_s, event in events if isinstance(event, WorkerGone)]
    on: set[str] = set()
    for _, worker_id, is_on in sorted([(one.at_s, one.worker_id, one.on) for one in result.switches] + gone):
        (on.add if is_on else on.discard)(worker_id)
    return on
