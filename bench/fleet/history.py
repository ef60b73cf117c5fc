"""Record what a coordinator answered to its clients, and check afterwards that the ledger agrees."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from coordinator.ledger.sql import SqlConnection
from rollcast.wire.proto import rollcast_pb2 as pb

RolloutKey = tuple[int, int]  # lease and sample index


def digest(rollout: pb.Rollout) -> str:
    """Return the digest of a rollout with everything that its peer sent."""
    return blake3(rollout.SerializeToString(deterministic=True)).hexdigest()


def batch_digest(rollouts: Iterable[pb.TrainingRollout]) -> str:
    """Return the digest of a batch as the learner receives it, in its order."""
    hasher = blake3()
    for rollout in rollouts:
        hasher.update(rollout.SerializeToString(deterministic=True))
    return hasher.hexdigest()


@dataclass(slots=True)
class History:
    """Facts in the order in which clients learned them.

    Each fact is appended to ``path`` as a line of JSON, then kept in memory; if ``path`` is None, in memory only.
    """

    path: Path | None = None
    acked: dict[RolloutKey, str] = field(default_factory=dict)  # digest of each acknowledged rollout
    acked_again: int = 0  # uploads that were repeated and acknowledged again
    refused: Counter[str] = field(default_factory=Counter)
    batches: dict[int, str] = field(default_factory=dict)  # digest of the batch first served, by step
    batch_rollouts: dict[int, list[int]] = field(default_factory=dict)
    batches_changed: int = 0  # batches served again with another content

    def verdict(self, rollout: pb.Rollout, *, accepted: bool, reason: str) -> None:
        """Record the coordinator's answer to one upload."""
        key = (rollout.lease_id, rollout.sample_index)
        if not accepted:
            self._write({"refused": key, "reason": reason})
            self.refused[reason] += 1
            return
        self.acknowledged(key, digest(rollout))

    def acknowledged(self, key: RolloutKey, body_digest: str) -> None:
        """Record that an upload with this digest was acknowledged."""
        self._write({"acked": key, "digest": body_digest})
        self.acked_again += key in self.acked
        self.acked[key] = body_digest

    def batch(self, step: int, rollouts: Sequence[pb.TrainingRollout]) -> None:
        """Record that a batch was served."""
        now = batch_digest(rollouts)
        self._write({"batch": step, "digest": now, "rollouts": [one.rollout_id for one in rollouts]})
        if step in self.batches:
            self.batches_changed += self.batches[step] != now
        else:
            self.batches[step] = now
            self.batch_rollouts[step] = [one.rollout_id for one in rollouts]

    def _write(self, fact: Mapping[str, object]) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(fact) + "\n")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of comparing a history with the ledger's rows."""

    acked: int
    acked_lost: int  # acknowledged rollouts that the ledger does not have as they were sent
    trained_twice: int  # rollouts in two served batches, or in two batches of the ledger
    batches: int
    batches_changed: int  # batches whose repetition or ledger row differs from what was first served
    accepted_in_ledger: int
    unaccounted: int  # issued - trained - open - dropped, from the ledger's rows


def check(history: History, ledger: Path) -> Verdict:
    """Compare what clients recorded with the rows of a ledger that no process has open for writing."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        return compare(history, connection)


def compare(history: History, connection: SqlConnection) -> Verdict:
    """Compare what clients recorded with the rows of a store in which nothing was compacted."""
    stored = {
        (lease_id, index): blake3(body).hexdigest()
        for lease_id, index, body in connection.execute("SELECT lease_id, sample_index, body FROM rollouts")
    }
    recorded: dict[int, list[int]] = {}
    for step, rollout_id in connection.execute("SELECT step, rollout_id FROM batch_rollouts ORDER BY step, position"):
        recorded.setdefault(step, []).append(rollout_id)
    twice = connection.execute(
        "SELECT count(*) FROM (SELECT 1 FROM batch_rollouts GROUP BY rollout_id HAVING count(*) > 1) AS twice"
    ).fetchone()[0]
    states = dict(connection.execute("SELECT state, count(*) FROM attempts GROUP BY state"))
    (issued,) = connection.execute("SELECT count(*) FROM attempts").fetchone()
    served = Counter(rollout_id for ids in history.batch_rollouts.values() for rollout_id in ids)
    differing = sum(recorded.get(step, []) != ids for step, ids in history.batch_rollouts.items())
    return Verdict(
        acked=len(history.acked),
        acked_lost=sum(stored.get(key) != body for key, body in history.acked.items()),
        trained_twice=twice + sum(count > 1 for count in served.values()),
        batches=len(history.batches),
        batches_changed=history.batches_changed + differing,
        accepted_in_ledger=len(stored),
        unaccounted=issued - sum(states.get(state, 0) for state in ("open", "filled", "trained", "dropped")),
    )
