"""Validate a prediction: simulate a plan's workers, links and demand under the real cores, and compare the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from capacity.model.demand import HASH_S, Conduct, Demand
from capacity.model.slot_times import LONGEST, fit_log_normal, mean_longest, mean_of_longest, mean_rest, shape_of
from capacity.model.useful_rate import swap_s
from capacity.model.workers import Speed, Worker
from capacity.planner.plans import Expected, Plan
from capacity.predict.prediction import STEPS, WARM_UP_STEPS, Prediction, predict
from rollcast.sim.fleet import Fleet, Progress
from rollcast.sim.kernel.network import Line
from rollcast.sim.settings import EngineSettings, FleetSettings, Lengths

_MEDIAN_TOKENS = 64.0  # tokens of a simulated completion; one of them stands for some dozens
_MEAN_TOKENS = 128.0  # the same where the lengths are known, whose short ones must not be rounded away
_SLICE_TOKENS = 2  # of one slice, if rollouts are uploaded one by one
_VERIFY_MEAN = math.exp(0.5 * 0.5**2)  # mean / median of a simulated verifier's log-normal time (sigma 0.5)
_TOO_OLD = ("stale", "group_stale")

WorkersOn = Sequence[tuple[Worker, Speed]]


@dataclass(frozen=True, slots=True)
class Validation:
    """The predicted and the simulated figures of the same learner steps of one run.

    Args:
        violations: broken invariants that the simulator's judge found; must be 0.
    """

    seed: int
    workers: int
    warm_up_steps: int
    steps: int
    predicted: Prediction
    simulated: Prediction
    violations: int

    def errors(self) -> dict[str, float]:
        """Return |predicted - simulated| / simulated by figure; 1 for one that is 0 in the simulation alone."""
        pairs = (
            ("utilisation", self.predicted.utilisation, self.simulated.utilisation),
            ("t_bcast_s", self.predicted.t_bcast_s, self.simulated.t_bcast_s),
            ("mean_staleness", self.predicted.mean_staleness, self.simulated.mean_staleness),
        )
        return {
            name: abs(predicted - found) / found if found > 0 else float(predicted > 0)
            for name, predicted, found in pairs
        }

    def to_json(self) -> dict[str, Any]:
        """Return the validation as ``--json`` prints it."""
        return asdict(self) | {"errors": self.errors()}


@dataclass(frozen=True, slots=True)
class Kept:
    """Whether a simulated run keeps what its plan printed.

    Args:
        broken: what it does not keep, in words with figures; empty if it keeps all.
    """

    validation: Validation
    promised: Expected
    staleness_needed: int
    broken: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.broken

    def to_json(self) -> dict[str, Any]:
        """Return the answer as ``--json`` prints it."""
        own = {"holds": self.holds, "broken": list(self.broken), "promised": asdict(self.promised)}
        return own | self.validation.to_json()


def validate_plan(
    plan: Plan, *, seed: int, steps: int = STEPS, tolerance: float = 0.07, progress: Progress | None = None
) -> Kept:
    """Simulate the run that a plan promises: its workers, lengths, groups and conduct, under the real cores.

    Args:
        steps: learner steps that are measured after a warm-up.
        tolerance: share by which utilisation may be below the promise, and T_bcast and mean age above it.
        progress: gets the share of the measured steps that is done.

    Raises:
        ValueError: the plan chose no worker, or promises nothing.
    """
    if plan.expected is None:
        raise ValueError("the plan states nothing that a run could be compared with")
    workers_on = [(one.worker, one.speed) for one in plan.chosen if one.speed is not None]
    found = validate(plan.demand, workers_on, plan.demand.conduct, seed=seed, steps=steps, progress=progress)
    return Kept(found, plan.expected, plan.staleness_needed, _broken(plan, plan.expected, found, tolerance))


DROPPED_TOLERANCE = 0.02  # of the ended rollouts, by which the dropped share may exceed the promise


def _broken(plan: Plan, promised: Expected, found: Validation, tolerance: float) -> tuple[str, ...]:
    """Return what the simulated run does not keep. A figure of 0 counts like any other."""
    simulated, limit = found.simulated, plan.demand.staleness_limit
    age_most = min(float(limit), promised.mean_age * (1 + tolerance) + 0.5)
    t_bcast_most = promised.t_bcast_p95_s * (1 + tolerance) + 1.0
    checks = (
        (
            simulated.utilisation < promised.utilisation * (1 - tolerance),
            f"utilisation {simulated.utilisation:.1%}, promised {promised.utilisation:.1%}",
        ),
        (
            simulated.dropped_share > promised.dropped_share + DROPPED_TOLERANCE,
            f"dropped {simulated.dropped_share:.1%}, promised {promised.dropped_share:.1%}",
        ),
        (
            simulated.mean_staleness > age_most,
            f"mean age {simulated.mean_staleness:.2f} steps, promised {promised.mean_age:.2f} within S = {limit}",
        ),
        (
            plan.demand.update_bytes > 0 and not 0 < simulated.t_bcast_p95_s <= t_bcast_most,
            f"T_bcast p95 {simulated.t_bcast_p95_s:.1f} s, promised {promised.t_bcast_p95_s:.1f} s",
        ),
        (found.violations > 0, f"{found.violations} violated invariants"),
    )
    return tuple(words for failed, words in checks if failed)


def validate(
    demand: Demand,
    workers_on: WorkersOn,
    conduct: Conduct,
    *,
    seed: int,
    warm_up_steps: int = WARM_UP_STEPS,
    steps: int = STEPS,
    progress: Progress | None = None,
) -> Validation:
    """Predict the figures of a run with these workers, simulate the run, and return both.

    Raises:
        ValueError: there are no workers.
    """
    if not workers_on:
        raise ValueError("the plan has no workers to simulate")
    predicted = predict(demand, workers_on, conduct, warm_up_steps=warm_up_steps, steps=steps)
    simulated, violations = simulate_workers(
        demand, workers_on, conduct, seed=seed, warm_up_steps=warm_up_steps, steps=steps, progress=progress
    )
    return Validation(seed, len(workers_on), warm_up_steps, steps, predicted, simulated, violations)


def simulate_workers(
    demand: Demand,
    workers_on: WorkersOn,
    conduct: Conduct,
    *,
    seed: int,
    warm_up_steps: int,
    steps: int,
    progress: Progress | None = None,
) -> tuple[Prediction, int]:
    """Simulate the workers. Returns the measured figures and the number of broken invariants."""
    fleet = Fleet(fleet_settings(demand, workers_on, conduct), seed)
    _preempt(fleet, workers_on, conduct)
    oracle, tables = fleet.ground.oracle, fleet.coordinator.tables
    fleet.run(warm_up_steps * demand.t_train_s)
    before, ages, stepped = tables.counts(), dict(oracle.ages), (oracle.steps, oracle.last_progress_s)
    fleet.run(steps * demand.t_train_s, progress)
    after, core = tables.counts(), fleet.coordinator.core
    dropped = sum(after.dropped.get(one, 0) - before.dropped.get(one, 0) for one in _TOO_OLD)
    ended = dropped + after.trained - before.trained
    aged = {age: count - ages.get(age, 0) for age, count in oracle.ages.items()}
    rollouts, done = sum(aged.values()), oracle.steps - stepped[0]
    seconds = oracle.last_progress_s - stepped[1] if done else 1.0
    found = Prediction(
        utilisation=done * demand.t_train_s / seconds,
        t_bcast_s=(core._state.dissemination.seconds.percentile(50) or 0.0) if core else 0.0,
        mean_staleness=sum(age * count for age, count in aged.items()) / rollouts if rollouts else 0.0,
        dropped_share=dropped / ended if ended else 0.0,
        t_bcast_p95_s=(core._state.dissemination.seconds.percentile(95) or 0.0) if core else 0.0,
    )
    return found, len(oracle.violations)


def fleet_settings(demand: Demand, workers_on: WorkersOn, conduct: Conduct) -> FleetSettings:
    """Return the settings of the fleet with the same engine speeds, line rates and conduct as these workers."""
    lengths = _lengths(demand, workers_on, conduct)
    slowest_p90_s = max(speed.t_gen_p90_s for _, speed in workers_on)
    source, push = demand.learner_upload_bytes_per_second, _push_bytes_per_second(demand, conduct)
    per_group = max(1, min(conduct.samples_per_group, demand.rollouts_per_step))
    return FleetSettings(
        **_MINUTES,
        peers=len(workers_on),
        staleness_limit=demand.staleness_limit,
        publish_every_steps=demand.publish_every_steps,
        groups_per_step=max(1, round(demand.rollouts_per_step / per_group)),
        samples_per_group=per_group,
        lead_margin_steps=conduct.lead_margin_steps,
        lease_deadline_s=8.0 * slowest_p90_s,
        prefetch_batches=conduct.prefetch_batches,
        prefetch_s=conduct.prefetch_s,
        reconnect_grace_s=conduct.reconnect_grace_s,
        train_s=demand.t_train_s,
        load_s=demand.t_load_s,
        swap_s=demand.t_swap_s,
        verify_s=demand.t_score_s / _VERIFY_MEAN,
        verifiers=max(4, demand.rollouts_per_step),
        scoring_queue_max=max(4096, 8 * demand.rollouts_per_step),
        engines=tuple(_engine(demand, speed, lengths, conduct) for _, speed in workers_on),
        token_s=1.0,
        lengths=lengths,
        slice_tokens=lengths.most if conduct.whole_batches else _SLICE_TOKENS,
        at_version_swap=conduct.at_version_swap,
        pauses_while_receiving=demand.pauses_while_receiving,
        version_bytes=demand.update_bytes,
        piece_bytes=demand.update_bytes / 10.0 + 1.0,
        lines=tuple(_line(worker) for worker, _ in workers_on),
        server_line=Line(up_bytes_s=source, down_bytes_s=push, delay_s=0.005),
        learner_line=Line(up_bytes_s=push, down_bytes_s=push, delay_s=0.005),
    )


#: The time scale of real runs: heartbeats every 10 s, disks that take milliseconds, timeouts that no live process hits.
_MINUTES: dict[str, Any] = {
    "heartbeat_s": 10.0,
    "heartbeat_timeout_s": 30.0,
    "connection_timeout_s": 20.0,
    "start_within_s": 5.0,
    "tick_s": 5.0,
    "checkpoint_every_steps": 10,
    "checkpoint_s": 5.0,
    "slice_s": 1e9,
    "partial_interval_s": 0.0,
    "sync_s": 0.004,
    "validate_every": 20_000,
}


def _lengths(demand: Demand, workers_on: WorkersOn, conduct: Conduct) -> Lengths:
    """Return the lengths of rollouts in simulated tokens: the demand's, else log-normal as the workers' speeds imply.

    The mean is that of a log-normal distribution of this median, or as much where the lengths are given.
    """
    most = round(LONGEST * _MEDIAN_TOKENS)
    if demand.length_quantiles:
        shape = shape_of(demand.length_quantiles)
        quantiles = tuple(max(1, round(_MEAN_TOKENS * one)) for one in shape)
        return Lengths(most=max(quantiles), quantiles=quantiles)
    return Lengths(median=_MEDIAN_TOKENS, sigma=_sigma(workers_on, conduct), most=most)


def _push_bytes_per_second(demand: Demand, conduct: Conduct) -> float:
    """Return the rate of the learner's uplink and the origin's downlink at which publishing takes its time.

    The simulated origin receives a version as the learner's line lets it go, piece by piece.
    """
    if conduct.t_publish_s <= HASH_S or demand.update_bytes <= 0:
        return demand.learner_upload_bytes_per_second
    return 2.0 * demand.update_bytes / (conduct.t_publish_s - HASH_S)


def _sigma(workers_on: WorkersOn, conduct: Conduct) -> float:
    """Return the sigma of the logarithm of rollout lengths that the workers' speeds imply, weighted by their rates."""
    rates = [speed.rollouts_per_second for _, speed in workers_on]
    fits = [fit_log_normal(_mean_s(one), one.t_gen_p90_s, _longest_of(one, conduct))[1] for _, one in workers_on]
    return sum(rate * sigma for rate, sigma in zip(rates, fits, strict=True)) / sum(rates)


def _engine(demand: Demand, speed: Speed, lengths: Lengths, conduct: Conduct) -> EngineSettings:
    longest_of = _longest_of(speed, conduct)
    if lengths.quantiles:
        tokens = mean_longest(lengths.quantiles, longest_of)
    else:
        tokens = lengths.median * mean_of_longest(lengths.sigma, longest_of)
    rereads_s = swap_s(demand, speed) - demand.t_swap_s
    return EngineSettings(tokens / _mean_s(speed), speed.concurrency, rereads_s)


def _line(worker: Worker) -> Line:
    upload, download = worker.upload_bytes_per_second, worker.download_bytes_per_second
    return Line(up_bytes_s=upload, down_bytes_s=download, relays=worker.relays)


def _mean_s(speed: Speed) -> float:
    return speed.concurrency / speed.rollouts_per_second


def _longest_of(speed: Speed, conduct: Conduct) -> int:
    return speed.concurrency if conduct.whole_batches else 1


def _preempt(fleet: Fleet, workers_on: WorkersOn, conduct: Conduct) -> None:
    """Kill each worker at its preemption rate; it stays away for the time that it loses besides its batch."""
    for peer, (worker, speed) in zip(fleet.peers, workers_on, strict=True):
        if worker.preemptions_per_hour <= 0:
            continue
        longest_of = _longest_of(speed, conduct)
        median_s, sigma = fit_log_normal(_mean_s(speed), speed.t_gen_p90_s, longest_of)
        away_s = max(1.0, worker.lost_per_preemption_s - median_s * mean_rest(sigma, longest_of))
        fleet.preempt(peer, worker.preemptions_per_hour / 3600.0, away_s)
