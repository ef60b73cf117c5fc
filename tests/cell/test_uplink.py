"""The shell of a cell's uplink, with a scripted cell and a scripted head."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from peer.worker.core.events import LeasesGranted, SessionOpened, StopRequested, Verdict, VersionKey, VersionVerified
from rollcast.cell.config import UplinkConfig
from rollcast.cell.service import run as run_uplink
from rollcast.cell.uplink import Uplink
from rollcast.runtime.errors import ConfigError, JoinRefused, Unreachable
from rollcast.wire.ids import Epoch, LeaseId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Rollout
from rollcast.wire.token_ids import pack_ids
from tests.cell.test_core import lease

SAMPLING = pb.Sampling(temperature=1.0, max_new_tokens=8, stop_token_ids=[1])
INFO = pb.RunInfo(sampling=SAMPLING, prompt_tokens_max=16)
WAIT_S, POLL_S = 20.0, 0.01


def made(number: int) -> pb.Rollout:
    segment = pb.Segment(role=pb.ASSISTANT, peer_id="m", packed_ids=pack_ids((5, 1)), loss_mask=b"\1\1")
    return pb.Rollout(lease_id=number, fencing_token=number, group_id=1, segments=[segment], finish_reason=pb.STOP)


class Cell:
    """A cell that has one rollout, until it hears that its slot is over."""

    def __init__(self) -> None:
        self.reports: list[pb.CellReport] = []
        self.open: dict[int, pb.Rollout] = {}
        self.was_away = False

    async def cell(self, report: pb.CellReport) -> pb.CellAnswer:
        self.reports.append(report)
        for slot in report.over:
            self.open.pop(slot.lease_id, None)
        if report.rollouts_max:
            await asyncio.sleep(0 if self.open else 0.02)
        rollouts = list(self.open.values()) if report.rollouts_max else []
        return pb.CellAnswer(workers=1, slots=4, slots_wanted=8, has_version=True, rollouts=rollouts)


class Head:
    """Answers uploads in turn, with an error or with a reason for refusing; empty: accepted."""

    def __init__(self, *answers: str | Unreachable) -> None:
        self.answers = deque(answers)
        self.uploads: list[list[Rollout]] = []

    async def upload(self, rollouts: list[Rollout]) -> tuple[Verdict, ...]:
        self.uploads.append(rollouts)
        answer = self.answers.popleft() if self.answers else ""
        if isinstance(answer, Unreachable):
            raise answer
        return tuple(Verdict(one.lease_id, one.sample_index, not answer, answer) for one in rollouts)


class Publisher:
    def __init__(self) -> None:
        self.versions: list[Version] = []

    async def publish(self, _store: Any, version: Version) -> None:
        self.versions.append(version)


def uplink_of(cell: Cell, head: Head, sent: list[pb.PeerMessage], publisher: Publisher | None = None) -> Uplink:
    uplink = Uplink(cast(Any, cell), INFO, cast(Any, publisher or Publisher()), Random(0))
    uplink.attach(sent.append, cast(Any, head), cast(Any, object()))
    return uplink


async def until(done: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_S / POLL_S)):
        if done():
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError("waited in vain")


async def stopped(uplink: Uplink, running: asyncio.Task[str]) -> None:
    uplink.handle(StopRequested("the test is over"))
    assert await asyncio.wait_for(running, WAIT_S) == "the test is over"


async def test_a_rollout_is_uploaded_until_the_head_answers_and_then_over_at_the_cell() -> None:
    cell, head, sent = Cell(), Head(Unreachable("away"), "busy", ""), list[pb.PeerMessage]()
    cell.open[5] = made(5)
    uplink = uplink_of(cell, head, sent)
    running = asyncio.create_task(uplink.run())
    await until(lambda: not cell.open)
    assert len(head.uploads) == 3
    over = [slot for report in cell.reports for slot in report.over]
    assert [(one.lease_id, one.reason, one.whole_lease) for one in over] == [(5, "", False)]
    await stopped(uplink, running)


async def test_what_the_head_does_not_want_is_over_too() -> None:
    cell, sent = Cell(), list[pb.PeerMessage]()
    cell.open[5] = made(5)
    uplink = uplink_of(cell, Head("late_duplicate"), sent)
    running = asyncio.create_task(uplink.run())
    await until(lambda: not cell.open)
    assert [one.reason for report in cell.reports for one in report.over] == ["late_duplicate"]
    await stopped(uplink, running)


async def test_the_cell_is_asked_what_it_has_before_the_head_hears_of_it() -> None:
    cell, sent = Cell(), list[pb.PeerMessage]()
    uplink = uplink_of(cell, Head(), sent)
    await uplink.learn()
    assert uplink.size.slots == 4
    running = asyncio.create_task(uplink.run())
    uplink.handle(SessionOpened())
    uplink.handle(LeasesGranted((lease(7, 0),)))
    assert [one.WhichOneof("body") for one in sent] == ["version_held", "work_request"]
    assert uplink.held_leases == [LeaseId(7)]
    await until(lambda: any(report.leases for report in cell.reports))
    await stopped(uplink, running)


async def test_the_head_is_told_that_the_cells_coordinator_does_not_answer() -> None:
    cell = Cell()
    uplink = uplink_of(cell, Head(), [])
    await uplink.learn()
    assert uplink.status(None).state == "generating"
    cell.was_away = True
    status = uplink.status(None)
    assert (status.state, status.reason) == ("idle", "the cell's coordinator does not answer")
    assert uplink.size.workers is None
    cell.was_away = False
    assert uplink.size.workers is not None


async def test_the_newest_version_is_published() -> None:
    publisher = Publisher()
    uplink = uplink_of(Cell(), Head(), [], publisher)
    for number in (3, 5, 4):
        uplink.handle(VersionVerified(VersionKey(Version(number), Epoch(0))))
    running = asyncio.create_task(uplink.run())
    await until(lambda: bool(publisher.versions))
    assert publisher.versions == [5]
    await stopped(uplink, running)


async def test_a_cell_that_samples_in_another_way_is_refused() -> None:
    uplink = uplink_of(Cell(), Head(), [])
    longer = pb.Sampling(temperature=1.0, max_new_tokens=99, stop_token_ids=[1])
    uplink.welcomed(pb.Welcome(sampling=longer, prompt_tokens_max=16))  # leases have their own length
    with pytest.raises(ConfigError, match="samples in another way than the head"):
        uplink.welcomed(pb.Welcome(sampling=pb.Sampling(temperature=0.5), prompt_tokens_max=16))
    with pytest.raises(ConfigError):
        uplink.welcomed(pb.Welcome(sampling=SAMPLING, prompt_tokens_max=17))


async def test_an_uplink_without_an_invite_of_the_head_is_refused(tmp_path: Path) -> None:
    invite = tmp_path / "invite.txt"
    invite.write_text("no invite")
    config = UplinkConfig(head_invite_file=invite, state_folder=tmp_path / "state")
    with pytest.raises(JoinRefused, match="this is not an invite"):
        await run_uplink(config, asyncio.Event())
