"""Test who leads: one at a time, the next once its time is over, and readers of the shared store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from coordinator.config.config import StoreConfig
from coordinator.report.wall_time import account
from coordinator.stores import leadership
from coordinator.stores.leadership import give_up, held, renew, take
from coordinator.stores.opening import leadership_of, open_store
from coordinator.stores.postgres import LEADER, connect, errors
from coordinator.stores.postgres_schema import NOW_UNIX_S, migrate
from coordinator.stores.reader import has_run, reading
from coordinator.stores.story import story_of
from coordinator.views.event_rows import StoryRows, Wanted
from rollcast.runtime.errors import LeadershipLost, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.waits import deadline
from tests.coordinator.stored_work import batch, score
from tests.coordinator.stores.postgres_fixtures import lead_now, needs_postgres, new_database

pytestmark = [needs_postgres, pytest.mark.postgres]

WAIT_S = 60.0


@pytest.fixture
def url() -> str:
    return new_database()


def test_one_leads_until_its_time_is_over(url: str) -> None:
    connection = connect(url)
    migrate(connection)
    first = take(connection, "a", "host-a")
    assert first == 1
    assert take(connection, "b", "host-b") is None
    assert renew(connection, first)
    now = held(connection)
    assert (now.epoch, now.holder, now.address) == (1, "a", "host-a")
    assert 0.0 < now.left_s <= leadership.TTL_S
    give_up(connection, first)
    assert take(connection, "b", "host-b") == 2
    assert not renew(connection, first)
    give_up(connection, first)  # no longer its to give up
    assert take(connection, "a", "host-a") is None
    connection.close()


def test_a_standby_tries_again_just_after_the_leaders_time_is_over(url: str) -> None:
    connection = connect(url)
    migrate(connection)
    take(connection, "a", "host-a")
    checks = [True, False]  # in the opposite order
    standby = leadership._Waiting(url, "b", "host-b", lambda connection: checks.pop())
    assert standby.attempt() is None
    assert standby.pause_s == leadership.RENEW_S
    connection.execute(f"UPDATE leadership SET until_unix_s = {NOW_UNIX_S} + 0.2")
    assert standby.attempt() is None
    assert standby.pause_s <= 0.2 + leadership.PAST_END_S
    assert not checks
    assert standby.attempt() is None
    standby.close()
    connection.close()


async def test_a_standby_takes_over_and_the_old_leader_learns_it(url: str, tmp_path: Path) -> None:
    config, stop = StoreConfig(url=url), asyncio.Event()
    first, second = RunFolder(tmp_path / "a").prepare(), RunFolder(tmp_path / "b").prepare()
    leads = await leadership_of(config, first, "a", stop)
    assert leads is not None
    waits = asyncio.create_task(leadership_of(config, second, "b", stop))
    assert leads._connection is not None
    leads._connection.execute("UPDATE leadership SET until_unix_s = 0")  # as if it had slept
    async with deadline(WAIT_S, "the old leader to learn it or to renew first"):
        done, _ = await asyncio.wait((leads.lost, waits), return_when=asyncio.FIRST_COMPLETED)
    if not done:
        pytest.fail("nobody leads")
    await leads.close()  # gives it up if it renewed first
    async with deadline(WAIT_S, "the standby to lead"):
        takes = await waits
    assert takes is not None
    assert takes.epoch > leads.epoch
    old = open_store(config, first, leads)
    with pytest.raises(LeadershipLost):
        await old.set_meta("a", "b")
    await old.close()
    await takes.close()


def test_a_leader_that_sleeps_in_a_half_sent_pipeline_does_not_block_the_take_over(url: str) -> None:
    epoch, leader, standby = lead_now(url), connect(url, name=LEADER), connect(url)
    leader.raw.pipeline().__enter__()  # not left: that would send the rest over the connection that is lost
    leader.execute("BEGIN")
    leader.execute("SELECT fence(?)", (epoch,))
    assert leader.execute("SELECT 1").fetchone() == (1,)  # the server holds the row now, and waits for a statement
    standby.execute("UPDATE leadership SET until_unix_s = 0")
    assert take(standby, "standby", "") == epoch + 1
    with pytest.raises(errors().any):
        leader.execute("SELECT 1").fetchone()
    for connection in (leader, standby):
        connection.close()


async def test_a_standby_that_is_stopped_never_leads(url: str, tmp_path: Path) -> None:
    config, stop, folder = StoreConfig(url=url), asyncio.Event(), RunFolder(tmp_path).prepare()
    leads = await leadership_of(config, folder, "a", asyncio.Event())
    waits = asyncio.create_task(leadership_of(config, folder, "b", stop))
    stop.set()
    async with deadline(WAIT_S, "the standby to stop"):
        assert await waits is None
    assert leads is not None
    await leads.close()


async def test_a_leader_and_a_standby_stop_although_the_database_does_not_answer(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "GIVE_UP_S", 0.1)
    config, stop, folder = StoreConfig(url=url), asyncio.Event(), RunFolder(tmp_path).prepare()
    leads = await leadership_of(config, folder, "a", asyncio.Event())
    waits = asyncio.create_task(leadership_of(config, folder, "b", stop))
    assert leads is not None
    blocks = connect(url)
    blocks.execute("BEGIN")
    blocks.execute("LOCK TABLE leadership IN ACCESS EXCLUSIVE MODE")
    await asyncio.to_thread(_two_wait_for_a_lock, url)
    stop.set()
    async with deadline(WAIT_S, "both to stop"):
        assert await waits is None
        await leads.close()
    blocks.close()


def _two_wait_for_a_lock(url: str) -> None:
    """Block until two connections wait for a lock."""
    connection, end_s = connect(url), time.monotonic() + WAIT_S
    while connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() != (2,):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    connection.close()


async def test_readers_follow_the_url_in_the_run_folder(url: str, tmp_path: Path) -> None:
    config, folder = StoreConfig(url=url), RunFolder(tmp_path).prepare()
    assert not has_run(folder)
    leads = await leadership_of(config, folder, "a", asyncio.Event())
    assert leads is not None
    assert has_run(folder)
    store = open_store(config, folder, leads)
    await score(store, 1, 2)
    await store.record_batch(batch(0, 1))
    await store.record_event("peer_joined", "12D3KooWx", "atlas as peer", cause="peer 12D3KooWx")
    await store.close()
    await leads.close()
    assert story_of(folder, "rollout 1").facts["fate"] == "trained in step 1"
    for words in ("lease 1", "group 1", "step 1", "peer 12D3KooWx"):
        assert story_of(folder, words).subject.startswith(words.split()[0])
    page = await asyncio.to_thread(StoryRows(folder).page, Wanted(text="Atlas", subject="atlas"))
    assert [one.name for one in page.events] == ["atlas"]
    assert account(folder) is None, "no learner has reported"
    with pytest.raises(StoreError, match="read-only"), reading(folder) as connection:
        connection.execute("DELETE FROM turns")
