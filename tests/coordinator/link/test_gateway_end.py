"""Test the gateway's end of a link: sessions, uploads and questions, with a core, without one, and when it is back."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from coordinator.core.events.actions import AnswerUpload
from coordinator.core.events.events import VersionHeld, WorkRequested
from coordinator.link import frames, gateway_end
from coordinator.link.connection import LinkConnection
from coordinator.link.core_end import CoreEnd
from coordinator.link.gateway_end import RemoteCore
from coordinator.rpc.core_link import LocalCore, NotNow, Opening
from coordinator.shell.sessions import PeerChannel
from rollcast.runtime.errors import Banned, MalformedMessage, RollcastError, Unreachable
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Rollout
from tests.coordinator.link.ends import (
    ALICE,
    BOB,
    SETTINGS,
    SHAPE,
    WAIT_S,
    Ends,
    RecordingCore,
    connect,
    hello,
    joined,
    linked,
    until,
)
from tests.coordinator.link.test_connection import End

ROLLOUT = Rollout(LeaseId(5), FencingToken(2), GroupId(3), 1, (), "stop", 0.5, body=b"body")
HELD = VersionHeld(ALICE, Epoch(0), Version(4))
STOP = pb.CoordinatorMessage(stop=pb.Stop(reason="enough"))


def opening(ends: Ends, channel: PeerChannel) -> asyncio.Task[str]:
    return asyncio.create_task(ends.gateway.open(Opening(joined(channel.peer_id), "", ""), channel))


async def test_a_session_passes_messages_both_ways_and_ends() -> None:
    async with linked() as ends:
        channel = await ends.session()
        assert await ends.gateway.invite_of(ALICE) == "invite of alice"
        ends.gateway.apply(ALICE, HELD)
        await ends.gateway.renew(channel, b"csr")
        await ends.gateway.accused(ALICE, pb.Accusation(culprit_peer_id="bob"))
        renewed = await channel.next()
        assert renewed is not None
        assert renewed.certificate.certificate_pem == b"new"
        assert (ends.core.events, ends.core.renewals) == ([HELD], [b"csr"])
        assert [one.culprit_peer_id for one in ends.core.accusations] == ["bob"]
        ends.core.channels[ALICE].send(STOP)
        ends.core.channels[ALICE].end("enough")
        assert [await channel.next(), await channel.next()] == [STOP, None]
        ends.gateway.close(channel)
        await until(lambda: bool(ends.core.closed))
        assert ends.core.closed == [(ALICE, "enough", False)]
        assert (ends.gateway._sessions, ends.gateway._by_peer) == ({}, {})


async def test_goodbye_is_told() -> None:
    async with linked() as ends:
        channel = await ends.session()
        channel.said_goodbye = True
        channel.end("it drains")
        ends.gateway.close(channel)
        await until(lambda: ends.core.closed == [(ALICE, "it drains", True)])


async def test_the_cores_refusals_reach_the_peer() -> None:
    async with linked() as ends:
        ends.core.refusals = {ALICE: Banned.because("spam"), BOB: NotNow("another session is still open")}
        with pytest.raises(Banned, match="banned from the run"):
            await opening(ends, PeerChannel(ALICE, "peer"))
        with pytest.raises(NotNow, match="another session is still open"):
            await opening(ends, PeerChannel(BOB, "peer"))
        ends.core.refusals.clear()
        with pytest.raises(Unreachable, match="no session at this gateway"):
            await ends.gateway.invite_of(ALICE)
        await ends.session()
        assert len(ends.gateway._sessions) == 1


async def test_a_malformed_accusation_ends_the_session() -> None:
    async with linked() as ends:
        channel = await ends.session()
        await ends.gateway.accused(ALICE, pb.Accusation())
        assert await channel.next() is None
        assert channel.ended_because == "an accusation names no peer"


async def test_uploads_are_answered_by_the_core() -> None:
    async with linked() as ends:
        await ends.session()
        assert ends.gateway.expects(ALICE, pb.Rollout())
        stored: list[AnswerUpload] = []
        malformed: list[AnswerUpload] = []
        ends.gateway.upload(ALICE, ROLLOUT, stored.append)
        ends.gateway.upload_malformed(ALICE, pb.Rollout(lease_id=6), "no segment", malformed.append)
        await until(lambda: len(ends.core.answers) == 2)
        assert [one.body for one in ends.core.uploads] == [b"body"]
        ends.core.accept(1)
        await until(lambda: bool(malformed))
        assert malformed[0].lease_id == 6
        assert not stored
        ends.core.accept(0)
        await until(lambda: bool(stored))
        (answer,) = stored
        assert (answer.accepted, answer.lease_id, answer.sample_index) == (True, 5, 1)
        assert ends.gateway._uploads == {}


async def test_uploads_are_refused_as_busy_while_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with linked() as ends:
        await ends.session()
        monkeypatch.setattr(gateway_end, "UPLOADS_WAITING_BYTES_MAX", -1)
        answers: list[AnswerUpload] = []
        ends.gateway.upload(ALICE, ROLLOUT, answers.append)
        ends.gateway.upload_malformed(ALICE, pb.Rollout(), "", answers.append)
        assert [one.reason for one in answers] == ["busy"] * 2
        assert not ends.core.uploads


async def test_without_a_core_sessions_stay_and_uploads_are_busy() -> None:
    async with linked() as ends:
        channel = await ends.session()
        answers: list[AnswerUpload] = []
        ends.gateway.upload(ALICE, ROLLOUT, answers.append)
        await until(lambda: bool(ends.core.uploads))
        await ends.cut()
        assert ends.core.closed == [(ALICE, "its gateway was lost", False)]
        ends.gateway.upload(ALICE, ROLLOUT, answers.append)
        assert [(one.accepted, one.reason, one.lease_id) for one in answers] == [(False, "busy", 5)] * 2
        with pytest.raises(NotNow):
            await opening(ends, PeerChannel(BOB, "peer"))
        with pytest.raises(Unreachable):
            await ends.gateway.tokenizer()
        assert (channel.ended_because, len(ends.gateway._sessions)) == ("", 1)


async def test_a_new_core_hears_all_sessions_in_one_frame() -> None:
    ends = Ends()
    await ends.connect()
    channels = {peer_id: await ends.session(peer_id) for peer_id in (ALICE, BOB)}
    ends.gateway.apply(ALICE, HELD)
    await ends.cut()
    ends.gateway.apply(BOB, WorkRequested(BOB, 3))  # while nobody hears it
    core = End()
    link, _ = ends.gateway.new_link()
    await connect(core.link, link)
    core.link.send(frames.Ready("run", b"ca", b"certificate", False, b"welcome"))
    await until(lambda: bool(core.items))
    link.abort("cut")
    (frame,) = core.items
    opened = [item for item in frame if isinstance(item, frames.Open)]
    assert [(one.joined.peer_id, one.joined.invite, one.resumed) for one in opened] == [
        (ALICE, "invite of alice", True),
        (BOB, "invite of bob", True),
    ]
    told = {item.session: frames.event_in(item) for item in frame if isinstance(item, frames.Told)}
    assert told == {opened[0].session: HELD, opened[1].session: WorkRequested(BOB, 3)}
    assert not any(one.ended_because for one in channels.values())


async def test_a_resumed_session_goes_on_without_a_second_welcome() -> None:
    async with linked() as ends:
        channel = await ends.session()
        ends.gateway.apply(ALICE, HELD)
        await until(lambda: ends.core.events == [HELD])
        await ends.cut()
        await ends.connect()
        await until(lambda: ends.core.events == [HELD, HELD])
        assert [one.resumed for one in ends.core.openings] == [False, True]
        assert ends.core.openings[1].joined.invite == "invite of alice"
        ends.core.channels[ALICE].send(STOP)
        assert await channel.next() == STOP


async def test_a_resumed_session_that_the_core_refuses_ends() -> None:
    async with linked() as ends:
        channels = [await ends.session(ALICE), await ends.session(BOB)]
        await ends.cut()
        ends.core.refusals = {ALICE: NotNow("another session of the same peer replaced it"), BOB: Banned.because("x")}
        await ends.connect()
        assert await channels[0].next() is None, "it retries"
        assert channels[0].ended_because == "another session of the same peer replaced it"
        refused = await channels[1].next()
        assert refused is not None
        assert refused.refused.code == "RC308"
        assert await channels[1].next() is None


async def test_a_core_with_other_settings_ends_the_sessions() -> None:
    async with linked() as ends:
        channel = await ends.session()
        await ends.cut()
        ends.core.welcome_digest = b"another"
        await ends.connect()
        assert await channel.next() is None
        ends.gateway.apply(ALICE, HELD)  # until its call has ended
        answers: list[AnswerUpload] = []
        ends.gateway.upload(ALICE, ROLLOUT, answers.append)
        assert answers[0].reason == "busy"
        ends.gateway.close(channel)
        await ends.session(BOB)
        assert [one.joined.peer_id for one in ends.core.openings] == [ALICE, BOB]
        assert not ends.core.events


async def test_sessions_are_kept_when_the_core_is_interrupted() -> None:
    async with linked() as ends:
        channel = await ends.session()
        interrupted = ends.core
        interrupted.is_interrupted = True
        interrupted.channels[ALICE].end("the run is interrupted: stopped")
        await until(lambda: bool(interrupted.closed) and not ends.ends)
        assert ends.end is not None
        again, lost = CoreEnd(cast(LocalCore, interrupted), SETTINGS, ends.ends), list[str]()
        await connect(again.link, LinkConnection(lambda body: None, lost.append))
        await until(lambda: bool(lost))  # until it has stopped, it takes up no gateway
        ends.core = RecordingCore()
        await ends.connect()
        await until(lambda: bool(ends.core.channels))
        assert (channel.ended_because, ends.core.openings[0].resumed) == ("", True)


async def test_a_session_that_opens_while_the_core_is_interrupted_is_tried_again() -> None:
    async with linked() as ends:
        ends.core.may_open.clear()
        ends.core.refusals[ALICE] = NotNow("the run is interrupted: stopped")
        task = opening(ends, PeerChannel(ALICE, "peer"))
        await until(lambda: bool(ends.core.openings))
        ends.core.is_interrupted = True
        ends.core.may_open.set()
        with pytest.raises(NotNow):
            await task
        await until(lambda: not ends.ends)


async def test_accusations_wait_for_a_core() -> None:
    async with linked() as ends:
        await ends.session()
        await ends.cut()
        for number in range(gateway_end.ACCUSATIONS_KEPT + 3):
            await ends.gateway.accused(ALICE, pb.Accusation(culprit_peer_id="bob", chunk_index=number))
        await ends.connect()
        await until(lambda: len(ends.core.accusations) == gateway_end.ACCUSATIONS_KEPT)
        assert ends.core.accusations[-1].chunk_index == gateway_end.ACCUSATIONS_KEPT + 2
        await ends.cut()
        await ends.connect()
        await ends.session(BOB)
        assert len(ends.core.accusations) == gateway_end.ACCUSATIONS_KEPT


async def test_a_session_that_opens_while_the_link_is_lost_must_be_opened_again() -> None:
    async with linked() as ends:
        ends.core.may_open.clear()
        task = opening(ends, PeerChannel(ALICE, "peer"))
        await until(lambda: bool(ends.core.openings))
        await ends.cut()
        with pytest.raises(NotNow):
            await task
        assert ends.gateway._sessions == {}


async def test_a_peer_that_goes_while_its_session_opens_leaves_nothing() -> None:
    async with linked() as ends:
        ends.core.may_open.clear()
        task = opening(ends, PeerChannel(ALICE, "peer"))
        await until(lambda: bool(ends.core.openings))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert ends.end is not None
        await until(lambda: ends.end is not None and ends.end.session_count == 0)
        ends.core.may_open.set()
        await until(lambda: bool(ends.core.closed))
        assert [one[0] for one in ends.core.closed] == [ALICE]


async def test_questions_are_asked_once_and_answered_to_all() -> None:
    async with linked() as ends:
        assert await ends.gateway.route_shape() == SHAPE
        answers = await asyncio.gather(ends.gateway.tokenizer(), ends.gateway.tokenizer())
        assert answers == [("hash", b"frame")] * 2
        assert ends.gateway._questions == {}


async def test_the_cores_refusal_of_a_question_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        raise RollcastError("the ledger is away")

    async with linked() as ends:
        monkeypatch.setattr(ends.core, "route_shape", broken)
        with pytest.raises(RollcastError, match="the ledger is away"):
            await ends.gateway.route_shape()


async def test_the_core_may_end_the_run_or_refuse_the_gateway() -> None:
    async with linked() as ends:
        assert ends.end is not None
        ends.end.link.send(frames.Over("finished"))
        async with asyncio.timeout(WAIT_S):
            assert await ends.gateway.over == "finished"
    refused = RemoteCore(lambda: hello(format=99), lambda ready: None)
    ends = Ends()
    ends.gateway = refused
    connecting = asyncio.create_task(ends.connect())
    async with asyncio.timeout(WAIT_S):
        error = await refused.failure
    connecting.cancel()
    assert isinstance(error, RollcastError)
    assert (error.code, "same release" in error.fix) == ("RC204", True)
    await until(lambda: not ends.ends)


async def test_a_core_that_does_not_begin_with_ready_is_not_followed() -> None:
    gateway, core = RemoteCore(hello, lambda ready: None), End()
    link, ended = gateway.new_link()
    await connect(core.link, link)
    core.link.send(frames.End(1, "why"))
    async with asyncio.timeout(WAIT_S):
        assert await ended == "the core must begin with Ready"
    await until(lambda: bool(core.lost))


async def test_a_defect_ends_the_gateway() -> None:
    gateway = RemoteCore(hello, lambda ready: None)
    for error in (MalformedMessage("first"), MalformedMessage("second")):
        gateway.fail(error)
    assert str(await gateway.failure) == "RC305: first"
