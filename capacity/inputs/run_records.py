"""Read the times that a run's folder recorded: rollouts in the ledger, learner steps, versions and their broadcasts."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.steps_file import StepsFile
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_ids import id_count


@dataclass(frozen=True, slots=True)
class MadeRollout:
    """One rollout that was received. Times are seconds of the coordinator's wall clock.

    Args:
        generate_s: seconds of generation as the peer reports them, at most the duration of its attempt, which it is for
            an episode: its turns and what its environment took between them.
        tokens: tokens of the completion.
        oldest_version: oldest version that generated any of its tokens.
        scored_s: time of its score; None: it was not scored.
    """

    peer_id: str
    issued_s: float
    received_s: float
    generate_s: float
    tokens: int
    oldest_version: int
    scored_s: float | None

    @property
    def begun_s(self) -> float:
        """Return the time at which the peer began to generate it, as seconds of the coordinator's wall clock."""
        return self.received_s - self.generate_s


@dataclass(frozen=True, slots=True)
class LearnerStep:
    """One step as the learner reported it.

    Args:
        step: number of steps done, this one included.
        reported_s: time of the report, as seconds of the coordinator's wall clock.
        figures: ``step_s`` and its components ``wait_s``, ``train_s``, ``behaviour_s``, ``compile_s`` among others.
        t_bcast_s: T_bcast of the newest version that had reached every peer by then; None: there was none.
        mean_age: mean age of the batch's rollouts, in learner steps; None: not recorded.
    """

    step: int
    reported_s: float
    figures: Mapping[str, float]
    t_bcast_s: float | None = None
    mean_age: float | None = None


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records that a calibration is fitted from; sequences are in order of time.

    Args:
        announced_s: version -> time of its announcement, as seconds of the coordinator's wall clock.
        update_bytes: median over versions of the bytes that a peer receives; 0 without versions.
        names: peer id -> the name under which it last joined, as far as the ledger still has that event.
    """

    run: Mapping[str, Any]  # the table `run` of the coordinator's configuration
    lease: Mapping[str, Any]  # the table `lease`
    rollouts: tuple[MadeRollout, ...]
    steps: tuple[LearnerStep, ...]
    announced_s: Mapping[int, float]
    update_bytes: float
    names: Mapping[str, str] = field(default_factory=dict)

    def between(self, first_step: int, end_step: int) -> RunRecords:
        """Return the records of ``first_step`` up to but not including ``end_step``.

        Rollouts and announcements count from the report of the first of these steps to that of the last, exclusive.
        """
        steps = tuple(one for one in self.steps if first_step <= one.step < end_step)
        if not steps:
            return RunRecords(self.run, self.lease, (), (), {}, self.update_bytes, self.names)
        begin_s, end_s = steps[0].reported_s, steps[-1].reported_s
        rollouts = tuple(one for one in self.rollouts if begin_s <= one.received_s < end_s)
        announced = {version: at for version, at in self.announced_s.items() if begin_s <= at < end_s}
        return RunRecords(self.run, self.lease, rollouts, steps, announced, self.update_bytes, self.names)


_ROLLOUTS = """
SELECT r.peer_id, a.issued_unix_s, r.received_unix_s, r.body, r.oldest_version, s.scored_unix_s
FROM rollouts r JOIN attempts a USING (lease_id, sample_index) LEFT JOIN scores s USING (rollout_id)
ORDER BY r.rollout_id
"""

_JOINED = "SELECT subject, detail FROM events WHERE kind = 'peer_joined' ORDER BY event_order"  # "NAME as ROLE"


def read_run(root: Path) -> RunRecords:
    """Read the records of the run in this folder; the run may still be active.

    Raises:
        RunFolderError: there is no ledger or configuration, or one of them cannot be read.
    """
    folder = RunFolder(root)
    try:
        config = tomllib.loads((folder.config / "coordinator.toml").read_text())
        with closing(sqlite3.connect(f"file:{folder.ledger}?mode=ro", uri=True)) as ledger:
            rollouts = tuple(_made(row) for row in ledger.execute(_ROLLOUTS))
            reported = ledger.execute("SELECT step, reported_unix_s, figures FROM steps ORDER BY step").fetchall()
            versions = ledger.execute("SELECT version, announced_unix_s, announcement FROM versions ORDER BY version")
            joined = ledger.execute(_JOINED).fetchall()
            announced = {version: (at, pb.VersionAnnouncement.FromString(text)) for version, at, text in versions}
        lines = _from_metrics(folder.metrics)
    except (OSError, ValueError, KeyError, sqlite3.Error, StoreError) as error:
        raise RunFolderError(
            f"cannot read the records of the run in {root}",
            cause=str(error),
            fix="name a run's folder: it holds store.sqlite and config/coordinator.toml",
        ) from None
    steps = tuple(
        LearnerStep(step, at, json.loads(figures), *lines.get(step, (None, None))) for step, at, figures in reported
    )
    sizes = sorted(_size_bytes(announcement) for _, announcement in announced.values())
    return RunRecords(
        config.get("run", {}),
        config.get("lease", {}),
        rollouts,
        steps,
        {version: at for version, (at, _) in announced.items()},
        float(sizes[len(sizes) // 2]) if sizes else 0.0,
        {peer_id: detail.rpartition(" as ")[0] for peer_id, detail in joined},
    )


def _made(row: tuple[str, float, float, bytes, int, float | None]) -> MadeRollout:
    peer_id, issued_s, received_s, body, oldest_version, scored_s = row
    rollout = pb.Rollout.FromString(body)
    tokens = sum(id_count(one.packed_ids) for one in rollout.segments)
    held_s = received_s - issued_s
    generate_s = min(rollout.generate_s, held_s) or held_s  # of an episode no peer reports the whole time
    return MadeRollout(peer_id, issued_s, received_s, generate_s, tokens, oldest_version, scored_s)


def _size_bytes(announcement: pb.VersionAnnouncement) -> int:
    """Return the bytes of the smallest encoding: the one that peers holding the previous version receive."""
    return min((pb.Manifest.FromString(one.payload).size_bytes for one in announcement.manifests), default=0)


def _from_metrics(path: Path) -> dict[int, tuple[float | None, float | None]]:
    """Return what metrics.jsonl adds to the ledger: by step, seconds of the last broadcast and mean age in steps."""
    file = StepsFile(path)
    file.refresh()
    return {
        one["step"]: (one.get("t_bcast_last_s"), (one.get("age_split") or {}).get("age_steps")) for one in file.steps
    }
