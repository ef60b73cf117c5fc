"""Judge a machine's value to the run: whether its rollouts are young enough under S, and by how much. Pure.

It is judged as the planner judges a worker (capacity/model/staleness.py, docs/capacity.md): receiving a version and
generating a rollout, p90, must fit into ``(S - kappa) T_train`` less the time for scoring. Speeds are those that the
machine measured of itself; the learner's step, the length of rollouts and their spread are the run's, as measured so
far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capacity.model.broadcast_bound import broadcast_seconds, stripe_factor
from capacity.model.demand import Demand
from capacity.model.staleness import staleness_needed
from capacity.model.workers import Speed, Worker
from capacity.planner.remedies import smallest_factor
from coordinator.core.activation.pool import Assumed, demand_of, is_usable, measured_slots_per_s, worker_of
from coordinator.core.decisions.state import CoreState

THIS_MACHINE = "this machine"
_SPREAD_UNKNOWN = 1.5  # assumed p90 of a rollout's duration over the mean, before the run measured it
_VERSIONS_HELD = 2.0  # the version in use and the next one
_LARGER_MOST = 10.0  # times as many parameters, beyond which the same step time says nothing
_MBIT = 125_000.0
_MB, _GIB = 1e6, 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Speeds that a machine measured of itself. Rates are per second; None if not measured.

    Args:
        memory_bytes: memory of the device on which it computes.
    """

    tokens_per_s: float
    concurrent_rollouts: int
    upload_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model that the run trains.

    Args:
        state_bytes: bytes of the whole weights in memory.
        larger: the bytes in memory of larger published models, ascending.
        frozen: versions are adapters over these weights, so that a machine holds and receives them once.
    """

    parameters: float
    state_bytes: float
    larger: Mapping[str, float]
    frozen: bool = False

    @property
    def size(self) -> str:
        """Number of parameters in words, for example 4B or 290K."""
        return in_words(self.parameters)

    @property
    def versions_held(self) -> float:
        """Whole weights that a machine holds at a time."""
        return 1.0 if self.frozen else _VERSIONS_HELD


@dataclass(frozen=True, slots=True, kw_only=True)
class Suitability:
    """The value of a machine to the run. Durations are in seconds.

    Args:
        meets: whether the machine meets S; None where the run has too few measurements yet.
        slack_share: share of the time that S leaves which is left over; negative where it does not fit.
        share_of_need: share of the rollouts that the learner takes which this machine would make.
        sentence: the judgement in words.
        reasons: the figures behind it, a line each.
        what_would_help: the smallest single changes with which the machine would meet S; empty where it does.
    """

    meets: bool | None
    staleness_limit: int
    staleness_needed: int | None = None
    slack_share: float | None = None
    rollouts_per_s: float | None = None
    share_of_need: float | None = None
    t_bcast_s: float | None = None
    t_gen_p90_s: float | None = None
    budget_s: float | None = None
    sentence: str = ""
    reasons: tuple[str, ...] = ()
    what_would_help: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """The run's figures by which a machine is judged, copied from the core's state at one moment.

    Args:
        demand: the learner's demand; None before a step was timed and a version announced.
        workers: the run's workers whose speeds are known.
        tokens_per_rollout: mean length; before anything was generated, the most tokens that a rollout may have.
        tokens_measured: whether that length was measured.
        spread: p90 of a rollout's duration over its mean.
    """

    staleness_limit: int
    demand: Demand | None
    workers: tuple[Worker, ...]
    tokens_per_rollout: float
    tokens_measured: bool
    spread: float
    unknown_upload_bytes_per_s: float
    unknown_download_bytes_per_s: float


def question_of(state: CoreState, now: float) -> Question:
    """Return the run's present figures."""
    assumed, settings = Assumed(state), state.settings.activation
    members = [member for member in state.members if is_usable(member)]
    workers, tokens_per_s, rollouts_per_s = [], 0.0, 0.0
    for member in members:
        kept = assumed.slots_per_s(member, had_nothing_to_do=False)  # 0 unless the capacity model measures speeds
        per_s = kept or measured_slots_per_s(state, member, now)
        if per_s:
            workers.append(worker_of(state, member, state.prices, now, per_s))
        generated = 0.0 if member.facts is None else member.facts.tokens_per_second
        if generated and per_s:
            tokens_per_s, rollouts_per_s = tokens_per_s + generated, rollouts_per_s + per_s / state.forecast.own_turns
    most = float(state.settings.sampling.max_new_tokens)
    return Question(
        staleness_limit=state.rules.limit,
        demand=demand_of(state, now),
        workers=tuple(workers),
        tokens_per_rollout=min(most, max(1.0, tokens_per_s / rollouts_per_s)) if rollouts_per_s else most,
        tokens_measured=rollouts_per_s > 0,
        spread=state.forecast.spread(0.9) or _SPREAD_UNKNOWN,
        unknown_upload_bytes_per_s=settings.unknown_upload_bytes_per_second,
        unknown_download_bytes_per_s=settings.unknown_download_bytes_per_second,
    )


def offered_worker(question: Question, offer: Offer) -> Worker:
    """Return the machine as the planner sees a worker."""
    per_s = offer.tokens_per_s / question.tokens_per_rollout
    mean_s = offer.concurrent_rollouts / per_s if per_s > 0 else math.inf
    return Worker(
        worker_id=THIS_MACHINE,
        speeds=(Speed(offer.concurrent_rollouts, per_s, mean_s * question.spread, mean_s),) if per_s > 0 else (),
        usd_per_hour=0.0,
        upload_bytes_per_second=offer.upload_bytes_per_s or question.unknown_upload_bytes_per_s,
        download_bytes_per_second=offer.download_bytes_per_s or question.unknown_download_bytes_per_s,
    )


def suitability_of(question: Question, offer: Offer, model: RunModel | None) -> Suitability:
    """Judge a machine by what it measured."""
    demand, me = question.demand, offered_worker(question, offer)
    limit = question.staleness_limit
    if (
        offer.memory_bytes is not None
        and model is not None
        and offer.memory_bytes < _memory_needed(model, model.state_bytes)
    ):
        return _too_small(limit, offer.memory_bytes, model)
    if demand is None:
        why = "the run has not timed enough learner steps yet to judge this machine: retry later"
        return Suitability(meets=None, staleness_limit=limit, sentence=why)
    if not me.speeds:
        return Suitability(
            meets=None, staleness_limit=limit, sentence="no tokens/s were measured, so the machine cannot be judged"
        )
    judged = _Judged(demand, question.workers, me)
    return Suitability(
        meets=judged.meets,
        staleness_limit=limit,
        staleness_needed=judged.staleness_needed,
        slack_share=judged.slack_share,
        rollouts_per_s=me.speeds[0].rollouts_per_second,
        share_of_need=me.speeds[0].rollouts_per_second * demand.t_train_s / demand.rollouts_per_step,
        t_bcast_s=judged.t_bcast_s,
        t_gen_p90_s=judged.t_gen_s,
        budget_s=demand.budget_s,
        sentence=_sentence(judged, model, offer),
        reasons=_reasons(question, judged, model),
        what_would_help=() if judged.meets else _helps(judged),
    )


class _Judged:
    """Judges one machine that joins the run's workers; ``scale`` multiplies the model's size."""

    def __init__(self, demand: Demand, others: Sequence[Worker], me: Worker, *, scale: float = 1.0) -> None:
        self.demand, self.others, self.me = demand, others, me
        self.copy_s = stripe_factor(demand.topology) * demand.update_bytes * scale / me.download_bytes_per_second
        fluid_s = _fluid_s(demand, [*others, me], demand.update_bytes * scale)
        self.t_bcast_s = max(fluid_s, self.copy_s)
        self.t_gen_s = me.speeds[0].t_gen_p90_s * scale
        self.total_s = self.t_bcast_s + self.t_gen_s

    @property
    def meets(self) -> bool:
        return self.total_s <= self.demand.budget_s

    @property
    def slack_share(self) -> float:
        budget_s = self.demand.budget_s
        return 1.0 - self.total_s / budget_s if budget_s > 0 else -1.0

    @property
    def staleness_needed(self) -> int:
        demand = self.demand
        return staleness_needed(
            t_bcast_s=self.t_bcast_s,
            t_gen_p90_s=self.t_gen_s + demand.t_score_s + demand.t_load_s,
            t_train_s=demand.t_train_s,
            publish_every_steps=demand.publish_every_steps,
        )

    @property
    def why_not(self) -> str:
        """The stage that takes most of the time, in words."""
        if self.t_gen_s >= self.t_bcast_s:
            return "generation is too slow"
        return "download too slow" if self.copy_s >= self.t_bcast_s else "too little upload among all peers"

    def with_me(self, *, speed: float = 1.0, download: float = 1.0) -> _Judged:
        mine = self.me.speeds[0]
        faster = replace(
            mine,
            rollouts_per_second=mine.rollouts_per_second * speed,
            t_gen_p90_s=mine.t_gen_p90_s / speed,
            t_gen_mean_s=mine.t_gen_mean_s / speed,
        )
        link = self.me.download_bytes_per_second * download
        return _Judged(self.demand, self.others, replace(self.me, speeds=(faster,), download_bytes_per_second=link))


def _fluid_s(demand: Demand, workers: Sequence[Worker], size_bytes: float) -> float:
    """Return the seconds from announcement to the last copy, ignoring downlinks: a slow downlink delays only itself."""
    uploads = np.array([worker.upload_bytes_per_second * worker.relays for worker in workers])
    source = demand.learner_upload_bytes_per_second
    return broadcast_seconds(size_bytes, source, uploads, np.full_like(uploads, np.inf), demand.topology)


def _too_small(limit: int, memory_bytes: float, model: RunModel) -> Suitability:
    needed = _memory_needed(model, model.state_bytes)
    held = "the weights under the adapters take" if model.frozen else "two versions are held during a swap, each of"
    return Suitability(
        meets=False,
        staleness_limit=limit,
        sentence=f"cannot hold the {model.size} model: {_memory(memory_bytes)} of memory, {_memory(needed)} needed",
        reasons=(f"{held} {_memory(model.state_bytes)}",),
        what_would_help=(f"{_memory(needed)} of memory", "a run with a smaller model"),
    )


def _memory(size_bytes: float) -> str:
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= 0.1 * _GIB else f"{size_bytes / _MB:.3g} MB"


def _memory_needed(model: RunModel, state_bytes: float) -> float:
    return model.versions_held * state_bytes


def _sentence(judged: _Judged, model: RunModel | None, offer: Offer) -> str:
    what = f"for the {model.size} model" if model is not None else "for this run"
    limit = judged.demand.staleness_limit
    if not judged.meets:
        needed = judged.staleness_needed
        return f"does not meet S={limit} {what}: {judged.why_not}; S={needed} would suffice"
    verdict = f"meets S={limit} {what} with {judged.slack_share:.0%} slack"
    return verdict + ("" if model is None else _not_the_next(judged, model, offer))


def _not_the_next(judged: _Judged, model: RunModel, offer: Offer) -> str:
    """Name the smallest larger model for which this machine would not suffice, if the learner's step took as long.

    The result continues a sentence, and is empty if the machine suffices for all of them.
    """
    for name, state_bytes in model.larger.items():
        if offer.memory_bytes is not None and offer.memory_bytes < _memory_needed(model, state_bytes):
            return f"; not {name}: too little memory"
        scaled = _Judged(judged.demand, judged.others, judged.me, scale=state_bytes / model.state_bytes)
        if not scaled.meets:
            return f"; not {name}: {scaled.why_not}"
    return ""


def _reasons(question: Question, judged: _Judged, model: RunModel | None) -> tuple[str, ...]:
    demand, me, speed = judged.demand, judged.me, judged.me.speeds[0]
    share = speed.rollouts_per_second * demand.t_train_s / demand.rollouts_per_step
    counted = "as measured here" if question.tokens_measured else "the most that the run allows: none was generated yet"
    left_s = max(1e-9, demand.budget_s - judged.t_gen_s)
    copies = me.upload_bytes_per_second * left_s / (stripe_factor(demand.topology) * max(1.0, demand.update_bytes))
    leaves_s = max(0.0, demand.budget_s)
    tokens = "1 token" if round(question.tokens_per_rollout) == 1 else f"{question.tokens_per_rollout:.0f} tokens"
    return (
        f"a version of {demand.update_bytes / _MB:.3g} MB takes {judged.copy_s:.3g} s over a downlink of "
        f"{_figure(me.download_bytes_per_second / _MBIT)} Mbit/s; all peers have it after {judged.t_bcast_s:.3g} s",
        f"a rollout of {tokens} ({counted}) takes {speed.t_gen_p90_s:.3g} s (p90), {speed.concurrency} at once",
        f"together {judged.total_s:.3g} s; S={demand.staleness_limit}, kappa={demand.publish_every_steps} and steps of "
        f"{demand.t_train_s:.3g} s allow {leaves_s:.3g} s",
        f"it generates {_per_hour(speed.rollouts_per_second)}, {_of_need(share)}",
        f"its uplink of {_figure(me.upload_bytes_per_second / _MBIT)} Mbit/s can pass on {_figure(copies)} copies of "
        "each version",
        *(() if model is None else (_joining(me, model),)),
    )


def _per_hour(per_second: float) -> str:
    per_hour = 3600.0 * per_second
    return f"{_figure(per_hour) if per_hour >= 10.0 else f'{per_hour:.2g}'} rollouts an hour"


def _figure(value: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100.0 else f"{value:.3g}"


def _of_need(share: float) -> str:
    """Return the share of what the learner takes; a machine that makes more is not used for more."""
    if share >= 1.0:
        return "all that the run needs, so it will be idle at times"
    return f"{share:.0%} of what the run needs" if share >= 0.01 else "less than 1 % of what the run needs"


def _joining(me: Worker, model: RunModel) -> str:
    seconds = model.state_bytes / me.download_bytes_per_second
    return (
        f"before its first rollout it receives the whole weights once: {_memory(model.state_bytes)} in {seconds:.3g} s"
    )


def _helps(judged: _Judged) -> tuple[str, ...]:
    found = [f"S of {judged.staleness_needed} in place of {judged.demand.staleness_limit}"]
    speed = smallest_factor(lambda factor: judged.with_me(speed=factor).meets)
    if speed is not None:
        now = judged.me.speeds[0].rollouts_per_second
        found.append(f"generation {speed:.1f} times as fast: {now * speed:.3g} rollouts/s")
    link = smallest_factor(lambda factor: judged.with_me(download=factor).meets)
    if link is not None:
        now = judged.me.download_bytes_per_second / _MBIT
        found.append(f"a downlink of {now * link:.3g} Mbit/s in place of {now:.3g}")
    if speed is None and link is None:
        found.append("a run whose steps take longer, or whose model is smaller")
    return tuple(found)


def run_model(state_bytes: int, elements: float, published: Mapping[str, float], *, frozen: bool = False) -> RunModel:
    """Return the run's model, from the record of its whole weights.

    Args:
        state_bytes: bytes of the whole weights in memory.
        elements: number of elements of all its tensors.
        published: numbers of parameters of published dense models, by name; somewhat larger ones are compared.
        frozen: see RunModel.
    """
    bytes_each = state_bytes / max(1.0, elements)
    ascending = sorted(published.items(), key=lambda one: one[1])
    near = {name: size * bytes_each for name, size in ascending if 1.2 < size / max(1.0, elements) <= _LARGER_MOST}
    return RunModel(elements, float(state_bytes), near, frozen)


def in_words(count: float) -> str:
    """Return a count in words, for example 4B or 290K."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= size:
            return f"{count / size:.2g}{unit}" if count < 10 * size else f"{count / size:.0f}{unit}"
    return f"{count:.0f}"
