from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from coordinator.core.members.learner_lives import LEARNER_LIVES, LearnerLives
from coordinator.core.members.progress import WaitStage
from coordinator.ledger.event_archive import write_segment
from coordinator.report.wall_time import Account, account
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Step


async def a_run(path: Path) -> None:
    """Record two steps of 10 s each after 20 s of starting, then 10 s of absence and 10 s of replaying."""
    ledger = Ledger.open(path)
    parts = {"train_s": 4.0, "behaviour_s": 1.0, "publish_s": 0.5, "checkpoint_s": 0.25, "other_s": 0.25, "wait_s": 4.0}
    for step in (1, 2):
        await ledger.record_step(Step(step), parts | {"step_s": 10.0, "replayed": 0.0})
    await ledger.record_step(Step(2), parts | {"train_s": 1e6, "replayed": 1.0})
    await ledger.record_step(Step(3), parts | {"train_s": 1e6, "replayed": 1.0})
    causes = [["generate", "a", 3.0], ["generate", "b", 1.0], ["score", "", 1.0]]
    await ledger.record_event("learner_waited", "step 1", json.dumps(causes), cause="step 1")
    lives = LearnerLives()
    first = {"life_starting_s": 20.0, "life_steps_s": 20.0}
    lives.observe({"life_began_unix_s": 1_000.0, "life_s": 40.0} | first)
    lives.observe({"life_began_unix_s": 1_050.0, "life_s": 10.0, "life_replay_s": 10.0})
    await ledger.set_meta(LEARNER_LIVES, lives.to_json())
    await ledger.close()


@pytest.fixture
async def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "store.sqlite"
    await a_run(path)
    return path


def seconds(found: Account) -> dict[str, float]:
    assert [share.seconds for share in found.shares] == sorted((share.seconds for share in found.shares), reverse=True)
    return {share.cause: round(share.seconds, 6) for share in found.shares}


async def test_waits_that_were_archived_count_too(ledger: Path) -> None:
    before = account(RunFolder(ledger.parent))
    opened = Ledger.open(ledger)
    entries = await opened.oldest_events(1, kept=0)
    write_segment(ledger.parent / "events", entries, 1 << 20)
    assert account(RunFolder(ledger.parent)) == before  # a crash may leave them in both places
    await opened.delete_events(entries[-1].order)
    await opened.close()
    assert account(RunFolder(ledger.parent)) == before


async def test_every_second_has_a_cause(ledger: Path) -> None:
    found = account(RunFolder(ledger.parent))
    assert found.wall_s == 60.0
    assert seconds(found) == {
        "starting": 20.0,
        "replaying after a restart": 10.0,
        "no learner running": 10.0,
        "training": 8.0,
        "waiting: generate": 3.2,
        "waiting: calls to the coordinator": 4.0,
        "waiting: score": 0.8,
        "behaviour log-probabilities": 2.0,
        "publishing": 1.0,
        "checkpointing": 0.5,
        "rest of the steps": 0.5,
    }
    assert found.unaccounted == pytest.approx(0.0)
    assert found.utilisation == pytest.approx(8.0 / 60.0)


async def test_the_peer_that_was_waited_for_is_named(ledger: Path) -> None:
    (share,) = [share for share in account(RunFolder(ledger.parent)).shares if share.cause == "waiting: generate"]
    assert share.whose == {"a": pytest.approx(2.4), "b": pytest.approx(0.8)}


async def test_with_since_time_outside_steps_is_one_cause(ledger: Path) -> None:
    found = account(RunFolder(ledger.parent), since_unix_s=1_030.0)
    assert found.wall_s == 30.0
    assert found.steps == 3  # reported when this test ran
    assert seconds(found)["outside steps"] == pytest.approx(10.0)
    assert found.unaccounted == pytest.approx(0.0)


async def test_run_without_a_learner_has_no_account(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    await ledger.close()
    assert account(RunFolder(tmp_path)) is None


def test_the_guide_names_every_cause_of_a_wait() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "learner-idles.md").read_text()
    rows = re.findall(r"^\| waiting: (.*?) \|", guide, re.MULTILINE)
    named = {cause for row in rows for cause in row.split(", ")}
    assert named == {*get_args(WaitStage), "calls to the coordinator"}
