"""Preview an operator's action or other settings: compare the run as it is measured now with the run as it would be.

Both sides come from one model (capacity.predict.prediction), so that its omissions affect both alike. Where the
capacity model acts, the set after the change is the one that the model would choose; else it is the set that is on,
less the peers that the action removes. Previews are quick rather than exact: a sample represents a large fleet, and few
steps are modelled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import BaseModel

from capacity.model.broadcast_bound import broadcast_seconds
from capacity.model.demand import Conduct, Demand
from capacity.model.staleness import staleness_needed
from capacity.model.units import SECONDS_PER_HOUR
from capacity.model.workers import Pin, Speed, Worker
from capacity.replan.corrections import Corrections
from capacity.replan.events import Problem, ReplanSettings
from coordinator.core.activation.pool import (
    Assumed,
    conduct_of,
    demand_of,
    is_usable,
    measured_slots_per_s,
    worker_of,
)
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.prices import Mode
from coordinator.core.staleness.policy import RulesInForce, StalenessRules
from rollcast.wire.ids import PeerId

ROLLOUTS_MODELLED = 120  # about so many a step: both sides together take a second or so
WARM_UP_STEPS, STEPS, DRAWS = 10, 30, 1
_WORKERS_LEAST, _WORKERS_MOST = 6, 48
_OVERHEAD_LEAST, _OVERHEAD_MOST = 0.2, 20.0
_DIFFERENCE_TOLD = 0.15  # between the learner's utilisation as measured and as modelled
_PINS: Mapping[str, Pin] = {"pin_on": "on", "pin_off": "off", "pin_auto": ""}
_DOES = {
    "drain": "Draining {}",
    "ban": "Banning {}",
    "enable": "Enabling {}",
    "pin_on": "Pinning {} on",
    "pin_off": "Pinning {} off",
    "pin_auto": "Leaving {} to the capacity model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The settings that would hold, and an action on peers.

    Args:
        publish_every_steps: kappa; 0 for auto.
        usd_per_hour_max: spending limit; None for no limit.
        act, peers: the action and its peers; empty if only settings change.
    """

    staleness_limit: int
    publish_every_steps: int
    usd_per_hour_max: float | None = None
    act: str = ""
    peers: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Known:
    """A connected peer.

    Args:
        usable: whether it could be given work.
        held: number of slots that it holds.
    """

    worker: Worker
    usable: bool
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The run at one moment, as plain data that a thread may read.

    Args:
        demand: the learner's demand; None before its pace and a version are known.
        known: the connected peers.
        rules: staleness rules in force.
        t_bcast_s, t_bcast_p95_s, t_gen_p90_s, step_period_s: measured durations in seconds; None before a measurement.
        utilisation: the learner's, as measured in the newest steps; None before the first one.
    """

    mode: Mode
    demand: Demand | None
    known: tuple[Known, ...]
    conduct: Conduct
    replan: ReplanSettings
    rules: StalenessRules
    t_bcast_s: float | None
    t_bcast_p95_s: float | None
    t_gen_p90_s: float | None
    step_period_s: float | None
    utilisation: float | None


class Figures(BaseModel):
    """Predicted figures of the run with a set of workers; null if not known."""

    utilisation: float | None = None
    usd_per_hour: float | None = None
    t_bcast_s: float | None = None
    staleness_needed: int | None = None
    workers_on: int | None = None
    steps_per_hour: float | None = None


class Preview(BaseModel):
    """The run's figures now and after the change; ``warnings`` are to be considered before it."""

    now: Figures
    then: Figures
    sentence: str
    warnings: list[str]


def question_of(state: CoreState, corrections: Corrections | None, now: float) -> Question:
    """Return the run as it is now.

    Args:
        corrections: measured / predicted, as the capacity model learned them; None if it is off.
    """
    settings, demand, assumed = state.settings, demand_of(state, now), Assumed(state)
    known = []
    for member in state.members:
        if member.role != "peer":
            continue
        idle = now - member.joined_at >= settings.activation.replan.dwell_s
        per_s = assumed.slots_per_s(member, had_nothing_to_do=idle) or measured_slots_per_s(state, member, now)
        worker = worker_of(state, member, state.prices, now, per_s)
        worker = worker if corrections is None else corrections.worker(worker)
        known.append(Known(worker, is_usable(member), state.book.held_count(member.peer_id)))
    return Question(
        mode=settings.activation.mode,
        demand=demand if demand is None or corrections is None else corrections.demand(demand),
        known=tuple(known),
        conduct=conduct_of(state),
        replan=settings.activation.replan,
        rules=state.rules.rules,
        t_bcast_s=state.dissemination.seconds.percentile(50),
        t_bcast_p95_s=state.dissemination.seconds.percentile(95),
        t_gen_p90_s=state.forecast.generate_p90_s(),
        step_period_s=state.forecast.step_period_s,
        utilisation=state.progress.recent_utilisation,
    )


def preview(question: Question, change: Change) -> Preview:
    """Return the preview; this takes about a second."""
    before = _on(question.known)
    demand = question.demand
    if demand is None or not any(worker.speeds for worker in before):
        count = Figures(workers_on=len(before), usd_per_hour=_usd(before))
        awaited = "the first timed step" if demand is None else "the first rollouts of a worker"
        sentence = f"No preview yet: waiting for {awaited}."
        return Preview(now=count, then=Figures(), sentence=sentence, warnings=_of_acts(question, change))
    demand = replace(demand, update_bytes=demand.update_bytes * _overhead(question, demand, before))
    changed = replace(
        demand,
        staleness_limit=change.staleness_limit,
        publish_every_steps=_period(question, change),
        usd_per_hour_max=change.usd_per_hour_max,
    )
    after, warnings = _set_after(question, change, changed)
    now, then = _figures(question, demand, before), _figures(question, changed, after)
    warnings = [
        *_of_acts(question, change),
        *_of_model(question, now),
        *warnings,
        *_of_figures(question, change, after, then),
    ]
    return Preview(now=now, then=then, sentence=_sentence(change, now, then), warnings=warnings)


# ---------------------------------------------------------------- sets


def _on(known: Sequence[Known]) -> list[Worker]:
    return [one.worker for one in known if one.usable and one.worker.active]


def _set_after(question: Question, change: Change, demand: Demand) -> tuple[list[Worker], list[str]]:
    """Return which peers would be on, and the planner's remarks."""
    workers = [found for one in question.known if (found := _changed(one, change)) is not None]
    if question.mode != "act":
        return [one for one in workers if _stays_on(one)], []
    measured = tuple(one for one in workers if one.speeds)
    if not measured:
        return [one for one in workers if _stays_on(one)], []
    from capacity.replan.deciding import decide  # scipy takes a while to load, and most runs never need it

    solved = decide(Problem(number=0, trigger="preview", demand=demand, workers=measured, settings=question.replan))
    turned = {worker_id: True for worker_id, _ in solved.turn_on} | {
        worker_id: False for worker_id, _ in solved.turn_off
    }
    after = [one for one in workers if turned.get(one.worker_id, one.active)]
    no_set = f"no set of workers is sufficient: {'; '.join((solved.infeasible, *solved.remedies))}"
    return after, [no_set] if solved.infeasible else []


def _changed(one: Known, change: Change) -> Worker | None:
    """Return the peer after the action; None if it could not be given work."""
    if PeerId(one.worker.worker_id) not in change.peers:
        return one.worker if one.usable else None
    if change.act in ("drain", "ban"):
        return None
    if change.act in _PINS:
        return replace(one.worker, pin=_PINS[change.act]) if one.usable else None
    return one.worker


def _stays_on(worker: Worker) -> bool:
    return worker.pin == "on" or (worker.active and worker.pin != "off")


def _period(question: Question, change: Change) -> int:
    """Return kappa after the change; if it follows broadcasts, its value for the measured ones."""
    rules = RulesInForce(StalenessRules(change.staleness_limit, change.publish_every_steps))
    if rules.follows_broadcasts:
        rules.follow(
            t_bcast_p95_s=question.t_bcast_p95_s,
            t_gen_p90_s=question.t_gen_p90_s,
            step_period_s=question.step_period_s,
        )
    return rules.publish_every_steps


# ---------------------------------------------------------------- figures


def _overhead(question: Question, demand: Demand, on: Sequence[Worker]) -> float:
    """Return measured T_bcast / its fluid bound, within bounds; 1 if not known.

    A version's bytes are multiplied by it, so that the prediction for another set depends on that set's links.
    """
    if question.t_bcast_s is None or not on:
        return 1.0
    uploads = np.array([one.upload_bytes_per_second * one.relays for one in on])
    downloads = np.array([one.download_bytes_per_second for one in on])
    source = demand.learner_upload_bytes_per_second
    bound_s = broadcast_seconds(demand.update_bytes, source, uploads, downloads, demand.topology)
    if not 0.0 < bound_s < math.inf:
        return 1.0
    return min(_OVERHEAD_MOST, max(_OVERHEAD_LEAST, question.t_bcast_s / bound_s))


def _figures(question: Question, demand: Demand, on: Sequence[Worker]) -> Figures:
    from capacity.predict.prediction import predict

    measured = [(one, one.speeds[0]) for one in on if one.speeds]
    if not measured:
        return Figures(utilisation=0.0, usd_per_hour=_usd(on), workers_on=len(on), steps_per_hour=0.0)
    thin, workers, most = thinned(demand, measured)
    found = predict(
        thin, workers, question.conduct, warm_up_steps=WARM_UP_STEPS, steps=STEPS, draws=DRAWS, workers_max=most
    )
    t_gen_s = float(np.quantile([speed.t_gen_p90_s for _, speed in measured], 0.9))
    return Figures(
        utilisation=found.utilisation,
        usd_per_hour=_usd(on),
        t_bcast_s=found.t_bcast_s,
        staleness_needed=staleness_needed(
            t_bcast_s=found.t_bcast_s,
            t_gen_p90_s=t_gen_s,
            t_train_s=demand.t_train_s,
            publish_every_steps=demand.publish_every_steps,
        ),
        workers_on=len(on),
        steps_per_hour=found.utilisation * SECONDS_PER_HOUR / demand.t_train_s,
    )


def thinned(demand: Demand, workers: Sequence[tuple[Worker, Speed]]) -> tuple[Demand, list[tuple[Worker, Speed]], int]:
    """Scale the run down to fewer rollouts a step, as a model that takes about a second.

    Returns:
        The demand, the workers, each generating fewer rollouts at once, and the number of workers to model.
    """
    share = ROLLOUTS_MODELLED / demand.rollouts_per_step
    most = min(_WORKERS_MOST, max(_WORKERS_LEAST, round(len(workers) * share)))
    fewer = max(1, int(1.0 / (share * max(1.0, len(workers) / most))))
    thin = [(worker, _fewer(speed, fewer)) for worker, speed in workers]
    kept = sum(one.rollouts_per_second for _, one in thin) / sum(one.rollouts_per_second for _, one in workers)
    return replace(demand, rollouts_per_step=max(1, round(demand.rollouts_per_step * kept))), thin, most


def _fewer(speed: Speed, times: int) -> Speed:
    at_once = max(1, speed.concurrency // times)
    return replace(
        speed, concurrency=at_once, rollouts_per_second=speed.rollouts_per_second * at_once / speed.concurrency
    )


def _usd(on: Sequence[Worker]) -> float:
    return sum(one.usd_per_hour for one in on)


# ---------------------------------------------------------------- words


def _of_acts(question: Question, change: Change) -> list[str]:
    """Return what happens to the peers themselves, in words."""
    about = [one for one in question.known if PeerId(one.worker.worker_id) in change.peers]
    held, found = sum(one.held for one in about), []
    if change.act == "ban" and held:
        found.append(f"{held} rollouts in flight are reassigned to other workers, which start them again")
    if change.act == "drain" and held:
        found.append(f"{held} rollouts in flight are finished first")
    if len(about) < len(change.peers):
        found.append(f"{len(change.peers) - len(about)} of the workers are not connected")
    return found


def _of_model(question: Question, now: Figures) -> list[str]:
    """Return a warning if the model does not describe the run as it is: it leaves out what the learner waits for."""
    measured, modelled = question.utilisation, now.utilisation
    if measured is None or modelled is None or abs(measured - modelled) <= _DIFFERENCE_TOLD:
        return []
    return [
        f"the learner was busy {measured:.0%} of the time in the last steps, and the model says {modelled:.0%} for the"
        " run as it is: rely on the difference between now and then, not on either"
    ]


def _of_figures(question: Question, change: Change, after: Sequence[Worker], then: Figures) -> list[str]:
    """Return warnings to consider before the change."""
    found = []
    if not after:
        found.append("no worker would be left to generate rollouts: the learner would wait")
    if then.staleness_needed is not None and then.staleness_needed > change.staleness_limit:
        found.append(
            f"rollouts would take longer than S = {change.staleness_limit} allows: with S = {then.staleness_needed}"
            " the learner would not have to wait for them"
        )
    limit, usd = change.usd_per_hour_max, _usd(after)
    if limit is not None and usd > limit:
        found.append(f"the workers that would be on cost {usd:.4g} $/h, and the limit is {limit:.4g} $/h")
    if question.mode != "act" and limit is not None:
        found.append(f'capacity.mode is "{question.mode}": the capacity model switches no worker off for the budget')
    unmeasured = sum(not one.speeds for one in after)
    if unmeasured:
        found.append(f"{unmeasured} of the workers that are on were not measured yet: their rollouts are left out")
    return found


def _sentence(change: Change, now: Figures, then: Figures) -> str:
    """Return the result in one sentence."""
    doing = _DOES[change.act].format(_plural(len(change.peers))) if change.act else "This"
    learner = f"the learner busy {then.utilisation or 0.0:.0%} of the time"
    if f"{then.utilisation or 0.0:.0%}" != f"{now.utilisation or 0.0:.0%}":
        learner += f" instead of {now.utilisation or 0.0:.0%}"
    on, before = then.workers_on or 0, now.workers_on or 0
    workers = f"{_plural(on)} on" if on == before else f"{_plural(on)} on instead of {before}"
    usd, spent = then.usd_per_hour or 0.0, now.usd_per_hour or 0.0
    cost = f" for {usd:.4g} $/h" + (f" instead of {spent:.4g} $/h" if f"{usd:.4g}" != f"{spent:.4g}" else "")
    return f"{doing} is expected to keep {learner}, with {workers}{cost if usd or spent else ''}."


def _plural(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
