"""Test `rollcast eval` beside a run: peers of a real coordinator evaluate, or the reason is returned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from learner.evaluation.pass_at_k import EvaluationResult
from rollcast.cli.coordinator_api import Target
from rollcast.cli.run.evaluate_live import NotByPeers, Wanted, evaluate_live
from rollcast.runtime.errors import MalformedMessage
from tests.cli.test_coordinator_api import in_folder
from tests.coordinator.evaluating_peer import evaluate_all, published
from tests.coordinator.running import changed, running

WANTED = Wanted(samples=2, problems=4, pass_at=(1, 2), deadline_s=60.0)


async def test_peers_of_the_run_evaluate_its_newest_version(tmp_path: Path) -> None:
    reported: list[tuple[str, int, int]] = []
    changes = changed(lease={"evaluation_share": 1.0})
    async with running(tmp_path, changes) as coordinator, published(coordinator) as (_, peer, tokenizer):
        asked = asyncio.create_task(
            evaluate_live(
                Target(coordinator.folder.root),
                ["held_out"],
                WANTED,
                lambda *one: reported.append(one),
                poll_s=0.01,
            )
        )
        await evaluate_all(peer, tokenizer, 8)
        result = await asked
    assert isinstance(result, EvaluationResult)
    found = result.sets["held_out"]
    assert (result.step, found.problems, found.samples) == (0, 4, 2)
    assert found.pass_at[1].mean == pytest.approx(0.5)
    assert found.pass_at[2].mean == pytest.approx(1.0)
    assert reported[0] == ("held_out", 0, 8)


async def test_without_a_running_coordinator_nothing_is_asked(tmp_path: Path) -> None:
    found = await evaluate_live(Target(tmp_path), ["held_out"], WANTED, lambda *one: None)
    assert found == NotByPeers("")


async def test_no_peer_is_asked_once_the_run_is_over(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"phase": "finished", "ended_because": "finished"}')
    over = in_folder(tmp_path, "http://127.0.0.1:1")
    assert await evaluate_live(over, ["held_out"], WANTED, lambda *one: None) == NotByPeers("")


async def test_what_the_coordinator_refuses_is_an_error_with_its_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as coordinator:
        with pytest.raises(MalformedMessage, match="no version is published"):
            await evaluate_live(Target(coordinator.folder.root), ["held_out"], WANTED, lambda *one: None)
