"""Test what a coordinator restores from earlier ones, and the epoch that it opens if it cannot."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from capacity.replan.corrections import Corrections
from capacity.replan.preemptions import MarketSeen
from coordinator.config.config import RunConfig
from coordinator.core.events.actions import RecordEpoch
from coordinator.core.events.events import EarnedRestored, KeptPeer, LearnedRestored
from coordinator.core.members import earned_book, standby
from coordinator.ledger.sql import Change
from coordinator.recovery.backup import STEPS_SPARE, back_up, restore
from coordinator.recovery.resume import FINISHED, LEARNER_VALUES, TOKENIZER, check_clock, open_run
from coordinator.stores.sqlite import Ledger, SqliteEngine
from coordinator.tasks.checks.task import Problem
from rollcast.runtime.errors import ConfigError, RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Epoch, PeerId, Step, Version
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator import stored_work as work
from tests.coordinator.stored_work import attempt, batch, close, group, rollout, score, store_rollout

RUN = RunConfig()


async def opened(folder: Path) -> Ledger:
    return Ledger.open(folder / "store.sqlite")


async def test_each_start_is_an_incarnation_of_its_own(tmp_path: Path) -> None:
    run_ids, secrets, last_leases = set(), set(), []
    for _ in range(3):
        ledger = await opened(tmp_path)
        start = await open_run(ledger, RunFolder(tmp_path), RUN)
        run_ids.add(start.run_id)
        secrets.add(start.seed_secret)
        last_leases.append(start.restored.ids_before)
        await ledger.close()
    assert len(run_ids) == len(secrets) == 1
    assert last_leases == [1 << 32, 2 << 32, 3 << 32]


async def test_the_shape_of_batches_cannot_change_during_a_run(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    await open_run(ledger, RunFolder(tmp_path), RUN)
    for changes in ({"samples_per_group": 2}, {"groups_per_step": 3}):
        with pytest.raises(ConfigError, match="cannot change during a run"):
            await open_run(ledger, RunFolder(tmp_path), RUN.model_copy(update=changes))
    start = await open_run(ledger, RunFolder(tmp_path), RUN)
    assert start.restored.incarnation == 2
    cell = await open_run(ledger, RunFolder(tmp_path), RUN.model_copy(update={"groups_per_step": 3}), start.run_id)
    assert cell.restored.incarnation == 3
    await ledger.close()


async def test_a_clock_that_is_behind_the_run_is_named(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    await ledger.record_event("kind", "subject", "detail", cause="test")
    with capture_logs() as logs:
        await check_clock(ledger, time.time())
        assert not logs
        await check_clock(ledger, time.time() - 3 * 3600.0)
    await ledger.close()
    assert [one["event"] for one in logs] == ["RC206: this machine's clock is 3.0 h behind the run"]


async def test_open_groups_are_restored_with_their_problems(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    await open_run(ledger, RunFolder(tmp_path), RUN)
    await score(ledger, 1)
    await ledger.record_batch(batch(0, 1))
    problem = Problem("sum:2", "1+1=", "2", {})
    ledger.record_group(group(2), problem.to_json())
    for lease, index in ((2, 0), (3, 1), (4, 2)):
        ledger.record_attempt(attempt(lease, index, group_id=2))
    ledger.store_rollouts([store_rollout(2, rollout(2, 0, group_id=2))])
    ledger.close_attempt(close(4, "lease_expired", sample_index=2))
    ledger.set_meta(LEARNER_VALUES, json.dumps({"oldest_checkpoint_step": 7.0}))
    learned = LearnedRestored((MarketSeen(("", "a", "gpu"), 3.5, 1.25),), Corrections(t_bcast=1.2))
    ledger.set_meta(standby.LEARNED, standby.learned_to_json(learned))
    earned = EarnedRestored({PeerId("a"): KeptPeer(9, Version(4), "ann")})
    ledger.set_meta(earned_book.EARNED, earned_book.to_json(earned))
    ledger.set_meta(TOKENIZER, Tokenizer(("+",), "12").to_json())
    await ledger.record_epoch(RecordEpoch(Epoch(1), Step(1), Step(3), None))
    await ledger.close()

    ledger = await opened(tmp_path)
    start = await open_run(ledger, RunFolder(tmp_path), RUN)
    (restored,) = start.restored.groups
    assert (restored.group_id, restored.prompt.problem_id) == (2, "sum:2")
    assert [(one.lease_id, one.sample_index) for one in restored.live] == [(3, 1)]
    assert [(one.rollout_id, one.scored) for one in restored.rollouts] == [(2, False)]
    assert start.problems == (problem,)
    assert start.tokenizer == Tokenizer(("+",), "12").to_json()
    assert start.learned == learned
    assert start.earned == earned
    assert start.learner_values == {"oldest_checkpoint_step": 7.0}
    totals = start.restored
    assert (totals.issued, totals.accepted, totals.trained, totals.dropped) == (4, 2, 1, {"lease_expired": 1})
    assert (totals.recorded_batches, totals.last_group, totals.last_rollout) == (3, 2, 2)
    assert [one.epoch for one in totals.epochs] == [1]
    await ledger.close()


async def test_a_coordinator_that_takes_over_waits_for_few_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read is a commit of a database that has to be flushed, on the standby's disk too."""
    ledger = await opened(tmp_path)
    await open_run(ledger, RunFolder(tmp_path), RUN)
    await ledger.close()
    commits, commit = [], SqliteEngine.commit

    def counted(engine: SqliteEngine, changes: Sequence[Change[Any]]) -> list[Any]:
        commits.append(len(changes))
        return commit(engine, changes)

    monkeypatch.setattr(SqliteEngine, "commit", counted)
    ledger = await opened(tmp_path)
    await open_run(ledger, RunFolder(tmp_path), RUN)
    await ledger.close()
    assert len(commits) == 3, "what decides, the new incarnation, and everything else"


@pytest.mark.parametrize("failing", ["get_meta", "epochs"])
async def test_a_read_that_fails_leaves_no_other_one_under_way(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tries again, or closes the store, does so after the last answer."""
    ledger = await opened(tmp_path)
    await open_run(ledger, RunFolder(tmp_path), RUN)
    under_way, submit, read = [], ledger._thread.submit, getattr(ledger, failing)

    def noted(change: Change[Any]) -> asyncio.Future[Any]:
        under_way.append(submit(change))
        return under_way[-1]

    def failed(*arguments: str) -> Any:
        if arguments not in [(), ("run_id",)]:
            return read(*arguments)
        refused = asyncio.get_running_loop().create_future()
        refused.set_exception(StoreError("this cannot be read"))
        return refused

    monkeypatch.setattr(ledger._thread, "submit", noted)
    monkeypatch.setattr(ledger, failing, failed)
    with pytest.raises(StoreError, match="this cannot be read"):
        await open_run(ledger, RunFolder(tmp_path), RUN)
    assert all(one.done() for one in under_way)
    monkeypatch.undo()
    await ledger.close()


async def test_finished_run_is_not_resumed(tmp_path: Path) -> None:
    ledger = await opened(tmp_path)
    await open_run(ledger, RunFolder(tmp_path), RUN)
    await ledger.set_meta(FINISHED, "yes")
    with pytest.raises(RunFolderError, match="finished"):
        await open_run(ledger, RunFolder(tmp_path), RUN)
    await ledger.close()


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """Back up a run with two recorded batches and versions 0 to 2, whose steps took 10 s at least."""
    folder = RunFolder(tmp_path / "run").prepare()
    ledger = Ledger.open(folder.ledger)
    await ledger.set_meta("run_id", "run-1")
    for version in range(3):
        await ledger.record_version(Epoch(0), Version(version), b"announcement")
    await work.score(ledger, 1, 2, 3)
    await ledger.record_batch(work.batch(0, 1))
    await ledger.record_batch(work.batch(1, 2))
    for step, at_unix_s in ((1, 1_000.0), (2, 1_025.0), (3, 1_035.0)):
        await ledger.record_step(Step(step), {})
        await ledger._thread.submit(
            lambda connection, step=step, at=at_unix_s: connection.execute(
                "UPDATE steps SET reported_unix_s = ? WHERE step = ?", (at, step)
            )
        )
    await ledger.close()
    back_up(folder, tmp_path / "backup", with_secrets=True, progress=lambda done, total: None)
    return tmp_path / "backup"


async def test_restored_run_continues_above_all_published_versions(backup: Path, tmp_path: Path) -> None:
    again = RunFolder(tmp_path / "again")
    (created, _) = restore(backup, RunFolder(tmp_path / "elsewhere"), nothing_lost=True)
    _, epoch = restore(backup, again, now_unix_s=created.created_unix_s + 95.0)
    lost = 10 + STEPS_SPARE  # 95 s at 10 s a step
    assert epoch == RecordEpoch(Epoch(1), Step(2), Step(2 + lost), Version(2))
    ledger = Ledger.open(again.ledger)
    assert await ledger.epochs() == [epoch]
    assert await ledger.recorded_batches() == 2 + lost
    assert [entry.rollout_id for entry in await ledger.batch(Step(1))] == [2]
    assert await ledger.batch(Step(2)) == []
    await ledger.close()


async def test_run_that_lost_nothing_continues_unchanged(backup: Path, tmp_path: Path) -> None:
    _, epoch = restore(backup, RunFolder(tmp_path / "again"), nothing_lost=True)
    assert epoch is None
    ledger = Ledger.open(tmp_path / "again" / "store.sqlite")
    assert (await ledger.epochs(), await ledger.recorded_batches()) == ([], 2)
    await ledger.close()


async def test_restored_run_without_versions_gets_an_epoch_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").prepare()
    ledger = Ledger.open(folder.ledger)
    await ledger.set_meta("run_id", "run-1")
    await ledger.close()
    made = back_up(folder, tmp_path / "backup", with_secrets=True, progress=lambda done, total: None)
    _, epoch = restore(tmp_path / "backup", RunFolder(tmp_path / "again"), now_unix_s=made.created_unix_s + 5.0)
    assert epoch == RecordEpoch(Epoch(1), Step(0), Step(5 + STEPS_SPARE), None)
