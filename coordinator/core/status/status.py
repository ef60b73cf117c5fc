"""Describe the run for people: the status that every screen shows, and what the run is waiting for."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from capacity.model.staleness import staleness_needed
from coordinator.core.activation.status import ActivationStatus
from coordinator.core.decisions.state import CoreState
from coordinator.core.members.census import Census
from coordinator.core.members.learner_profile import ProfileStatus
from coordinator.core.members.mismatch import MismatchStatus, mismatch_status
from coordinator.core.members.progress import LEARNER_LIMITS_SHARE
from coordinator.core.status.peers import (
    PEERS_SHOWN_MAX,
    PeersInState,
    PeerStatus,
    peer_rows,
    peers_by_state,
    shown_members,
)
from coordinator.core.status.staleness import StalenessStatus, build_staleness_status

_EVALUATION = re.compile(r"eval_([a-z0-9_-]+)_(pass_at_\d+(?:_low|_high)?|version|problems)")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The present wait of the run; ``text`` is empty if it waits for nothing.

    ``since_s`` is how long it has waited, in seconds; ``next`` is what happens when the wait is over.
    """

    text: str
    since_s: float
    next: str


@dataclass(frozen=True, slots=True)
class Seconds:
    """Percentiles of a duration in seconds; None without a measurement."""

    p50: float | None
    p95: float | None
    last: float | None


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Counts of attempts at rollouts: issued = trained + turns + open + sum(dropped).

    ``turns``: those that made a turn of an episode which went on. ``dropped`` has them by reason; ``uploads_refused``
    counts uploads, not attempts.
    """

    issued: int
    accepted: int
    trained: int
    turns: int
    open: int
    dropped: dict[str, int]
    uploads_refused: dict[str, int]


@dataclass(frozen=True, slots=True)
class EpisodesStatus:
    """Episodes that go on, and what became of others since the start: see coordinator.core.leases.episodes.

    ``turns``: those stored; ``ended`` by what ended them; ``begun_anew`` by reason; ``failures`` of environments.
    """

    open: int
    turns: int
    ended: dict[str, int]
    begun_anew: dict[str, int]
    failures: int
    turns_mean: float  # turns of an episode


@dataclass(frozen=True, slots=True)
class ScoringStatus:
    """How scoring works. ``paused``: why no rollout is scored and no lease issued; empty while scoring works.

    ``failures``: failed verdicts by reason since the start; ``last_failure`` ends with the newest one's traceback.
    """

    paused: str
    paused_s: float
    waiting: int
    failures: dict[str, int]
    last_failure: str
    unscorable_groups: int


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The run at one moment, without its members; steps, versions and ages in learner steps, durations in seconds."""

    run_name: str
    run_id: str
    phase: str
    learner_phase: str
    learner_detail: str
    step: int
    steps: int  # 0 in a cell, which trains none
    stage: str  # name of the stage for which work is leased; empty in a run without stages
    newest_version: int | None
    staleness_limit: int
    publish_every_steps: int
    epoch: int
    staleness: StalenessStatus
    reward_train: float | None
    reward_before: float | None
    reward_after: float | None
    exact_before: float | None
    exact_after: float | None
    warm_start_s: float | None
    warm_start_accuracy: float | None
    staleness_histogram: dict[str, int]
    staleness_max_trained: int | None
    staleness_needed: int | None
    t_train_s: float | None  # median of a step, without waiting
    t_gen_p90_s: float | None  # 90th percentile of a rollout's generation, of an episode with all its turns
    rollouts_per_step: int
    t_bcast_s: Seconds
    tokens_per_s: float
    waiting_for: str
    waiting_since_s: float
    next: str
    peers_left_out: int
    peers_by_state: tuple[PeersInState, ...]
    rollouts: RolloutCounts
    episodes: EpisodesStatus
    scoring: ScoringStatus
    peer_byte_share: float | None
    learner_utilisation: float | None
    learner_mfu: float | None  # model FLOPs of a step / published peak of the learner's devices; None: not known
    learner_memory_peak_share: float | None  # of what the runtime may use on the learner's fullest device
    learner_profile: ProfileStatus | None  # the newest one; None if there was none since the coordinator started
    mismatch: MismatchStatus | None
    updates_skipped: int  # optimiser updates that the learner skipped because they were not finite
    updates_skipped_at: int | None  # the last learner step with one
    evaluations: dict[str, dict[str, float]]  # newest evaluation during training, by set
    reward_history: tuple[tuple[int, float], ...]
    elapsed_s: float
    activation: ActivationStatus


@dataclass(frozen=True, slots=True)
class Status(RunStatus):
    """The run at one moment with its members: in the order they joined, then those that left last."""

    peers: tuple[PeerStatus, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain dicts, lists, strings and numbers, for json.dumps."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class WaitingWatch:
    """Follows what the run waits for, and since when.

    The kind of a wait is cheap to determine, and is after every event; its text is built only when it is read.
    """

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._kind: tuple[str, int] = ("start", 0)  # the kind, and the step that it concerns
        self._since: float | None = None  # None before the first event

    def observe(self, now: float) -> None:
        """Note what the run waits for now; called after every event that may change it."""
        kind = self._current_kind()
        if kind != self._kind:
            self._kind, self._since = kind, now

    def _current_kind(self) -> tuple[str, int]:
        state = self._state
        if state.ended:
            return "ended", 0
        if state.members.origin is None:
            return "origin", 0
        if state.newest_version is None:
            if state.progress.is_warm_starting and not state.settings.is_cell:
                return "warm_start", 0
            return "first_version" if state.progress.phase else "learner", 0
        if state.last_step is not None:
            return "finishing", 0
        if state.paused:
            return "paused", 0
        if state.members.worker_count == 0:
            return "peer", 0
        if state.settings.is_cell:
            return "cell", 0
        wanted = state.batches.wanted
        return ("step", state.batches.recorded) if wanted is None else ("batch", wanted)

    def describe(self, now: float, no_peer_since: float | None) -> Waiting:
        """Return the wait as people read it, with its duration and what happens next."""
        text, following = self._words(now, no_peer_since)
        since_s = now - self._since if text and self._since is not None else 0.0
        return Waiting(text, max(0.0, since_s), following)

    def _words(self, now: float, no_peer_since: float | None) -> tuple[str, str]:
        state = self._state
        match self._kind[0]:
            case "start":
                return "the first event", "the origin, the learner and peers join"
            case "ended":
                return "", f"the run is over: {state.ended}"
            case "origin":
                return "an origin to join", "the learner publishes to it, and peers receive from it"
            case "learner" | "first_version" if state.settings.is_cell:
                return "a version of the head's run", "the uplink receives it and pushes it to this cell's origin"
            case "cell":
                return "", "members generate for the head, which forms the batches"
            case "learner":
                return "the learner to connect", "the learner warms the policy up and publishes version 0"
            case "warm_start":
                return f"the learner's warm start ({state.progress.detail})", "the learner publishes its first version"
            case "first_version":
                doing = state.progress.detail or state.progress.phase
                return f"the learner's first version ({doing})", "peers receive the version and start generating"
            case "finishing":
                return "the learner to finish", "the run ends"
            case "paused":
                return f"an operator to resume it ({state.paused})", "`rollcast run resume` continues it"
            case "peer":
                here = state.members.has_role("peer")
                left_s = state.settings.no_peer_timeout_s - (0.0 if no_peer_since is None else now - no_peer_since)
                whom = "another peer to join, as all connected peers are quarantined" if here else "a peer to join"
                if state.settings.is_cell:
                    return whom, "it generates for the head, whose run goes on meanwhile"
                return whom, f"the run stops with RC202 in {_left(left_s)}"
            case "step":
                return self._learner_words()
            case _:
                return self._batch_words()

    def _learner_words(self) -> tuple[str, str]:
        state = self._state
        if state.batches.recording is not None:
            return (
                f"the ledger to record the batch of step {state.batches.recording.step + 1}",
                "the batch is served to the learner",
            )
        if state.batches.recorded >= state.settings.steps:
            return "the learner to finish", "the run ends"
        doing = state.progress.detail or state.progress.phase or "starting"
        return f"the learner ({doing})", f"the learner requests the batch of step {state.batches.next_step + 1}"

    def _batch_words(self) -> tuple[str, str]:
        state = self._state
        wanted, ready = state.settings.groups_per_step, state.book.ready_count
        text = f"prompt groups for the batch of step {state.batches.next_step + 1}: {ready} of {wanted} are ready"
        oldest_useful = state.batches.next_step - state.rules.gate(state.batches.next_step)
        if state.scoring.pause is not None:
            what = state.scoring.pause.reason.partition("\n")[0]
            return f"{text}; scoring is paused because it fails: {what}", "one rollout is scored without a failure"
        able = (member for member in state.members if member.may_work)  # mostly the first one settles it
        first = next(able, None)
        if first is None and any(member.reputation.switched_off for member in state.members):
            return (
                f"{text}; all peers that could work are switched off",
                "the operator or the capacity model enables one",
            )
        if first is None:
            return f"{text}; no peer can work yet", "a peer receives its first version and requests work"
        if all(one.version is not None and one.version < oldest_useful for one in itertools.chain((first,), able)):
            return f"{text}; no peer holds version {oldest_useful} or newer", "peers receive the newest version"
        if state.prompts.exhausted and len(state.book) < wanted and not state.prompts.stock:
            return f"{text}; the task has no more problems", "nothing, until the task has more problems"
        if state.late_wait.running:
            return (
                f"{text}; held back for a group that would be too old for the next one",
                "the group arrives or is left out",
            )
        too_few = 0 if _learner_is_busy(state) else steps_too_few(state)
        if too_few:
            why = f"S = {state.rules.limit} is too small by {too_few} for the time that rollouts take here"
            return f"{text}; {why}", "work is issued by counting groups only, and part of it will be too old"
        slots = f"{state.book.live_count} rollouts in flight, {state.book.unscored} to be stored or scored"
        if state.evaluations.under_way() and not state.book.live_count:
            return f"{text}; peers generate an evaluation first", "peers that have started take groups for the batch"
        return f"{text}; {slots}", "the batch is recorded and served as soon as enough groups are scored"


def _learner_is_busy(state: CoreState) -> bool:
    """Whether the learner hardly ever waits: then S is large enough, whatever the rule says of long rollouts."""
    busy = state.progress.recent_utilisation
    return busy is not None and busy >= LEARNER_LIMITS_SHARE


def steps_too_few(state: CoreState) -> int:
    """Return by how many steps the staleness limit falls short of what rollouts take; 0 if enough or not measured.

    The rule of capacity/model/staleness.py, with times that the coordinator measured itself.
    """
    under_way, learner_s = state.forecast.steps_under_way(state.settings.samples_per_group), state.forecast.learner_s
    if under_way is None or not learner_s:
        return 0
    t_bcast_s = state.dissemination.seconds.percentile(95) or 0.0
    needed = math.ceil(under_way + t_bcast_s / learner_s + state.rules.publish_every_steps)
    return max(0, needed - state.rules.limit)


_RUN_FIELDS = tuple(field.name for field in fields(RunStatus))


def build_status(
    state: CoreState, waiting: Waiting, activation: ActivationStatus, census: Census, *, now: float, elapsed_s: float
) -> Status:
    """Build the status of the run and its members from the core's state."""
    run = build_run_status(state, waiting, activation, census, now=now, elapsed_s=elapsed_s)
    return Status(
        **{name: getattr(run, name) for name in _RUN_FIELDS}, peers=peer_rows(state, shown_members(state), now)
    )


def build_run_status(
    state: CoreState, waiting: Waiting, activation: ActivationStatus, census: Census, *, now: float, elapsed_s: float
) -> RunStatus:
    """Build the status of the run without its members, which stays small however large the fleet is."""
    values, seconds = state.progress.values, state.dissemination.seconds
    return RunStatus(
        run_name=state.settings.run_name,
        run_id=state.settings.run_id,
        phase=_phase(state),
        learner_phase=state.progress.phase,
        learner_detail=state.progress.detail,
        step=state.progress.step,
        steps=0 if state.settings.is_cell else state.settings.steps,
        stage=_stage(state),
        newest_version=state.newest_version,
        staleness_limit=state.rules.limit,
        publish_every_steps=state.rules.publish_every_steps,
        epoch=state.epochs.current,
        staleness=build_staleness_status(state),
        reward_train=values.get("reward_mean"),
        reward_before=values.get("reward_before"),
        reward_after=values.get("reward_after"),
        exact_before=values.get("exact_before"),
        exact_after=values.get("exact_after"),
        warm_start_s=values.get("warm_start_s"),
        warm_start_accuracy=values.get("warm_start_accuracy"),
        t_train_s=state.progress.train_s.percentile(50),
        t_gen_p90_s=state.forecast.generate_p90_s(),
        rollouts_per_step=state.settings.groups_per_step * state.settings.samples_per_group,
        staleness_histogram={str(age): count for age, count in sorted(state.staleness.histogram.items())},
        staleness_max_trained=state.staleness.max_trained,
        staleness_needed=_staleness_needed(state),
        t_bcast_s=Seconds(seconds.percentile(50), seconds.percentile(95), seconds.last),
        tokens_per_s=census.tokens_per_s,
        waiting_for=waiting.text,
        waiting_since_s=waiting.since_s,
        next=waiting.next,
        peers_left_out=max(0, len(state.members) - PEERS_SHOWN_MAX),
        peers_by_state=peers_by_state(state, census.by_role_and_state),
        rollouts=_rollout_counts(state),
        episodes=_episodes(state),
        scoring=_scoring(state, now),
        peer_byte_share=state.traffic.peer_share,
        learner_utilisation=state.progress.utilisation,
        learner_mfu=values.get("mfu"),
        learner_memory_peak_share=values.get("device_memory_peak_share"),
        learner_profile=None if state.profile is None else state.profile.status(),
        mismatch=mismatch_status(values, ((one.peer_id, one.name, one.hardware) for one in state.members)),
        updates_skipped=int(values.get("updates_skipped_total", 0.0)),
        updates_skipped_at=_step_of(values.get("updates_skipped_at_step")),
        evaluations=_evaluations(values),
        reward_history=tuple(state.progress.reward_history.points()),
        elapsed_s=elapsed_s,
        activation=activation,
    )


def _left(seconds: float) -> str:
    """Return how long it is still, in minutes as long as these say enough."""
    return f"{seconds / 60.0:.0f} min" if seconds >= 120.0 else f"{max(0.0, seconds):.0f} s"


def _stage(state: CoreState) -> str:
    stage = state.stages.at(state.batches.next_step)
    return "" if stage is None else stage.name


def _step_of(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)


def _evaluations(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return figures named eval_SET_NAME as {SET: {NAME: value}}; NAME begins with pass_at, version or problems."""
    found: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        if (match := _EVALUATION.fullmatch(key)) is not None:
            found.setdefault(match[1], {})[match[2]] = value
    return found


def _phase(state: CoreState) -> str:
    """Return the run's phase.

    It is "starting" until the first version is announced, then "training", or "paused" or "finishing" by an operator's
    order; at the end "finished" if the learner finished the run, else "stopped".
    """
    if state.ended:
        return "finished" if state.progress.phase == "finished" else "stopped"
    if state.newest_version is None:
        return "starting"
    return "finishing" if state.last_step is not None else "paused" if state.paused else "training"


def _staleness_needed(state: CoreState) -> int | None:
    """Return the smallest S that fits the measurements; None before the first broadcast, rollout and timed step."""
    t_bcast_s, t_gen_s = state.dissemination.seconds.percentile(95), state.forecast.generate_p90_s()
    t_train_s = state.progress.train_s.percentile(50)
    if t_bcast_s is None or t_gen_s is None or not t_train_s:
        return None
    return staleness_needed(
        t_bcast_s=t_bcast_s,
        t_gen_p90_s=t_gen_s,
        t_train_s=t_train_s,
        publish_every_steps=state.rules.publish_every_steps,
    )


def _scoring(state: CoreState, now: float) -> ScoringStatus:
    book = state.scoring
    return ScoringStatus(
        paused="" if book.pause is None else book.pause.reason,
        paused_s=0.0 if book.pause is None else now - book.pause.since,
        waiting=len(book),
        failures=dict(sorted(book.failures.items())),
        last_failure=book.last_failure,
        unscorable_groups=book.unscorable_groups,
    )


def _episodes(state: CoreState) -> EpisodesStatus:
    book = state.episodes
    return EpisodesStatus(
        open=len(book),
        turns=book.turns,
        ended=dict(sorted(book.ended.items())),
        begun_anew=dict(sorted(book.restarted.items())),
        failures=book.failures,
        turns_mean=state.forecast.turns,
    )


def _rollout_counts(state: CoreState) -> RolloutCounts:
    accounts = state.accounts
    return RolloutCounts(
        issued=accounts.issued,
        accepted=accounts.accepted,
        trained=accounts.trained,
        turns=accounts.turns,
        open=accounts.open,
        dropped=dict(sorted(accounts.dropped.items())),
        uploads_refused=dict(sorted(accounts.uploads_refused.items())),
    )
