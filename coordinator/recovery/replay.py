"""Replay a flight record in a fresh core: the same events must lead to the same decisions.

A difference means that the record is damaged, that another release wrote it, or that the core is not deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.core.core import CoordinatorCore
from coordinator.core.flight_format import FORMAT, EventEntry, Gap, Head, checksum, entries_of, whole
from coordinator.ledger.sql import RunReader
from coordinator.stores.reader import reading
from rollcast.runtime.errors import RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import RolloutId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import rollout_from_pb
from rollcast.wire.rollouts import Rollout

_PROGRESS_EVERY = 10_000  # events


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying one coordinator's life. ``difference`` is empty if every decision was the same."""

    incarnation: int
    events: int
    duration_s: float  # on the core's clock, from its start to the last event
    difference: str
    incomplete: str  # reason why the record ends before the coordinator did; empty if it is complete
    status: dict[str, Any]

    @property
    def identical(self) -> bool:
        return not self.difference


def incarnations(folder: Path) -> list[int]:
    """Return the coordinator's lives in the record, oldest first."""
    return sorted({int(path.name.split("-")[0]) for path in folder.glob("*.rec")})


def replay(run: RunFolder, incarnation: int, *, progress: Callable[[int], None] = lambda events: None) -> Replayed:
    """Replay one recorded life.

    Raises:
        RunFolderError: there is no such record, its beginning was deleted, or another release wrote it.
        StoreError: the ledger, which holds the rollouts' tokens, cannot be read.
    """
    entries = _entries(run.record, incarnation)
    head = next(entries, None)
    if not isinstance(head, Head):
        raise RunFolderError(
            f"the record of life {incarnation} of this run has no beginning",
            cause="the oldest segments are deleted beyond record.bytes_max",
            fix="replay a later life, or raise record.bytes_max",
        )
    with reading(run) as connection:
        return _replay_entries(head, entries, lambda rollout_id: _stored(connection, rollout_id), incarnation, progress)


def _replay_entries(
    head: Head,
    entries: Iterator[Head | EventEntry | Gap],
    stored: Callable[[RolloutId], Rollout],
    incarnation: int,
    progress: Callable[[int], None],
) -> Replayed:
    core = CoordinatorCore(head.settings, head.restored)
    events, now, incomplete = 0, head.started, ""
    for entry in entries:
        if isinstance(entry, Gap):
            incomplete = f"{entry.events} events were left out after event {events}: the disk did not keep up"
            break
        assert isinstance(entry, EventEntry)
        now, event = entry.now, whole(entry, stored)
        events += 1
        actions = core.handle(event, now)
        if checksum(actions) != entry.actions_crc:
            difference = f"event {events}, {type(event).__name__}, leads to {len(actions)} other actions"
            return _replayed(core, incarnation, events, now, head, difference, incomplete)
        if events % _PROGRESS_EVERY == 0:
            progress(events)
    return _replayed(core, incarnation, events, now, head, "", incomplete)


def _replayed(
    core: CoordinatorCore, incarnation: int, events: int, now: float, head: Head, difference: str, incomplete: str
) -> Replayed:
    status = core.status(now).to_json()
    return Replayed(incarnation, events, now - head.started, difference, incomplete, status)


def _entries(folder: Path, incarnation: int) -> Iterator[Head | EventEntry | Gap]:
    segments = sorted(folder.glob(f"{incarnation:08d}-*.rec"))
    if not segments:
        lives = incarnations(folder)
        raise RunFolderError(
            f"no record of life {incarnation} in {folder}",
            cause=f"recorded lives: {', '.join(map(str, lives)) or 'none'}",
            fix=f"pass --life {lives[-1]}, or leave --life out for the newest" if lives else "",
        )
    for segment in segments:
        try:
            for entry in entries_of(segment.read_bytes()):
                if isinstance(entry, Head) and entry.format != FORMAT:
                    raise ValueError(f"its format is {entry.format}, and this release reads {FORMAT}")
                yield entry
        except ValueError as error:
            raise RunFolderError(
                f"cannot read the record {segment}", cause=str(error), fix="use the release that wrote it"
            ) from None


def _stored(connection: RunReader, rollout_id: RolloutId) -> Rollout:
    row = connection.execute("SELECT body FROM rollouts WHERE rollout_id = ?", (rollout_id,)).fetchone()
    if row is None:
        raise StoreError(
            f"rollout {rollout_id} is no longer in the ledger",
            cause="it was compacted after it was trained",
            fix="replay a later life",
        )
    return rollout_from_pb(pb.Rollout.FromString(row[0]))
