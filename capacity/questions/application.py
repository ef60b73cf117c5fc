"""Compare a plan's chosen workers with a run's fleet: what to start, what runs already, and what cannot be started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from capacity.fleet.overview import FleetOverview, OfferedWorker
from capacity.inputs.pool.rows import PoolRow
from capacity.providers.machines import STARTED_BY_US
from capacity.questions.plan_json import PlanDocument
from rollcast.runtime.errors import PlanFileError

Step = Literal["start", "runs", "stop", "keeps", "cannot"]
"""``runs``: the run wants it already. ``keeps``: it runs, and the plan does not choose it; it stays unless asked."""

OWNER = "its owner starts it, with an invite"
NOT_OFFERED = "the run's pool has no such row"
FILES = "`rollcast capacity apply --emit {}` writes files that start it"


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """What applying a plan does about one worker.

    Args:
        where: where it is started: the machine, address or cloud; empty where the plan does not say.
        plan_usd_per_hour: the plan's price; None: the plan does not choose it.
        usd_per_hour: the price in the run's own pool, which counts; None: it is not on offer there.
        why: why it cannot be started, or its state in the run.
    """

    worker_id: str
    step: Step
    provider: str
    where: str
    plan_usd_per_hour: float | None
    usd_per_hour: float | None
    why: str

    @property
    def price_differs(self) -> bool:
        """Whether the run's price is another one than the plan's, by more than a thousandth."""
        plan, now = self.plan_usd_per_hour, self.usd_per_hour
        return plan is not None and now is not None and abs(now - plan) > 1e-3 * max(now, plan)


@dataclass(frozen=True, slots=True)
class Application:
    """All steps that applying a plan takes, in the plan's order; workers outside the plan come last."""

    steps: tuple[WorkerStep, ...]

    def of(self, step: Step) -> tuple[WorkerStep, ...]:
        """Return the workers with this step."""
        return tuple(one for one in self.steps if one.step == step)

    @property
    def changes(self) -> bool:
        """Whether anything would be started or stopped."""
        return bool(self.of("start") or self.of("stop"))

    @property
    def started_usd_per_hour(self) -> float:
        """Return the price of all workers that would be started, by the run's own pool."""
        return sum(one.usd_per_hour or 0.0 for one in self.of("start"))


def application_of(document: PlanDocument, fleet: FleetOverview, *, stop_others: bool) -> Application:
    """Return the steps that make a run's fleet what a plan chose.

    Args:
        stop_others: whether workers that run and are not in the plan are stopped.

    Raises:
        PlanFileError: the plan chooses no worker.
    """
    if not document.plan.chosen:
        raise PlanFileError("the plan chooses no worker", fix="make one that is feasible")
    rows = {worker_id: row for row in document.machines for worker_id in row.worker_ids}
    offered = {one.worker_id: one for one in fleet.workers}
    steps = [
        _step(one.worker.worker_id, one.worker.usd_per_hour, rows.get(one.worker.worker_id), offered)
        for one in document.plan.chosen
    ]
    chosen = {one.worker_id for one in steps}
    others = [one for one in fleet.workers if one.worker_id not in chosen and _is_on(one)]
    return Application((*steps, *(_other(one, rows.get(one.worker_id), stop=stop_others) for one in others)))


def _step(worker_id: str, usd: float, row: PoolRow | None, offered: Mapping[str, OfferedWorker]) -> WorkerStep:
    where, now = ("" if row is None else place_of(row)), offered.get(worker_id)
    if now is not None:
        step: Step = "runs" if now.wanted else "start"
        return WorkerStep(worker_id, step, now.provider, now.where or where, usd, now.usd_per_hour, _state(now))
    provider = "" if row is None else row.provider or row.start
    return WorkerStep(worker_id, "cannot", provider, where, usd, None, _why_not(row))


def _other(now: OfferedWorker, row: PoolRow | None, *, stop: bool) -> WorkerStep:
    where = now.where or ("" if row is None else place_of(row))
    return WorkerStep(
        now.worker_id, "stop" if stop else "keeps", now.provider, where, None, now.usd_per_hour, _state(now)
    )


def _is_on(one: OfferedWorker) -> bool:
    return one.wanted or one.state not in ("off", "stopping")


def _state(one: OfferedWorker) -> str:
    if one.state == "off":
        return ""
    return f"{one.state}: {one.why}" if one.why and one.state in ("failed", "refused") else one.state


def _why_not(row: PoolRow | None) -> str:
    if row is None:
        return OWNER
    return NOT_OFFERED if row.start in STARTED_BY_US else FILES.format(row.start)


def place_of(row: PoolRow) -> str:
    """Return in words where a row's workers are started."""
    match row.start:
        case "local":
            return "the coordinator's machine"
        case "ssh":
            return row.address or row.worker_id
        case "sky":
            place = row.infra or "the cheapest cloud"
            return f"{place}, {row.instance_type or row.hardware}{', spot' if row.spot else ''}"
        case _:
            return f"{row.region}, {row.instance_type or row.hardware}{', spot' if row.spot else ''}"
