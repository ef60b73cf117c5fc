"""Test the control port: access by role, the limits of a session, and the tokenizer that peers fetch.

One coordinator serves all tests that leave it unharmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import resource
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
import zstandard

from coordinator.core.events.actions import AnswerUpload
from coordinator.core.events.events import Event, PeerJoined, PeerLeft
from coordinator.rpc import peers, tokenizer
from coordinator.rpc import server as server_module
from coordinator.rpc import uploads as uploads_module
from coordinator.rpc.access import ROLES_BY_METHOD, Messages, RoleGate
from coordinator.rpc.core_link import REDIALS_PER_SECOND, LocalCore, Opening, WelcomeSettings
from coordinator.rpc.peers import event_of, joined_of
from coordinator.rpc.server import CONCURRENT_CALLS_MAX, ControlServer, Servicer, connections_allowed
from coordinator.rpc.tokenizer import TokenizerCalls, packed_file
from coordinator.shell.pending_calls import Answered
from coordinator.shell.sessions import PeerChannel, Sessions
from rollcast.runtime.errors import (
    CheckpointError,
    MalformedMessage,
    PortInUse,
    RateLimited,
    RollcastError,
    Unreachable,
    WrongKey,
)
from rollcast.wire.identity.certificates import Caller, caller_from_certificate_pem
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.identity.tls import TlsCredentials, new_tls_key
from rollcast.wire.ids import LeaseId, PeerId, RunId, UploadId
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import translate
from rollcast.wire.limits import COUNTER_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc as pb_grpc
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.rollouts import Rollout
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.running import WAIT_S, Member, Running, changed, running, version
from tests.wire.text.hub_tokenizer_files import tokenizer_folder

EMPTY: dict[str, Any] = {
    "OpenLearner": pb.LearnerHello(),
    "Examples": pb.ExamplesRequest(),
    "HeldOut": pb.HeldOutRequest(),
    "NextBatch": pb.BatchRequest(),
    "Announce": pb.VersionAnnouncement(),
    "OpenEpoch": pb.EpochRequest(),
    "ReportStep": pb.StepReport(),
    "ReportStatus": pb.LearnerStatus(phase="finished"),
}


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as started:
        yield started


async def error_of(call: Any) -> RollcastError:
    """Return the error that a call ends with."""
    try:
        async with asyncio.timeout(WAIT_S):
            if hasattr(call, "__aiter__"):
                async for _ in call:
                    pass
            else:
                await call
    except grpc.aio.AioRpcError as error:
        return translate(error, "testing")
    raise AssertionError("the call went through")


async def test_invalid_calls_are_refused(coordinator: Running) -> None:
    await _a_peer_may_not_call_as_learner(coordinator)
    await _the_learner_may_not_work(coordinator)
    await _strangers_do_not_get_through_the_handshake(coordinator)
    await _older_tls_is_refused(coordinator)
    await _sessions_are_refused(coordinator)
    await _sessions_are_ended(coordinator)
    await _two_that_nobody_can_dial_are_told_to_dial_each_other(coordinator)
    await _a_second_place_is_refused_and_a_move_is_not(coordinator)
    await _the_learners_calls_are_checked(coordinator)


async def _a_peer_may_not_call_as_learner(coordinator: Running) -> None:
    async with Member(await coordinator.join("peer")) as peer:
        for method, request in EMPTY.items():
            error = await error_of(getattr(peer.stub, method)(request))
            assert isinstance(error, WrongKey), method
            assert error.what == f"a peer may not call {method}"
        assert isinstance(await error_of(peer.stub.ScoreCompletions(iter(()))), WrongKey)


async def _the_learner_may_not_work(coordinator: Running) -> None:
    async with Member(await coordinator.join("learner")) as learner:
        assert isinstance(await error_of(learner.stub.UploadRollouts(iter(()))), WrongKey)
        assert isinstance(await error_of(learner.session), WrongKey)


async def _strangers_do_not_get_through_the_handshake(coordinator: Running) -> None:
    honest = await coordinator.join("peer")
    stranger, key = RunCA.create(coordinator.folder.root / "stranger", RunId(honest.run_id)), new_tls_key()
    forged = stranger.issue(key.csr_pem(), peer_id=honest.peer_id, role="learner", lifetime_s=60)
    credentials = TlsCredentials(honest.credentials.ca_pem, forged, key.private_pem)
    enrolment = Enrolment(credentials, honest.run_id, honest.grpc_address, "", b"", honest.peer_id)
    async with Member(enrolment) as impostor:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await impostor.stub.ReportStatus(pb.LearnerStatus(phase="finished"), timeout=5)
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def _older_tls_is_refused(coordinator: Running) -> None:
    peer = await coordinator.join("peer")
    host, _, port = peer.grpc_address.rpartition(":")
    for newest, spoken in ((ssl.TLSVersion.TLSv1_2, None), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        context = peer.credentials.ssl_client_context()
        context.set_alpn_protocols(["h2"])
        context.minimum_version = context.maximum_version = newest
        if spoken is None:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(host, int(port), ssl=context)
            continue
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        assert writer.get_extra_info("ssl_object").version() == spoken
        writer.close()


async def _sessions_are_refused(coordinator: Running) -> None:
    enrolment = await coordinator.join("peer")
    async with Member(enrolment) as peer:
        await peer.hello(protocol=pb.ProtocolRange(min=7, max=9))
        refused = await peer.next("refused")
        assert (refused.code, "upgrade Rollcast on" in refused.fix) == ("RC204", True)
        await peer.ended()
    async with Member(enrolment) as peer:
        await peer.hello(role="origin")
        assert (await peer.next("refused")).code == "RC302"
    async with Member(enrolment) as peer:
        await peer.say(heartbeat=pb.Heartbeat())
        assert (await peer.next("refused")).code == "RC305"


async def _sessions_are_ended(coordinator: Running) -> None:
    enrolment = await coordinator.join("peer")
    async with Member(enrolment) as first, Member(enrolment) as second:
        await first.hello()
        await first.next("welcome")
        await second.hello()
        await second.next("welcome")
        await first.ended()
        await second.say(certificate_request=pb.CertificateRequest(csr_pem=new_tls_key().csr_pem()))
        renewed = await second.next("certificate")
        assert caller_from_certificate_pem(renewed.certificate_pem).peer_id == enrolment.peer_id
        await second.hello()  # an honest peer sends only one
        await second.ended()
    for hostile in (b"\xff" * 8, pb.PeerMessage(goodbye=pb.Goodbye(reason="x" * (300 << 10))).SerializeToString()):
        async with Member(enrolment) as peer:
            session = peer.channel.stream_stream("/rollcast.v1.Coordinator/Session", request_serializer=bytes)()
            for message in (pb.PeerMessage(hello=pb.Hello(protocol=range_to_pb(), role="peer")), None):
                await session.write(hostile if message is None else message.SerializeToString())
            async with asyncio.timeout(WAIT_S):
                while await session.read() is not grpc.aio.EOF:
                    pass


async def _two_that_nobody_can_dial_are_told_to_dial_each_other(coordinator: Running) -> None:
    async with Member(await coordinator.join("peer")) as one, Member(await coordinator.join("peer")) as other:
        for peer, port in ((one, 7001), (other, 7002)):
            await peer.hello()
            await peer.next("welcome")
            told = pb.Reachability(nat="port-restricted", punch_address=f"127.0.0.1:{port}")
            await peer.say(reachability=told)
            await peer.say(punch_request=pb.PunchRequest(peer_id=peer.enrolment.peer_id))
            assert (await peer.next("punch")).refused  # by now the coordinator knows how this peer is reached
        await one.say(punch_request=pb.PunchRequest(peer_id=other.enrolment.peer_id))
        asked, met = await one.next("punch"), await other.next("punch")
        assert (asked.punch_id, asked.asked, asked.address) == (met.punch_id, True, "127.0.0.1:7002")
        assert (met.asked, met.address, met.serves) == (False, "127.0.0.1:7001", not asked.serves)
        await one.say(punch_outcome=pb.PunchOutcome(punch_id=asked.punch_id, opened=False, seconds=3.0))
        await one.say(punch_request=pb.PunchRequest(peer_id=other.enrolment.peer_id))
        assert "the last punch failed" in (await one.next("punch")).refused
        await one.say(peer_records=pb.PeerRecords())  # an honest peer does not send this
        await one.ended()


async def _a_second_place_is_refused_and_a_move_is_not(coordinator: Running) -> None:
    enrolment = await coordinator.join("peer")
    async with Member(enrolment) as first:
        await first.hello(instance_id="attic")
        await first.next("welcome")
        async with Member(enrolment) as copy:
            await copy.hello(instance_id="copy")
            assert isinstance(await error_of(copy.session), Unreachable), "which of the two is there is not certain yet"
        await first.say(heartbeat=pb.Heartbeat(state="idle"))
        await first.say(heartbeat=pb.Heartbeat(sequence=7, state="idle"))
        assert (await first.next("heartbeat_answer")).sequence == 7, "the only one that asked for an answer"
        assert (await _answer(enrolment, "copy")).refused.code == "RC306"
        assert (await _answer(enrolment, "attic")).HasField("welcome"), "the same place: its connection broke"
    assert (await _answer(enrolment, "cellar")).HasField("welcome")


async def _answer(enrolment: Enrolment, instance_id: str) -> pb.CoordinatorMessage:
    """Return the first answer to a Hello; retry while the coordinator is not certain."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async with Member(enrolment) as member:
                    await member.hello(instance_id=instance_id)
                    return cast(pb.CoordinatorMessage, await member.session.read())


async def _the_learners_calls_are_checked(coordinator: Running) -> None:
    async with Member(await coordinator.join("learner")) as learner:
        hello = pb.LearnerHello(protocol=range_to_pb(), learner_public_key=bytes(32))
        assert isinstance(await error_of(learner.stub.OpenLearner(hello)), WrongKey)
        run_id = learner.enrolment.run_id
        forged = version(run_id, Identity.generate())
        assert isinstance(await error_of(learner.stub.Announce(forged)), WrongKey)
        assert isinstance(
            await error_of(learner.stub.Announce(version("other-run", coordinator.learner_identity))), MalformedMessage
        )
        many = pb.StepReport(step=1, values={f"value {number}": 1.0 for number in range(500)})
        assert isinstance(await error_of(learner.stub.ReportStep(many)), MalformedMessage)
        early = [part async for part in learner.stub.NextBatch(pb.BatchRequest(step=0, wait_s=0.0))]
        assert not early[0].header.ready
        with pytest.raises(grpc.aio.AioRpcError) as ahead:  # a ledger that was restored from an old backup
            _ = [part async for part in learner.stub.NextBatch(pb.BatchRequest(step=1, wait_s=20.0))]
        assert isinstance(translate(ahead.value, "asking for a batch"), CheckpointError)


async def test_evaluation_problems_and_scores(coordinator: Running) -> None:
    async with Member(await coordinator.join("learner")) as learner:
        hello = pb.LearnerHello(protocol=range_to_pb(), learner_public_key=coordinator.learner_identity.public_key)
        info = await learner.stub.OpenLearner(hello)
        tokenizer = Tokenizer.from_json(info.tokenizer_json)
        held_out = [example async for example in learner.stub.HeldOut(pb.HeldOutRequest(count=1000))]
        assert len(held_out) == 8
        assert not any(example.answer_token_ids for example in held_out)

        def completions() -> Any:
            for index, example in enumerate(held_out):
                number = int(tokenizer.decode(example.prompt_token_ids).partition("+")[0])
                tokens = tokenizer.encode(str(number + 1 if index % 2 else 999))
                yield pb.Completion(example_id=example.example_id, token_ids=[*tokens, tokenizer.eos_id])

        scores = [score async for score in learner.stub.ScoreCompletions(completions())]
        assert [score.example_id for score in scores] == [example.example_id for example in held_out]
        assert [score.exact for score in scores] == [index % 2 == 1 for index in range(8)]
        unknown = learner.stub.ScoreCompletions(iter([pb.Completion(example_id=99, token_ids=[1])]))
        assert isinstance(await error_of(unknown), MalformedMessage)
        examples = learner.stub.Examples(pb.ExamplesRequest(count=3))
        found = [tokenizer.decode(example.answer_token_ids) async for example in examples]
        assert len(found) == 3


async def test_port_in_use_is_named(tmp_path: Path) -> None:
    authority, key = RunCA.create(tmp_path, RunId("run-1")), new_tls_key()
    certificate = authority.issue_coordinator(key.csr_pem(), [])
    credentials = TlsCredentials(authority.certificate_pem, certificate, key.private_pem)
    servicer = cast(Servicer, pb_grpc.CoordinatorServicer())
    first = await ControlServer.start(
        servicer, RoleGate("run-1", learner_called=lambda: None), credentials, host="127.0.0.1", port=0
    )
    with pytest.raises(PortInUse, match=str(first.port)) as caught:
        await ControlServer.start(
            servicer, RoleGate("run-1", learner_called=lambda: None), credentials, host="127.0.0.1", port=first.port
        )
    assert "serve.grpc_port" in caught.value.fix
    await first.stop(0)


def test_connections_leave_files_for_everything_else() -> None:
    found = [connections_allowed(files) for files in (100, 1024, 20_000, 1 << 20, resource.RLIM_INFINITY)]
    assert found == [1, 768, 15_000, CONCURRENT_CALLS_MAX, CONCURRENT_CALLS_MAX]


async def test_connections_beyond_those_allowed_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "connections_allowed", lambda files: 1)
    authority, key = RunCA.create(tmp_path, RunId("run-1")), new_tls_key()
    certificate = authority.issue_coordinator(key.csr_pem(), [])
    credentials = TlsCredentials(authority.certificate_pem, certificate, key.private_pem)
    gate = RoleGate("run-1", learner_called=lambda: None)
    servicer = cast(Servicer, pb_grpc.CoordinatorServicer())
    server = await ControlServer.start(servicer, gate, credentials, host="127.0.0.1", port=0)
    ends = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    async with asyncio.timeout(WAIT_S):
        for reader, _ in ends[1:]:
            assert await reader.read() == b""
    assert not ends[0][0].at_eof()
    for _, writer in ends:
        writer.close()
    await server.stop(0)


def test_every_method_has_its_roles() -> None:
    service = pb.DESCRIPTOR.services_by_name["Coordinator"]
    assert {method.name for method in service.methods} == set(ROLES_BY_METHOD)


def test_a_certificate_of_another_run_is_refused() -> None:
    gate = RoleGate("run-1", learner_called=lambda: None)
    gate.check("Session", Caller(RunId("run-1"), "peer", PeerId("alice")))
    with pytest.raises(WrongKey, match="run-2"):
        gate.check("Session", Caller(RunId("run-2"), "peer", PeerId("alice")))


@pytest.mark.parametrize(
    "message",
    [
        pb.PeerMessage(),
        pb.PeerMessage(hello=pb.Hello()),
        pb.PeerMessage(version_held=pb.VersionHeld(version=COUNTER_MAX + 1)),
        pb.PeerMessage(heartbeat=pb.Heartbeat(tokens_generated=COUNTER_MAX + 1)),
        pb.PeerMessage(lease_return=pb.LeaseReturn(lease_ids=range(5000))),
        pb.PeerMessage(accusation=pb.Accusation(culprit_peer_id="x" * 65)),
        pb.PeerMessage(partial_rollout=pb.PartialRollout(lease_id=1)),
    ],
)
def test_messages_out_of_bounds_end_a_session(message: pb.PeerMessage) -> None:
    with pytest.raises(MalformedMessage):
        event_of(PeerId("alice"), message)


def test_heartbeat_text_has_no_control_characters() -> None:
    beat = pb.Heartbeat(state="idle", reason="\x1b[2J" + "x" * 5000, tokens_per_second=float("nan"))
    facts: Any = event_of(PeerId("alice"), pb.PeerMessage(heartbeat=beat))
    assert "\x1b" not in facts.facts.reason
    assert len(facts.facts.reason) == 1024
    assert facts.facts.tokens_per_second == 0.0


@pytest.mark.parametrize("size_bytes", [0, 100_000_000])
def test_flood_is_refused(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """A flood is too many messages, or too many bytes."""
    monkeypatch.setattr(peers, "RATE_WINDOW_S", 1e9)
    monkeypatch.setattr(peers, "MESSAGES_PER_SECOND_MAX", 5e-9 if not size_bytes else 1.0)
    monkeypatch.setattr(peers, "BYTES_PER_SECOND_MAX", 0.5)
    budget = peers._Budget()
    for _ in range(5):
        budget.spend(size_bytes)
    with pytest.raises(MalformedMessage):
        budget.spend(size_bytes)


def test_hello_fields_for_relay_plans_are_limited() -> None:
    hello = pb.Hello(
        protocol=range_to_pb(),
        role="peer",
        region="eu-north" + "x" * 100,
        metered=True,
        upload_cap_bytes_per_second=float("nan"),
    )
    joined = joined_of(Caller(RunId("run"), "peer", PeerId("alice")), pb.PeerMessage(hello=hello), "192.0.2.7")
    assert (joined.site, joined.metered, joined.upload_cap_bytes_per_second) == ("192.0.2.7", True, 0.0)
    assert joined.region == "eu-north" + "x" * 56


async def test_the_more_members_there_are_the_longer_they_spread_when_all_dial_again() -> None:
    shell = SimpleNamespace(ended_because="", ended_for_good=False, apply=lambda event: None)
    desk = SimpleNamespace(invite_of=lambda peer_id: asyncio.sleep(0, "invite"), is_for_cells=None)
    welcome = WelcomeSettings("run", b"", 1.0, 1.0, 1, pb.Sampling(), 1.0, "continue", 1.0, "")
    sessions = Sessions()
    core = LocalCore(cast(Any, shell), sessions, cast(Any, desk), welcome, cast(Any, None))
    digest, spreads_s = core.welcome_digest, list[float]()
    for number in range(1, int(REDIALS_PER_SECOND) + 1):
        peer_id = PeerId(f"peer-{number}")
        channel = PeerChannel(peer_id, "peer")
        hello = pb.PeerMessage(hello=pb.Hello(protocol=range_to_pb(), role="peer"))
        joined = joined_of(Caller(RunId("run"), "peer", peer_id), hello, "")
        await core.open(Opening(joined, "", ""), channel)
        first = await channel.next()
        assert first is not None
        spreads_s.append(first.welcome.redial_spread_s)
    assert spreads_s[-1] == 1.0
    assert spreads_s == sorted(spreads_s)
    assert core.welcome_digest == digest, "else every session would end when a coordinator comes back"


@pytest.mark.parametrize("resumed", [True, False])
async def test_a_session_that_has_ended_is_closed_before_the_next_one_opens(resumed: bool) -> None:
    """Those of a lost gateway are closed a few a turn: a peer may be back before its turn has come."""
    events = list[Event]()
    shell = SimpleNamespace(ended_because="", ended_for_good=False, apply=events.append, apply_soon=events.append)
    desk = SimpleNamespace(invite_of=lambda peer_id: asyncio.sleep(0, "invite"), is_for_cells=None)
    welcome = WelcomeSettings("run", b"", 1.0, 1.0, 1, pb.Sampling(), 1.0, "continue", 1.0, "")
    sessions = Sessions()
    core = LocalCore(cast(Any, shell), sessions, cast(Any, desk), welcome, cast(Any, None))
    first, second = PeerChannel(PeerId("alice"), "peer"), PeerChannel(PeerId("alice"), "peer")
    hello = pb.PeerMessage(hello=pb.Hello(protocol=range_to_pb(), role="peer"))
    joined = joined_of(Caller(RunId("run"), "peer", PeerId("alice")), hello, "")
    await core.open(Opening(joined, "attic", ""), first)
    first.end("its gateway was lost")
    await core.open(Opening(joined, "attic", "", resumed=resumed), second)
    core.close(first)
    assert [type(event) for event in events] == [PeerJoined, PeerLeft, PeerJoined]
    assert (list(sessions.of_role("peer")), second.ended_because) == ([second], "")


async def test_a_peer_that_returns_after_the_end_is_stopped_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends like the peers that were connected then, and not with an error."""
    caller = Caller(RunId("run"), "peer", PeerId("alice"))
    monkeypatch.setattr(peers, "caller_of", lambda _context: caller)
    shell = SimpleNamespace(ended_because="finished", ended_for_good=True)
    desk = SimpleNamespace(invite_of=lambda peer_id: asyncio.sleep(0, "invite"))
    core = LocalCore(cast(Any, shell), Sessions(), cast(Any, desk), cast(Any, None), cast(Any, None))
    calls = peers.PeerCalls(core)
    sent: list[pb.CoordinatorMessage] = []

    async def write(message: pb.CoordinatorMessage) -> None:
        sent.append(message)

    async def messages() -> AsyncIterator[pb.PeerMessage]:
        yield pb.PeerMessage(hello=pb.Hello(protocol=range_to_pb(), role="peer"))

    await calls.Session(messages(), SimpleNamespace(peer=lambda: "ipv4:192.0.2.7:4000", write=write))
    assert sent == [pb.CoordinatorMessage(stop=pb.Stop(reason="finished"))]


class TakingShell:
    """Accepts every rollout and keeps what it was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.problems: list[str] = []

    def expects(self, _peer_id: PeerId, _message: pb.Rollout) -> bool:
        return True

    def upload(self, _peer_id: PeerId, rollout: Rollout, answered: Answered) -> None:
        self.bodies.append(rollout.body)
        answered(AnswerUpload(UploadId(0), LeaseId(1), 0, True, ""))

    def upload_malformed(self, _peer_id: PeerId, _message: pb.Rollout, problem: str, answered: Answered) -> None:
        self.problems.append(problem)
        answered(AnswerUpload(UploadId(0), LeaseId(1), 0, True, ""))


@pytest.mark.parametrize("asked", [True, False])
async def test_routes_must_be_those_of_the_published_model(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    record = pb.VersionRecord(model_json='{"layers": 1, "experts": 4, "experts_per_token": 2}').SerializeToString()
    announcement = pb.VersionAnnouncement(record=pb.Signed(payload=record)).SerializeToString()
    searches = []

    async def newest_version() -> Any:
        searches.append(1)
        return SimpleNamespace(announcement=announcement) if len(searches) > 1 else None

    def uploads(routes: bytes) -> Messages:
        segment = pb.Segment(
            role=pb.ASSISTANT, peer_id="alice", packed_ids=pack_ids([5]), loss_mask=b"\1", routes=routes
        )
        upload = pb.RolloutUpload(rollouts=[pb.Rollout(segments=[segment], finish_reason=pb.STOP)])
        sent = iter((upload.SerializeToString(), grpc.aio.EOF))
        return Messages(
            SimpleNamespace(read=lambda: asyncio.sleep(0, next(sent))), pb.RolloutUpload.FromString, 1 << 20
        )

    monkeypatch.setattr(uploads_module, "caller_of", lambda _context: Caller(RunId("run"), "peer", PeerId("alice")))
    welcome = WelcomeSettings("run", b"", 1.0, 1.0, 1, pb.Sampling(), 1.0, "continue", 1.0, "", router_replay=asked)
    assert welcome.message().welcome.router_replay == asked
    shell, ledger = TakingShell(), SimpleNamespace(newest_version=newest_version)
    desk = SimpleNamespace(invite_of=lambda peer_id: asyncio.sleep(0, "invite"))
    core = LocalCore(cast(Any, shell), cast(Any, None), cast(Any, desk), welcome, cast(Any, ledger))
    calls = peers.PeerCalls(core)
    for routes in (b"\0\3", b"\0\3", b"\0\4", b""):
        context = SimpleNamespace(peer=lambda: "ipv4:192.0.2.7:4242", write=lambda _reply: asyncio.sleep(0))
        await calls.uploads.UploadRollouts(uploads(routes), context)
    stored = [pb.Rollout.FromString(body).segments[0].routes for body in shell.bodies]
    # Before a version is known, and where the run does not ask for them, routes are discarded.
    assert stored == ([b"", b"\0\3", b""] if asked else [b""] * 4)
    assert shell.problems == (["a route names an expert that the model does not have"] if asked else [])
    assert len(searches) == (2 if asked else 0)


class Context:
    """Collects the parts that a call sends."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    async def write(self, part: pb.TokenizerPart) -> None:
        self.parts.append(part.data)


async def test_the_file_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "PART_BYTES", 100)
    data = (tokenizer_folder(tmp_path / "model") / "tokenizer.json").read_bytes()
    calls, context = TokenizerCalls(lambda: packed_file(tmp_path / "model")), Context()
    await calls.TokenizerFile(pb.TokenizerRequest(sha256=hashlib.sha256(data).hexdigest()), context)
    assert len(context.parts) > 1
    assert zstandard.decompress(b"".join(context.parts)) == data


async def test_unknown_tokenizer_file_is_refused(tmp_path: Path) -> None:
    tokenizer_folder(tmp_path / "model")
    for folder in (None, tmp_path / "model"):
        calls = TokenizerCalls(partial(packed_file, folder))
        with pytest.raises(MalformedMessage, match="no tokenizer with this hash"):
            await calls.TokenizerFile(pb.TokenizerRequest(sha256="0" * 64), Context())


async def test_a_flood_takes_no_room_from_members_and_newcomers(tmp_path: Path) -> None:
    limits = {"connections_per_address": 8, "control_connections_per_address": 8, "uploads_at_once": 2}
    async with running(tmp_path, changed(limits=limits)) as started, Member(await started.join("peer")) as member:
        await member.hello()
        await member.next("welcome")
        mode = started.folder.ledger.stat().st_mode & 0o777
        assert mode == started.folder.ledger.with_name("store.sqlite-wal").stat().st_mode & 0o777 == 0o600
        control = int(member.enrolment.grpc_address.rpartition(":")[2])
        web = int(started.http_url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30) for port in (control, web)]
        closed = [asyncio.create_task(_read_to_the_end(reader)) for reader, _ in silent]
        async with Member(await started.join("peer")) as newcomer:
            await newcomer.hello()
            await newcomer.next("welcome")
        await _some_done(closed, 2 * (30 - 8))
        await _uploads_at_once_are_few(member)
        await member.say(heartbeat=pb.Heartbeat(sequence=1, state="idle"))
        assert not member.session.done()
        for task in closed:
            task.cancel()
        for _, writer in silent:
            writer.close()


async def _read_to_the_end(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass


async def _some_done(tasks: list[asyncio.Task[Any]], count: int) -> list[asyncio.Task[Any]]:
    done: set[asyncio.Task[Any]] = set()
    async with asyncio.timeout(WAIT_S):
        while len(done) < count:
            newly, _ = await asyncio.wait(set(tasks) - done, return_when="FIRST_COMPLETED")
            done |= newly
    return list(done)


async def _uploads_at_once_are_few(member: Member) -> None:
    """Begin three uploads that do not end: one of them is refused at once."""
    calls = [member.stub.UploadRollouts() for _ in range(3)]
    for call in calls:
        await call.write(pb.RolloutUpload())
    ended = [asyncio.create_task(error_of(call)) for call in calls]
    (refused,) = await _some_done(ended, 1)
    assert isinstance(refused.result(), RateLimited)
    for call in calls:
        call.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
