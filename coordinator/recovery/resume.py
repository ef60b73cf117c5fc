"""Resume the run that a run folder holds: restore the core's state and the prompt mixture from the ledger."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from coordinator.config.config import RunConfig
from coordinator.core.core import Restored
from coordinator.core.events.audit_events import AuditRestored
from coordinator.core.events.events import (
    EarnedRestored,
    Event,
    LearnedRestored,
    LearnerStatusChanged,
    StandbyRestored,
    StepFinished,
)
from coordinator.core.events.versions_kept import VERSIONS_KEPT, VersionsKept
from coordinator.core.leases.drop_counts import NEXT_TURN
from coordinator.core.members import earned_book
from coordinator.core.members import standby as standing_by
from coordinator.core.members.audit_book import AUDIT
from coordinator.core.members.learner_lives import LEARNER_LIVES, LearnerLives
from coordinator.core.staleness.epochs import NEWEST_KEPT, EpochBook
from coordinator.ledger.saved_orders import ORDERS, Orders
from coordinator.ledger.store import CompactingStore, ProblemReward, RunStore, StoredVersion
from coordinator.tasks.checks.task import Problem
from rollcast.runtime.errors import ClockWrong, ConfigError, RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.clock import CLOCK_FIX
from rollcast.wire.ids import RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.records import parse_announcement

log = structlog.get_logger()

LEDGER_DEADLINE_S = 30.0
RUN_NAME_LENGTH_MAX = 40  # of a run id, whose limit is 64
FINISHED = "finished"  # in the ledger's meta once the run is over and its summary written
LEARNER_FINISHED = "learner_finished"  # in the ledger's meta once the learner has reported it
PORTS = "ports"  # in the ledger's meta: the ports of the last start, JSON
TOKENIZER = "tokenizer"  # in the ledger's meta: the run's tokenizer, JSON
LEARNER_VALUES = "learner_values"  # in the ledger's meta: the learner's values outside steps, JSON
SEED_SECRET = "seed_secret"  # in the ledger's meta: the secret that seeds of sampled tokens follow from, hexadecimal
INCARNATION = "incarnation"  # in the ledger's meta: how often a coordinator started on this run
BATCH_SHAPE = "batch_shape"  # in the ledger's meta: how many groups of how many rollouts each batch of the run has
AGE_SPLIT = "age_split"  # in the ledger's meta: coordinator.core.staleness.age_breakdown.Split as JSON
# Newest finished attempts that a restart restores: peers repeat uploads until they are answered, and a repeated upload
# of a rollout that was trained meanwhile must not be refused as fenced.
FINISHED_ATTEMPTS = 4096
CLOCK_BEHIND_S = 300.0  # certificates are valid from an hour before they are issued
ELAPSED_S = "elapsed_s"  # in the ledger's meta: seconds that coordinators ran on this run, all together
_META = (
    *(TOKENIZER, LEARNER_FINISHED, LEARNER_VALUES, LEARNER_LIVES, PORTS, ORDERS, AUDIT, SEED_SECRET),
    *(standing_by.STANDBY, standing_by.LEARNED, earned_book.EARNED),
)


@dataclass(frozen=True, slots=True)
class RunStart:
    """The state with which a coordinator starts; ``replay`` holds the events that the new core must see again."""

    run_id: RunId
    restored: Restored
    problems: tuple[Problem, ...] = ()  # problems of the restored groups
    mixture_position: str | None = None
    replay: tuple[Event, ...] = ()
    learner_values: Mapping[str, float] = field(default_factory=dict)
    learner_lives: LearnerLives = field(default_factory=LearnerLives)
    tokenizer: str | None = None  # its JSON; None until the task was loaded once
    learner_finished: bool = False  # the last coordinator was killed before it wrote the summary
    rewards: tuple[ProblemReward, ...] = ()  # of problems, for selection.by_volatility
    ports: Mapping[str, int] = field(default_factory=dict)  # "grpc", "http": the ports that members know
    orders: Orders = field(default_factory=Orders)  # the operator's orders in force
    standby: StandbyRestored = field(default_factory=lambda: StandbyRestored({}))
    learned: LearnedRestored = field(default_factory=LearnedRestored)
    earned: EarnedRestored = field(default_factory=EarnedRestored)
    audit: AuditRestored | None = None
    seed_secret: bytes = bytes(32)  # of the seeds of sampled tokens; the same for the whole run


async def open_run(ledger: RunStore, folder: RunFolder, run: RunConfig, head: RunId | None = None) -> RunStart:
    """Return the state of the folder's run; the first start creates the run.

    Args:
        head: the run that this one is a cell of, whose id it has; None: it is a run of its own.

    Raises:
        RunFolderError: the run in it is finished, or is not that of the head.
        ConfigError: its batches have another shape than the configured one.
    """
    async with deadline(LEDGER_DEADLINE_S, "the ledger to read the run's state"):
        first = [ledger.get_meta(key) for key in ("run_id", INCARNATION, FINISHED, VERSIONS_KEPT, BATCH_SHAPE)]
        run_id, before, finished, kept, shape = await _all_of(first)
        if head is None:  # which forms the batches of a cell
            await _keep_shape(ledger, run, shape)
        incarnation = int(before or 0) + 1
        await ledger.set_meta(INCARNATION, str(incarnation))
        if head is not None and run_id not in (None, head):
            fix = "give each run's cell a run_folder of its own"
            raise RunFolderError(f"{folder.root} is of the run {run_id}, and the head's is {head}", fix=fix)
        if run_id is None:
            secret = await ledger.get_meta(SEED_SECRET) or await _new_secret(ledger)
            run_id = await _new_run(ledger, run.name, head)
            return RunStart(run_id, Restored(incarnation=incarnation), seed_secret=bytes.fromhex(secret))
        if finished:
            raise RunFolderError(f"the run in {folder.root} is finished", fix="choose another run_folder")
        start = await _resumed(ledger, RunId(run_id), run.age_max, incarnation, kept)
    restored = start.restored
    log.info(
        "run resumed",
        run_id=run_id,
        incarnation=incarnation,
        recorded_batches=restored.recorded_batches,
        open_groups=len(restored.groups),
        live_attempts=sum(len(group.live) for group in restored.groups),
        waiting_rollouts=sum(len(group.rollouts) for group in restored.groups),
    )
    return start


async def check_clock(ledger: CompactingStore, now_unix_s: float) -> None:
    """Warn if this machine's clock is behind the run, whose newer certificates would not be valid yet."""
    async with deadline(LEDGER_DEADLINE_S, "the ledger to return the time of the run's newest event"):
        newest_unix_s = await ledger.newest_event_unix_s()
    if newest_unix_s is not None and newest_unix_s - now_unix_s > CLOCK_BEHIND_S:
        log.warning(
            f"{ClockWrong.code}: this machine's clock is {(newest_unix_s - now_unix_s) / 3600:.1f} h behind the run",
            cause="the run's newest event lies in the future: certificates that are newer than this clock by more than"
            " an hour are refused as not yet valid",
            fix=f"{CLOCK_FIX}; members that were refused come back by themselves",
        )


async def _keep_shape(ledger: RunStore, run: RunConfig, stored: str | None) -> None:
    """Store the shape of the run's batches at its first start, and check it at later ones.

    Raises:
        ConfigError: the run's batches have another shape than the configured one.
    """
    if stored is None:
        await ledger.set_meta(BATCH_SHAPE, _shape(run))
    check_shape(run, stored)


def check_shape(run: RunConfig, stored: str | None) -> None:
    """Check that the run's batches have the configured shape; ``stored``: that of the run, None if it has none yet.

    The learner checks every batch against one shape, recorded ones too, and an open group has slots for its samples.

    Raises:
        ConfigError: they have another one.
    """
    shape = _shape(run)
    if stored not in (None, shape):
        raise ConfigError(
            f"the configuration asks for batches of {shape}, and those of this run have {stored}",
            cause="run.groups_per_step and run.samples_per_group cannot change during a run",
            fix="set them back, or choose another run_folder for a new run",
        )


def _shape(run: RunConfig) -> str:
    return f"{run.groups_per_step} groups of {run.samples_per_group}"


async def _resumed(ledger: RunStore, run_id: RunId, age_max: int, incarnation: int, kept: str | None) -> RunStart:
    """Read the run's state. All of it is requested at once: one by one, each request would wait for a commit."""
    steps, problems, position, rewards = (
        ledger.steps(),
        ledger.open_problems(),
        ledger.mixture_position(),
        ledger.problem_rewards(),
    )
    meta = {key: ledger.get_meta(key) for key in _META}
    restoring = _restored(ledger, age_max, incarnation, kept)
    restored, *_ = await _all_of([restoring, steps, problems, position, rewards, *meta.values()])
    values = json.loads(await meta[LEARNER_VALUES] or "{}")
    learner_finished = await meta[LEARNER_FINISHED] is not None
    phase = LearnerStatusChanged("finished" if learner_finished else "", "", values)
    audit = await meta[AUDIT]
    return RunStart(
        run_id,
        restored,
        tuple(Problem.from_json(one) for one in await problems),
        await position,
        (phase, *(StepFinished(step, figures) for step, figures in await steps)),  # screens show the whole run
        values,
        LearnerLives.from_json(await meta[LEARNER_LIVES] or "[]"),
        await meta[TOKENIZER],
        learner_finished,
        tuple(await rewards),
        json.loads(await meta[PORTS] or "{}"),
        Orders.from_json(await meta[ORDERS] or "{}"),
        standing_by.from_json(await meta[standing_by.STANDBY] or "{}"),
        standing_by.learned_from_json(await meta[standing_by.LEARNED] or "{}"),
        earned_book.from_json(await meta[earned_book.EARNED] or "{}"),
        None if audit is None else AuditRestored(audit),
        bytes.fromhex(await meta[SEED_SECRET] or await _new_secret(ledger)),
    )


async def _all_of(reads: Sequence[Awaitable[Any]]) -> list[Any]:
    """Return the results of all reads, and wait for each of them, so that none is left under way when one fails.

    It waits for nothing but the reads, because a simulated store answers without an event loop.

    Raises:
        StoreError: what the first of those that failed raised.
    """
    results, errors = list[Any](), list[StoreError]()
    try:
        for read in reads:
            try:
                results.append(await read)
            except StoreError as error:
                errors.append(error)
    except BaseException:  # this wait is cancelled: so are the others
        for read in reads:
            if isinstance(read, asyncio.Future):
                read.cancel()
        raise
    if errors:
        raise errors[0]
    return results


async def _new_run(ledger: RunStore, name: str, head: RunId | None) -> RunId:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    run_id = head or RunId(f"{name[:RUN_NAME_LENGTH_MAX]}-{stamp}-{secrets.token_hex(2)}")
    await ledger.set_meta("run_id", run_id)
    return run_id


async def _new_secret(ledger: RunStore) -> str:
    secret = secrets.token_hex(32)
    await ledger.set_meta(SEED_SECRET, secret)
    return secret


async def _restored(ledger: RunStore, age_max: int, incarnation: int, kept_json: str | None) -> Restored:
    kept = None if kept_json is None else VersionsKept.from_json(kept_json)
    age_max = age_max if kept is None else max(age_max, kept.age_max)
    high_water, counted = ledger.high_water(), ledger.counts()
    newest = ledger.newest_versions(age_max + 1 + NEWEST_KEPT)  # versions are one step apart or more
    opened, batches, ages = ledger.epochs(), ledger.recorded_batches(), ledger.trained_ages()
    quarantines, groups = ledger.quarantines(), ledger.open_groups()
    finished = ledger.finished_attempts(FINISHED_ATTEMPTS)
    elapsed_s, age_split = ledger.get_meta(ELAPSED_S), ledger.get_meta(AGE_SPLIT)
    await _all_of(
        [high_water, counted, newest, opened, batches, ages, quarantines, groups, finished, elapsed_s, age_split]
    )
    epochs, highest, counts = EpochBook(await opened), await high_water, await counted
    return Restored(
        incarnation=incarnation,
        epochs=tuple(epochs.opened),
        versions={one.version: _chunk_count(one) for one in await newest if epochs.valid(one.epoch, one.version)},
        recorded_batches=await batches,
        kept=kept,
        last_group=highest.group_id,
        last_rollout=highest.rollout_id,
        issued=counts.issued,
        accepted=counts.accepted,
        trained=counts.trained,
        turns=counts.dropped.get(NEXT_TURN, 0),
        dropped={reason: count for reason, count in counts.dropped.items() if reason != NEXT_TURN},
        trained_ages=await ages,
        quarantined={one.peer_id: one.reason for one in await quarantines},
        elapsed_s=float(await elapsed_s or 0.0),
        age_split=json.loads(await age_split or "{}"),
        groups=tuple(await groups),
        finished=tuple(await finished),
    )


def _chunk_count(stored: StoredVersion) -> int:
    return parse_announcement(pb.VersionAnnouncement.FromString(stored.announcement)).chunk_count_max
