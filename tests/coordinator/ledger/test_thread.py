"""Test the ledger's thread: changes of one turn of the loop arrive together, and are answered after their commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.ledger import thread as ledger_thread
from coordinator.ledger.sql import Change
from coordinator.ledger.thread import COMMIT_MAX, LedgerThread
from rollcast.runtime.errors import StoreError

TIMEOUT_S = 20.0


class HeldEngine:
    """Records the size of each commit; commits wait while ``may_commit`` is not set."""

    def __init__(self, error: StoreError | None = None) -> None:
        self.sizes: list[int] = []
        self.entered = threading.Event()
        self.may_commit = threading.Event()
        self._error = error

    def commit(self, changes: Sequence[Change[Any]]) -> list[Any]:
        self.entered.set()
        assert self.may_commit.wait(TIMEOUT_S)
        if self._error is not None:
            raise self._error
        self.sizes.append(len(changes))
        return [change(None) for change in changes]  # type: ignore[arg-type]

    def close(self) -> None:
        self.sizes.append(-1)


def numbered(number: int) -> Change[int]:
    return lambda connection: number


async def test_changes_of_one_turn_share_a_commit_and_keep_their_order() -> None:
    engine = HeldEngine()
    thread = LedgerThread(engine, queue_max=100)
    futures = [thread.submit(numbered(number)) for number in range(7)]
    engine.may_commit.set()
    assert await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S) == list(range(7))
    await thread.close()
    assert engine.sizes == [7, -1]


async def test_nothing_is_answered_before_its_commit() -> None:
    engine = HeldEngine()
    thread = LedgerThread(engine, queue_max=100)
    future = thread.submit(numbered(1))
    done, _ = await asyncio.wait([future], timeout=0.05)
    assert not done
    assert engine.sizes == []
    engine.may_commit.set()
    assert await asyncio.wait_for(future, TIMEOUT_S) == 1
    await thread.close()


async def test_a_large_turn_is_committed_in_parts() -> None:
    engine = HeldEngine()
    thread = LedgerThread(engine, queue_max=4 * COMMIT_MAX)
    futures = [thread.submit(numbered(number)) for number in range(2 * COMMIT_MAX + 5)]
    engine.may_commit.set()
    assert await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S) == list(range(2 * COMMIT_MAX + 5))
    await thread.close()
    assert engine.sizes == [COMMIT_MAX, COMMIT_MAX, 5, -1]


async def test_closing_commits_the_turn_in_progress_and_refuses_later_changes() -> None:
    engine = HeldEngine()
    engine.may_commit.set()
    thread = LedgerThread(engine, queue_max=100)
    future = thread.submit(numbered(3))
    await thread.close()
    assert await future == 3
    with pytest.raises(StoreError, match="closed"):
        await thread.submit(numbered(4))


async def test_closing_ends_although_the_store_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_thread, "CLOSE_TIMEOUT_S", 0.05)
    engine = HeldEngine()
    thread = LedgerThread(engine, queue_max=100)
    future = thread.submit(numbered(3))
    await asyncio.wait_for(thread.close(), TIMEOUT_S)
    assert not future.done(), "what is not stored is not acknowledged"
    engine.may_commit.set()
    assert await asyncio.wait_for(future, TIMEOUT_S) == 3


async def test_a_full_queue_refuses_changes_until_its_own_are_committed() -> None:
    engine = HeldEngine()
    thread = LedgerThread(engine, queue_max=2)
    accepted = [thread.submit(numbered(number)) for number in range(2)]
    with pytest.raises(StoreError, match="2 changes wait"):
        await thread.submit(numbered(2))
    engine.may_commit.set()
    await asyncio.wait_for(asyncio.gather(*accepted), TIMEOUT_S)
    assert await asyncio.wait_for(thread.submit(numbered(3)), TIMEOUT_S) == 3
    await thread.close()


async def test_a_failed_store_fails_every_change_with_the_same_error() -> None:
    error = StoreError("the disk is full")
    engine = HeldEngine(error)
    thread = LedgerThread(engine, queue_max=COMMIT_MAX * 2)
    futures = [thread.submit(numbered(number)) for number in range(COMMIT_MAX + 1)]
    engine.may_commit.set()
    outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), TIMEOUT_S)
    assert all(outcome is error for outcome in outcomes)
    assert await thread.failed() is error
    with pytest.raises(StoreError):
        await thread.submit(numbered(0))
    await thread.close()


async def test_what_no_caller_waits_for_goes_with_the_next_change_that_is_waited_for() -> None:
    engine = HeldEngine()
    engine.may_commit.set()
    thread = LedgerThread(engine, queue_max=100)
    later = [thread.submit(numbered(number), is_awaited=False) for number in range(2)]
    await asyncio.sleep(0)
    assert engine.sizes == []
    awaited = thread.submit(numbered(2))
    assert await asyncio.wait_for(asyncio.gather(*later, awaited), TIMEOUT_S) == [0, 1, 2]
    await thread.close()
    assert engine.sizes == [3, -1]


async def test_what_no_caller_waits_for_becomes_durable_by_itself() -> None:
    engine = HeldEngine()
    engine.may_commit.set()
    thread = LedgerThread(engine, queue_max=100)
    for number in range(2):  # also after the first time
        assert await asyncio.wait_for(thread.submit(numbered(number), is_awaited=False), TIMEOUT_S) == number
    hastened = thread.submit(numbered(2), is_awaited=False)
    thread.hasten()
    assert await asyncio.wait_for(hastened, TIMEOUT_S) == 2
    await thread.close()
    assert engine.sizes == [1, 1, 1, -1]


async def test_a_commit_that_takes_long_is_seen_from_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_thread, "ANSWER_S", 0.0)
    engine = HeldEngine()
    thread = LedgerThread(engine, queue_max=100)
    assert thread.is_answering
    future = thread.submit(numbered(1))
    async with asyncio.timeout(TIMEOUT_S):
        assert await asyncio.to_thread(engine.entered.wait, TIMEOUT_S)
        assert not thread.is_answering
        engine.may_commit.set()
        await future
    assert thread.is_answering
    await thread.close()
