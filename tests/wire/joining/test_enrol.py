"""Test joins over real HTTP and HTTPS on loopback, against a scripted coordinator's server."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollcast.runtime.errors import (
    JoinRefused,
    MalformedMessage,
    ProtocolMismatch,
    Unreachable,
    WrongKey,
)
from rollcast.wire.identity.identity import Identity, peer_id_of, verify_bytes
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import Role, RunId
from rollcast.wire.joining.enrol import enrol
from rollcast.wire.joining.error_json import error_to_json
from rollcast.wire.joining.invite import Invite
from rollcast.wire.joining.request import JOIN_DOMAIN, join_payload
from rollcast.wire.protocol import PROTOCOL_RANGE

RUN_ID = RunId("test-run")
LEARNER = Identity.generate()


class Door:
    """A server that answers joins like a coordinator; ``spoil`` changes an answer before it leaves."""

    def __init__(self, folder: Path) -> None:
        self.ca = RunCA.create(folder, RUN_ID)
        self.ca_pem = self.ca.certificate_pem
        self.lifetime_s = 3600.0
        self.role: Role | None = None
        self.peer_id = ""
        self.joins = 0
        self.not_ready = 0
        self.gateways: list[str] = []
        self.answer: Callable[[], web.Response] | None = None

    async def get_ca(self, request: web.Request) -> web.Response:
        if self.not_ready:
            self.not_ready -= 1
            return web.Response(status=503, text="starting")
        return web.json_response({"ca_pem": self.ca_pem.decode()})

    async def post_join(self, request: web.Request) -> web.Response:
        self.joins += 1
        if self.answer is not None:
            return self.answer()
        body = json.loads(await request.read())
        public_key = bytes.fromhex(body["public_key"])
        payload = join_payload(RUN_ID, body["token"], body["csr_pem"].encode())
        verify_bytes(public_key, JOIN_DOMAIN, payload, bytes.fromhex(body["signature"]))
        assert (body["protocol"]["min"], body["protocol"]["max"]) == PROTOCOL_RANGE
        certificate = self.ca.issue(
            body["csr_pem"].encode(),
            peer_id=peer_id_of(public_key) if not self.peer_id else self.peer_id,  # type: ignore[arg-type]
            role=self.role or body["role"],
            lifetime_s=self.lifetime_s,
        )
        return web.json_response(
            {
                "certificate_pem": certificate.decode(),
                "run_id": RUN_ID,
                "peer_id": peer_id_of(public_key),
                "grpc_address": "127.0.0.1:7400",
                "gateways": self.gateways,
            }
        )

    def coordinator_context(self) -> Any:
        key = new_tls_key()
        certificate = self.ca.issue_coordinator(key.csr_pem(), [])
        credentials = TlsCredentials(self.ca.certificate_pem, certificate, key.private_pem)
        return credentials.ssl_server_context(ask_client=False)

    @asynccontextmanager
    async def open(self, context: Any = None) -> AsyncIterator[Invite]:
        app = web.Application()
        app.router.add_get("/api/v1/ca", self.get_ca)
        app.router.add_post("/api/v1/join", self.post_join)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield self.invite(f"{'https' if context else 'http'}://{host}:{port}")
        finally:
            await runner.cleanup()

    def invite(self, http_url: str) -> Invite:
        return Invite(
            run_id=RUN_ID,
            role="peer",
            http_url=http_url,
            grpc_address="127.0.0.1:1",
            ca_sha256=self.ca.fingerprint,
            learner_public_key=LEARNER.public_key.hex(),
            token="token",
        )


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "ca")


@pytest.mark.parametrize("is_tls", [False, True])
async def test_an_invite_buys_a_certificate(door: Door, tmp_path: Path, is_tls: bool) -> None:
    identity = Identity.generate()
    async with door.open(door.coordinator_context() if is_tls else None) as invite:
        enrolment = await enrol(invite, identity, tmp_path / "state", 10.0)
    assert enrolment.peer_id == identity.peer_id == enrolment.credentials.caller.peer_id
    assert enrolment.run_id == RUN_ID
    assert enrolment.grpc_address == "127.0.0.1:7400"
    assert enrolment.http_url == invite.http_url
    assert enrolment.learner_public_key == LEARNER.public_key
    saved = tmp_path / "state" / "credentials.pem"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert TlsCredentials.load(tmp_path / "state") == enrolment.credentials


async def test_a_saved_certificate_is_reused(door: Door, tmp_path: Path) -> None:
    identity = Identity.generate()
    async with door.open() as invite:
        first = await enrol(invite, identity, tmp_path, 10.0)
    again = await enrol(invite, identity, tmp_path, 0.0)  # no server listens any more
    assert again.credentials == first.credentials
    assert again.grpc_address == invite.grpc_address
    assert door.joins == 1


async def test_gateways_are_dialled_first_also_after_a_restart(door: Door, tmp_path: Path) -> None:
    identity, gateways = Identity.generate(), ["gw-1.example:7410", "[2001:db8::7]:7410"]
    door.gateways = gateways
    async with door.open() as invite:
        joined = await enrol(invite, identity, tmp_path, 10.0)
        assert joined.grpc_addresses == (*gateways, "127.0.0.1:7400", invite.grpc_address)
        again = await enrol(invite, identity, tmp_path, 0.0)
        assert again.grpc_addresses == (*gateways, invite.grpc_address)
        door.gateways = []
        anew = await enrol(invite, identity, tmp_path, 10.0, reuse_valid_for_s=float("inf"))
        assert anew.grpc_addresses == ("127.0.0.1:7400", invite.grpc_address)
    assert (await enrol(invite, identity, tmp_path, 0.0)).grpc_addresses == (invite.grpc_address,)


async def test_a_saved_certificate_of_another_identity_or_role_is_not_reused(door: Door, tmp_path: Path) -> None:
    identity = Identity.generate()
    async with door.open() as invite:
        await enrol(invite, identity, tmp_path, 10.0)
        await enrol(invite, Identity.generate(), tmp_path, 10.0)
        await enrol(replace(invite, role="origin"), identity, tmp_path, 10.0)
        (tmp_path / "credentials.pem").write_bytes(b"damaged")
        await enrol(invite, identity, tmp_path, 10.0)
        assert door.joins == 4
    other = Door(tmp_path / "other")
    async with other.open() as invite:
        await enrol(invite, identity, tmp_path, 10.0)
    assert other.joins == 1


async def test_a_certificate_about_to_expire_is_not_used(door: Door, tmp_path: Path) -> None:
    identity = Identity.generate()
    door.lifetime_s = 300.0
    async with door.open() as invite:
        await enrol(invite, identity, tmp_path, 10.0)
        await enrol(invite, identity, tmp_path, 10.0)
    assert door.joins == 2


async def test_a_coordinator_that_is_not_up_yet_is_waited_for(door: Door, tmp_path: Path) -> None:
    door.not_ready = 2
    async with door.open() as invite:
        await enrol(invite, Identity.generate(), tmp_path, 20.0)
    assert door.not_ready == 0


async def test_joining_ends_at_the_deadline_without_a_coordinator(door: Door, tmp_path: Path) -> None:
    async with door.open() as invite:
        pass
    with pytest.raises(Unreachable) as problem:
        await enrol(invite, Identity.generate(), tmp_path, 0.3)
    assert invite.http_url in problem.value.what
    assert problem.value.cause


async def test_attempts_are_reported_with_what_failed_before(door: Door, tmp_path: Path) -> None:
    attempts: list[tuple[int, str, str]] = []
    door.not_ready = 1
    async with door.open() as invite:
        await enrol(invite, Identity.generate(), tmp_path, 20.0, on_attempt=lambda *one: attempts.append(one))
    (first, url, nothing), (second, again, problem) = attempts
    assert (first, second, nothing) == (1, 2, "")
    assert url == again == invite.http_url
    assert problem


async def test_another_coordinator_learns_no_token(door: Door, tmp_path: Path) -> None:
    other = Door(tmp_path / "other")
    async with other.open() as invite:
        with pytest.raises(WrongKey, match="not the coordinator"):
            await enrol(replace(invite, ca_sha256=door.ca.fingerprint), Identity.generate(), tmp_path, 10.0)
    assert other.joins == 0


async def test_the_right_ca_over_another_ones_tls_learns_no_token(door: Door, tmp_path: Path) -> None:
    """A man in the middle can repeat the CA's public certificate, but not speak TLS with it."""
    middle = Door(tmp_path / "other")
    middle.ca_pem = door.ca.certificate_pem
    async with middle.open(middle.coordinator_context()) as invite:
        with pytest.raises(WrongKey):
            await enrol(replace(invite, ca_sha256=door.ca.fingerprint), Identity.generate(), tmp_path, 10.0)
    assert middle.joins == 0


async def test_a_peer_of_the_run_cannot_play_the_coordinator(door: Door, tmp_path: Path) -> None:
    key = new_tls_key()
    certificate = door.ca.issue(key.csr_pem(), peer_id=LEARNER.peer_id, role="peer", lifetime_s=600.0)
    peer = TlsCredentials(door.ca.certificate_pem, certificate, key.private_pem)
    async with door.open(peer.ssl_server_context(ask_client=False)) as invite:
        with pytest.raises(WrongKey):
            await enrol(invite, Identity.generate(), tmp_path, 10.0)
    assert door.joins == 0


@pytest.mark.parametrize("kind", [JoinRefused, ProtocolMismatch, WrongKey])
async def test_refusals_keep_their_words(door: Door, tmp_path: Path, kind: type[JoinRefused]) -> None:
    refusal = kind("the invite is used up", cause="1 of 1", fix="ask for another")
    door.answer = lambda: web.Response(status=403, text=error_to_json(refusal))
    async with door.open() as invite:
        with pytest.raises(kind, match="used up") as problem:
            await enrol(invite, Identity.generate(), tmp_path, 10.0)
    assert problem.value.fix == "ask for another"
    assert door.joins == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda: web.Response(text="<html>"), MalformedMessage),
        (lambda: web.Response(text="[" * 10_000), MalformedMessage),
        (lambda: web.json_response([]), MalformedMessage),
        (lambda: web.json_response({"certificate_pem": 7}), MalformedMessage),
        (lambda: web.json_response({"certificate_pem": "nonsense", "grpc_address": "h:1"}), WrongKey),
        (lambda: web.Response(body=b"x" * 100_000), MalformedMessage),
        (lambda: web.Response(status=404), JoinRefused),
        (lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), JoinRefused),
    ],
)
async def test_odd_answers_are_refused(
    door: Door, tmp_path: Path, answer: Callable[[], web.Response], kind: type[Exception]
) -> None:
    door.answer = answer
    async with door.open() as invite:
        with pytest.raises(kind):
            await enrol(invite, Identity.generate(), tmp_path / "state", 10.0)
    assert not (tmp_path / "state").exists()


async def test_a_certificate_for_another_member_is_refused(door: Door, tmp_path: Path) -> None:
    async with door.open() as invite:
        door.role = "learner"
        with pytest.raises(WrongKey, match="another member"):
            await enrol(invite, Identity.generate(), tmp_path / "state", 10.0)
        door.role, door.peer_id = None, LEARNER.peer_id
        with pytest.raises(WrongKey, match="another member"):
            await enrol(invite, Identity.generate(), tmp_path / "state", 10.0)


async def test_a_certificate_is_used_although_the_disk_refuses_it(door: Door, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    identity = Identity.generate()
    async with door.open() as invite:
        enrolment = await enrol(invite, identity, tmp_path / "file" / "state", 10.0)
    assert enrolment.credentials.caller.peer_id == identity.peer_id


async def test_a_coordinator_is_found_at_any_of_its_places(door: Door, tmp_path: Path) -> None:
    identity = Identity.generate()
    async with door.open() as invite:
        port = invite.http_url.rpartition(":")[2]
        moved = replace(invite, http_url="http://127.0.0.1:1", further=("no-such-host.invalid",))
        enrolment = await enrol(moved, identity, tmp_path, 20.0, also=[f"localhost:7:{port}"])
    assert enrolment.http_url == f"http://localhost:{port}"
    assert enrolment.grpc_addresses == ("localhost:7", "127.0.0.1:7400", "127.0.0.1:1", "no-such-host.invalid:1")


async def test_another_server_at_one_place_does_not_matter(door: Door, tmp_path: Path) -> None:
    stranger = Door(tmp_path / "other")
    async with stranger.open() as wrong, door.open() as right:
        port = right.http_url.rpartition(":")[2]
        invite = replace(right, http_url=wrong.http_url, further=(f"127.0.0.1:7400:{port}",))
        enrolment = await enrol(invite, Identity.generate(), tmp_path / "state", 20.0)
    assert enrolment.http_url == right.http_url
    assert stranger.joins == 0


async def test_a_failed_join_names_the_hop(door: Door, tmp_path: Path) -> None:
    invite = replace(door.invite("http://127.0.0.1:1"), further=("no-such-host.invalid",))
    with pytest.raises(Unreachable) as caught:
        await enrol(invite, Identity.generate(), tmp_path, 1.5)
    assert "connection: 127.0.0.1:1 refuses the connection" in caught.value.cause
    assert "name lookup of no-such-host.invalid:1" in caught.value.cause
