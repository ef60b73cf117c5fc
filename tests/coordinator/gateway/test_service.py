"""Test a whole gateway over TLS between scripted peers and a real coordinator, in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import msgspec
import pytest
from pydantic import ValidationError

from coordinator.config.gateways import GatewaysConfig
from coordinator.gateway import service
from coordinator.gateway.config import GatewayConfig
from coordinator.link import frames
from rollcast.runtime.errors import MalformedMessage, Unreachable, WaitTimedOut
from rollcast.runtime.process import EXIT_INTERRUPTED
from rollcast.wire.identity.certificates import caller_from_certificate_pem
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.identity.tls import new_tls_key
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.grpc_client import translate
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator.running import WAIT_S, Member, Running, answer, changed, rollout, running, version


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Gateway:
    """A gateway in this process."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.address = f"127.0.0.1:{config.serve.grpc_port}"
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(service.run(config, self.stop))

    def of(self, enrolment: Enrolment) -> Enrolment:
        """Return an enrolment whose peer dials this gateway."""
        return replace(enrolment, grpc_address=self.address, further=())

    async def listening(self) -> None:
        port = int(self.address.rpartition(":")[2])
        async with asyncio.timeout(WAIT_S):
            while True:
                if self.task.done():
                    await self.task
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    return

    async def ended(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.task


@asynccontextmanager
async def with_gateway(tmp_path: Path, learner: Identity | None = None) -> AsyncIterator[tuple[Running, Gateway]]:
    link = f"127.0.0.1:{free_port()}"
    port = free_port()
    gateways = {"listen": link, "addresses": [f"127.0.0.1:{port}"]}
    async with running(tmp_path, changed(gateways=gateways), learner=learner) as core:
        config = GatewayConfig.model_validate(
            {
                "core": [link],
                "serve": {"grpc_port": port},
                "invite": str(core.folder.secrets / "invite-gateway.txt"),
                "state_folder": str(tmp_path / "gateway"),
            }
        )
        gateway = Gateway(config)
        try:
            await gateway.listening()
            yield core, gateway
        finally:
            gateway.stop.set()
            await gateway.ended()


async def test_a_gateway_serves_peers_as_the_coordinator_does(tmp_path: Path) -> None:
    async with with_gateway(tmp_path) as (core, gateway):
        enrolment = await core.join("peer")
        assert enrolment.grpc_addresses == (gateway.address, core.invite("peer").grpc_address)
        assert (await core.join("origin")).grpc_address == core.invite("origin").grpc_address
        await _work_is_leased_and_uploaded(core, gateway)
        await _sessions_are_refused_and_replaced(enrolment)
        await _certificates_are_renewed(enrolment)
        await _calls_of_others_are_refused(core, gateway, enrolment)


async def _work_is_leased_and_uploaded(core: Running, gateway: Gateway) -> None:
    enrolment = await core.join("peer")
    async with (
        Member(await core.join("learner")) as learner,
        Member(gateway.of(await core.join("origin")), role="origin") as origin,
        Member(enrolment) as peer,
    ):
        hello = pb.LearnerHello(protocol=range_to_pb(), learner_public_key=core.learner_identity.public_key)
        info = await learner.stub.OpenLearner(hello)
        await origin.hello()
        await origin.next("welcome")
        await origin.say(version_held=pb.VersionHeld(epoch=0, version=0))
        await learner.stub.Announce(version(info.run_id, core.learner_identity))
        await peer.hello()
        assert (await peer.next("welcome")).run_id == info.run_id
        await peer.next("announcement")
        await peer.say(version_held=pb.VersionHeld(epoch=0, version=0))
        await peer.say(work_request=pb.WorkRequest(free_slots=1))
        (lease,) = (await peer.next("leases")).leases
        tokens = answer(Tokenizer.from_json(info.tokenizer_json), lease, right=True)
        sent = rollout(lease, lease.slots[0], enrolment.peer_id, tokens)
        uploads = [sent, sent, pb.Rollout(lease_id=sent.lease_id + 99), pb.Rollout()]
        stream = peer.stub.UploadRollouts(iter([pb.RolloutUpload(rollouts=uploads), pb.RolloutUpload(rollouts=[sent])]))
        replies = [[(one.accepted, one.reason) for one in reply.verdicts] async for reply in stream]
        assert replies == [[(True, "")] * 2 + [(False, "malformed")] * 2, [(True, "")]]
        await peer.say(goodbye=pb.Goodbye(reason="it drains"))
        await peer.ended()


async def _sessions_are_refused_and_replaced(enrolment: Enrolment) -> None:
    async with Member(enrolment) as peer:
        await peer.hello(protocol=pb.ProtocolRange(min=7, max=9))
        assert (await peer.next("refused")).code == "RC204"
        await peer.ended()
    async with Member(enrolment) as first, Member(enrolment) as second:
        await first.hello()
        await first.next("welcome")
        await second.hello()
        await second.next("welcome")
        await first.ended()


async def _certificates_are_renewed(enrolment: Enrolment) -> None:
    async with Member(enrolment) as peer:
        await peer.hello()
        await peer.next("welcome")
        await peer.say(certificate_request=pb.CertificateRequest(csr_pem=new_tls_key().csr_pem()))
        renewed = caller_from_certificate_pem((await peer.next("certificate")).certificate_pem)
        assert (renewed.peer_id, renewed.role) == (enrolment.peer_id, "peer")


async def _calls_of_others_are_refused(core: Running, gateway: Gateway, enrolment: Enrolment) -> None:
    async with Member(gateway.of(await core.join("learner"))) as learner:
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await learner.stub.ReportStatus(pb.LearnerStatus(phase="finished"))
        assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED
    async with Member(enrolment) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as away:  # without a session
            async for _ in peer.stub.UploadRollouts(iter([pb.RolloutUpload()])):
                pass
        assert isinstance(translate(away.value, "uploading"), Unreachable)
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            async for _ in peer.stub.TokenizerFile(pb.TokenizerRequest(sha256="0" * 64)):
                pass
        assert isinstance(translate(missing.value, "fetching"), MalformedMessage)


async def test_a_gateway_ends_with_the_run_and_peers_are_stopped(tmp_path: Path) -> None:
    async with with_gateway(tmp_path) as (core, gateway), Member(await core.join("peer")) as peer:
        await peer.hello()
        await peer.next("welcome")
        async with Member(await core.join("learner")) as learner:
            await learner.stub.ReportStatus(pb.LearnerStatus(phase="finished"))
        assert (await peer.next("stop")).reason == "finished"
        await peer.ended()
        assert await gateway.ended() == 0


async def test_sessions_survive_a_coordinator_that_is_stopped_and_started_again(tmp_path: Path) -> None:
    learner = Identity.generate()
    async with with_gateway(tmp_path, learner) as (core, gateway), Member(await core.join("peer")) as peer:
        await peer.hello()
        await peer.next("welcome")
        core.stop.set()
        await core.ended()
        gateways = {"listen": gateway.config.core[0], "addresses": [gateway.address]}
        async with running(tmp_path, changed(gateways=gateways), learner=learner):
            asking = asyncio.create_task(_ask_for_certificates(peer))  # what is asked without a core is lost
            await peer.next("certificate")
            asking.cancel()
            assert "refused" not in [one.WhichOneof("body") for one in peer.received]
        assert not peer.session.done()
        gateway.stop.set()
        assert await gateway.ended() == EXIT_INTERRUPTED


async def _ask_for_certificates(peer: Member) -> None:
    while True:
        await peer.say(certificate_request=pb.CertificateRequest(csr_pem=new_tls_key().csr_pem()))
        await asyncio.sleep(0.2)


async def test_a_gateway_without_a_core_gives_up(tmp_path: Path) -> None:
    config = GatewayConfig(core=[str(tmp_path / "nowhere")], core_timeout_s=0.01)
    with pytest.raises(Unreachable, match="no coordinator at"):
        await service.run(config, asyncio.Event())


async def test_a_gateway_links_again_with_what_the_core_issued_after_its_invite_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "JOIN_TIMEOUT_S", 0.01)
    config = GatewayConfig(
        core=["127.0.0.1:1"], invite=tmp_path / "none", state_folder=tmp_path / "state", core_timeout_s=0.01
    )
    gateway = service.Gateway(config, Identity.generate())
    authority, hello = RunCA.create(tmp_path, RunId("run-1")), gateway._hello()
    certificate = authority.issue_gateway(hello.csr_pem, PeerId(hello.peer_id), hello.hosts)
    with pytest.raises(WaitTimedOut, match="the invite"):
        await gateway._tls()
    gateway._linked(frames.Ready("run-1", authority.certificate_pem, certificate, False, b"welcome"))
    _, run_id = await gateway._tls()
    assert run_id == "run-1"


async def test_a_gateway_serves_one_run_only() -> None:
    gateway = service.Gateway(GatewayConfig(core=["./gateways"]), Identity.generate())
    ready = frames.Ready("run-1", b"ca", b"certificate", False, b"welcome")
    for run_id in ("run-1", "run-1", "run-2"):
        assert not gateway.core.failure.done()
        gateway._linked(msgspec.structs.replace(ready, run_id=run_id))
    error = await gateway.core.failure
    assert isinstance(error, Unreachable)
    assert "run-2 listens in its place" in error.cause


def test_addresses_of_gateways_need_a_place_to_connect() -> None:
    with pytest.raises(ValidationError, match="set listen"):
        GatewaysConfig(addresses=["gw.example:7410"])
    assert GatewaysConfig(listen="./gateways", addresses=["gw.example:7410"]).addresses == ["gw.example:7410"]


def test_a_core_over_tls_needs_an_invite() -> None:
    with pytest.raises(ValidationError, match="set invite"):
        GatewayConfig(core=["./gateways", "core.example:7500"])
    for wrong in ("core.example", "a b/c", "7500"):
        with pytest.raises(ValidationError):
            GatewayConfig(core=[wrong], invite=Path("invite"))
