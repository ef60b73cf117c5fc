"""What clients remember, compared with ledgers that keep it and ledgers that do not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bench.fleet.history import History, check
from coordinator.ledger.sqlite import Ledger
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import rollout_to_pb
from tests.coordinator.stored_work import batch, rollout, score


def served(*rollout_ids: int, reward: float = 0.5) -> list[pb.TrainingRollout]:
    return [pb.TrainingRollout(rollout_id=rollout_id, reward=reward) for rollout_id in rollout_ids]


@pytest.fixture
async def history(tmp_path: Path) -> History:
    """Of a ledger with three rollouts, all acknowledged, two of them trained."""
    ledger = Ledger.open(tmp_path / "store.sqlite")
    await score(ledger, 1, 2, 3)
    await ledger.record_batch(batch(0, 2, 1))
    await ledger.close()
    history = History(tmp_path / "history.jsonl")
    for number in (1, 2, 3):
        history.verdict(rollout_to_pb(rollout(number, group_id=number)), accepted=True, reason="")
    history.batch(0, served(2, 1))
    return history


def damaged(folder: Path, statement: str) -> Path:
    """The ledger after a change that its triggers would refuse."""
    path = folder / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
    return path


async def test_a_ledger_that_keeps_its_word(history: History, tmp_path: Path) -> None:
    history.verdict(rollout_to_pb(rollout(1, group_id=1)), accepted=True, reason="")
    history.verdict(rollout_to_pb(rollout(9)), accepted=False, reason="fenced")
    history.batch(0, served(2, 1))
    verdict = check(history, tmp_path / "store.sqlite")
    assert (verdict.acked, verdict.acked_lost, verdict.trained_twice, verdict.batches_changed) == (3, 0, 0, 0)
    assert (verdict.batches, verdict.accepted_in_ledger, verdict.unaccounted) == (1, 3, 0)
    assert (history.acked_again, history.refused["fenced"]) == (1, 1)
    assert len(history.path.read_text().splitlines()) == 7


@pytest.mark.parametrize("statement", ["DELETE FROM rollouts WHERE rollout_id = 3", "UPDATE rollouts SET body = x''"])
async def test_a_lost_or_changed_rollout_is_seen(history: History, tmp_path: Path, statement: str) -> None:
    assert check(history, damaged(tmp_path, statement)).acked_lost == (1 if "DELETE" in statement else 3)


async def test_a_batch_that_changes_is_seen(history: History, tmp_path: Path) -> None:
    history.batch(0, served(2, 1, reward=0.25))
    ledger = damaged(tmp_path, "DELETE FROM batch_rollouts WHERE rollout_id = 1")
    assert check(history, ledger).batches_changed == 2


async def test_a_rollout_in_two_batches_is_seen(history: History, tmp_path: Path) -> None:
    history.batch(1, served(3, 1))
    assert check(history, tmp_path / "store.sqlite").trained_twice == 1
