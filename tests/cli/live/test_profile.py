"""Test `rollcast profile` against a real coordinator whose learner is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rollcast.cli.coordinator_api import Target
from rollcast.cli.live import profile as command
from rollcast.cli.live.profile import State, traced
from rollcast.runtime.errors import ConfigError, NotProfiled
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.coordinator.running import Member, Running, running

FOLDER = "/run/profiles/step-000007"
WANTED = {"steps": 3, "python_tracer": False, "deadline_s": 60.0}


class Learner:
    """A learner that reports on every order it gets: each time the next of ``reports``."""

    def __init__(self, member: Member, reports: Iterable[dict[str, Any]]) -> None:
        self.member = member
        self.reports = iter(reports)
        self.orders: list[pb.ProfileOrder] = []

    async def work(self) -> None:
        report = None
        while True:
            reply = await self.member.stub.ReportStatus(pb.LearnerStatus(phase="training", profile=report))
            if reply.HasField("profile"):
                self.orders.append(reply.profile)
                changes = next(self.reports, None)
                known = report is not None and report.profile_id == reply.profile.profile_id
                if changes is not None:
                    report = pb.ProfileReport(profile_id=reply.profile.profile_id, **changes)
                elif known:
                    report = None  # a learner that was restarted
            await asyncio.sleep(0.01)


async def ordered(
    coordinator: Running, member: Member, reports: Iterable[dict[str, Any]], **changes: Any
) -> tuple[State, list[State], Learner]:
    seen: list[State] = []
    learner = Learner(member, reports)
    working = asyncio.create_task(learner.work())
    try:
        async with asyncio.timeout(20.0):
            state = await traced(Target(coordinator.folder.root), WANTED | changes, seen.append, poll_s=0.01)
        return state, seen, learner
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_the_learner_traces_its_next_steps_or_the_reason_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = {"begun": True, "first_step": 7, "folder": FOLDER}
    saved = begun | {"steps_done": 3, "ended": True, "size_bytes": 3_400_000}
    async with running(tmp_path) as coordinator:
        target = Target(coordinator.folder.root)
        with pytest.raises(NotProfiled) as refused:
            await traced(target, WANTED, lambda state: None, poll_s=0.01)
        assert refused.value.cause == "no learner is connected"
        async with Member(await coordinator.join("learner")) as member:
            await member.stub.ReportStatus(pb.LearnerStatus(phase="waiting"))
            state, seen, learner = await ordered(coordinator, member, [{}, begun, begun | {"steps_done": 2}, saved])
            assert (state["stage"], state["steps_done"], state["folder"]) == ("saved", 3, FOLDER)
            assert {one["stage"] for one in seen} <= {"ordered", "running"}
            assert [one.steps for one in learner.orders] == [3] * len(learner.orders)
            with pytest.raises(NotProfiled) as failed:
                await ordered(coordinator, member, [begun | {"ended": True, "failure": "no space"}])
            assert (failed.value.cause, FOLDER in failed.value.fix) == ("no space", True)
            with pytest.raises(NotProfiled) as restarted:
                await ordered(coordinator, member, [{}])
            assert restarted.value.cause == "the learner was restarted before it was done"
            with pytest.raises(NotProfiled) as late:  # the learner is gone, and its report never comes
                await traced(target, WANTED | {"deadline_s": 0.01}, lambda state: None, poll_s=0.01)
            assert late.value.cause == "the learner began no step in time"
    print(command._described(state))
    told = capsys.readouterr().out
    assert f"trace of steps 7 to 9, 3.4 MB, on the learner's machine: {FOLDER}\n" in told
    assert f"xprof --logdir {FOLDER}" in told


def test_the_number_of_steps_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        command.profile(tmp_path, steps=21)
