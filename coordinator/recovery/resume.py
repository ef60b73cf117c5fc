"""Resume the run that a run folder holds: restore the core's state and the prompt mixture from the ledger."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

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
from coordinator.ledger.store import ProblemReward, RunStore, StoredVersion
from coordinator.tasks.checks.task import Problem
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.waits import deadline
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
AGE_SPLIT = "age_split"  # in the ledger's meta: coordinator.core.staleness.age_breakdown.Split as JSON
# Newest finished attempts that a restart restores: peers repeat uploads until they are answered, and a repeated upload
# of a rollout that was trained meanwhile must not be refused as fenced.
FINISHED_ATTEMPTS = 4096
ELAPSED_S = "elapsed_s"  # in the ledger's meta: seconds that coordinators ran on this run, all together


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
    """
    async with deadline(LEDGER_DEADLINE_S, "the ledger to read the run's state"):
        run_id = await ledger.get_meta("run_id")
        incarnation = int(await ledger.get_meta(INCARNATION) or 0) + 1
        await ledger.set_meta(INCARNATION, str(incarnation))
        if head is not None and run_id not in (None, head):
            fix = "give each run's cell a run_folder of its own"
            raise RunFolderError(f"{folder.root} is of the run {run_id}, and the head's is {head}", fix=fix)
        if run_id is None:
            run_id, secret = await _new_run(ledger, run.name, head), await _seed_secret(ledger)
            return RunStart(run_id, Restored(incarnation=incarnation), seed_secret=secret)
        if await ledger.get_meta(FINISHED):
            raise RunFolderError(f"the run in {folder.root} is finished", fix="choose another run_folder")
        restored = await _restored(ledger, run.age_max, incarnation)
        problems = tuple(Problem.from_json(one) for one in await ledger.open_problems())
        position, tokenizer = await ledger.mixture_position(), await ledger.get_meta(TOKENIZER)
        learner_finished = await ledger.get_meta(LEARNER_FINISHED) is not None
        start = RunStart(
            RunId(run_id),
            restored,
            problems,
            position,
            await _replay(ledger, "finished" if learner_finished else ""),
            json.loads(await ledger.get_meta(LEARNER_VALUES) or "{}"),
            LearnerLives.from_json(await ledger.get_meta(LEARNER_LIVES) or "[]"),
            tokenizer,
            learner_finished,
            tuple(await ledger.problem_rewards()),
            json.loads(await ledger.get_meta(PORTS) or "{}"),
            Orders.from_json(await ledger.get_meta(ORDERS) or "{}"),
            standing_by.from_json(await ledger.get_meta(standing_by.STANDBY) or "{}"),
            standing_by.learned_from_json(await ledger.get_meta(standing_by.LEARNED) or "{}"),
            earned_book.from_json(await ledger.get_meta(earned_book.EARNED) or "{}"),
            None if (audit := await ledger.get_meta(AUDIT)) is None else AuditRestored(audit),
            await _seed_secret(ledger),
        )
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


async def _new_run(ledger: RunStore, name: str, head: RunId | None) -> RunId:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    run_id = head or RunId(f"{name[:RUN_NAME_LENGTH_MAX]}-{stamp}-{secrets.token_hex(2)}")
    await ledger.set_meta("run_id", run_id)
    return run_id


async def _seed_secret(ledger: RunStore) -> bytes:
    found = await ledger.get_meta(SEED_SECRET)
    if found is None:
        found = secrets.token_hex(32)
        await ledger.set_meta(SEED_SECRET, found)
    return bytes.fromhex(found)


async def _restored(ledger: RunStore, age_max: int, incarnation: int) -> Restored:
    high_water, counts = await ledger.high_water(), await ledger.counts()
    stored = await ledger.get_meta(VERSIONS_KEPT)
    kept = None if stored is None else VersionsKept.from_json(stored)
    age_max = age_max if kept is None else max(age_max, kept.age_max)
    newest = await ledger.newest_versions(age_max + 1 + NEWEST_KEPT)  # versions are one step apart or more
    epochs = EpochBook(await ledger.epochs())
    return Restored(
        incarnation=incarnation,
        epochs=tuple(epochs.opened),
        versions={one.version: _chunk_count(one) for one in newest if epochs.valid(one.epoch, one.version)},
        recorded_batches=await ledger.recorded_batches(),
        kept=kept,
        last_group=high_water.group_id,
        last_rollout=high_water.rollout_id,
        issued=counts.issued,
        accepted=counts.accepted,
        trained=counts.trained,
        turns=counts.dropped.get(NEXT_TURN, 0),
        dropped={reason: count for reason, count in counts.dropped.items() if reason != NEXT_TURN},
        trained_ages=await ledger.trained_ages(),
        quarantined={one.peer_id: one.reason for one in await ledger.quarantines()},
        elapsed_s=float(await ledger.get_meta(ELAPSED_S) or 0.0),
        age_split=json.loads(await ledger.get_meta(AGE_SPLIT) or "{}"),
        groups=tuple(await ledger.open_groups()),
        finished=tuple(await ledger.finished_attempts(FINISHED_ATTEMPTS)),
    )


def _chunk_count(stored: StoredVersion) -> int:
    return parse_announcement(pb.VersionAnnouncement.FromString(stored.announcement)).chunk_count_max


async def _replay(ledger: RunStore, phase: str) -> tuple[Event, ...]:
    """Return the learner's reports as events, so that screens and summary show the whole run."""
    values = json.loads(await ledger.get_meta(LEARNER_VALUES) or "{}")
    steps = [StepFinished(step, figures) for step, figures in await ledger.steps()]
    return (LearnerStatusChanged(phase, "", values), *steps)
