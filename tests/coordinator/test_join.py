"""Test the admission to a run and its refusal, and the contents of an invite."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.join import InviteIssuer, JoinDesk, parse_join
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import BadSignature, Banned, JoinRefused, MalformedMessage, ProtocolMismatch, WrongKey
from rollcast.wire.identity.certificates import caller_from_certificate_pem
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.identity.tls import new_tls_key
from rollcast.wire.ids import RunId
from rollcast.wire.joining.invite import Invite
from rollcast.wire.joining.request import JOIN_DOMAIN, join_payload
from rollcast.wire.protocol import PROTOCOL_RANGE

RUN_ID = RunId("run-1")

LEARNER = Identity.generate()


class Door:
    """A desk with a clock that the test sets."""

    def __init__(self, desk: JoinDesk) -> None:
        self.desk, self.now = desk, 1000.0


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    desk = JoinDesk(
        run_id=RUN_ID,
        ca=RunCA.create(tmp_path, RUN_ID),
        ledger=ledger,
        learner_public_key=LEARNER.public_key,
        certificate_lifetime_s=3600.0,
        unix_clock=lambda: door.now,
    )
    desk.grpc_address = "127.0.0.1:7400"
    door = Door(desk)
    yield door
    await ledger.close()


def request(identity: Identity, token: str, *, role: str = "peer", run_id: str = RUN_ID, **changes: Any) -> bytes:
    """Return the join of an honest client, with changes."""
    csr_pem = new_tls_key().csr_pem()
    body = {
        "token": token,
        "role": role,
        "public_key": identity.public_key.hex(),
        "csr_pem": csr_pem.decode(),
        "signature": identity.sign_bytes(JOIN_DOMAIN, join_payload(run_id, token, csr_pem)).hex(),
        "protocol": {"min": PROTOCOL_RANGE[0], "max": PROTOCOL_RANGE[1]},
    }
    return json.dumps({**body, **changes}).encode()


async def test_a_join_binds_the_identity_into_the_certificate(door: Door) -> None:
    token = await door.desk.new_invite("peer", quota=1, lifetime_s=60)
    identity = Identity.generate()
    reply = await door.desk.join(request(identity, token))
    caller = caller_from_certificate_pem(reply.certificate_pem.encode())
    assert (caller.run_id, caller.role, caller.peer_id) == (RUN_ID, "peer", identity.peer_id)
    assert (reply.peer_id, reply.grpc_address) == (identity.peer_id, "127.0.0.1:7400")


async def test_a_quota_counts_identities_not_joins(door: Door) -> None:
    token = await door.desk.new_invite("peer", quota=2, lifetime_s=60)
    first, second = Identity.generate(), Identity.generate()
    for identity in (first, first, second, first):
        await door.desk.join(request(identity, token))
    with pytest.raises(JoinRefused, match="used up"):
        await door.desk.join(request(Identity.generate(), token))


async def test_an_unknown_expired_or_other_invite_is_refused(door: Door) -> None:
    token = await door.desk.new_invite("origin", quota=9, lifetime_s=60)
    with pytest.raises(JoinRefused, match="no such invite"):
        await door.desk.join(request(Identity.generate(), "made-up"))
    with pytest.raises(JoinRefused, match="for the role origin"):
        await door.desk.join(request(Identity.generate(), token, role="peer"))
    door.now += 61
    with pytest.raises(JoinRefused, match="expired"):
        await door.desk.join(request(Identity.generate(), token, role="origin"))


async def test_only_the_runs_learner_joins_as_learner(door: Door) -> None:
    token = await door.desk.new_invite("learner", quota=9, lifetime_s=60)
    with pytest.raises(WrongKey):
        await door.desk.join(request(Identity.generate(), token, role="learner"))
    assert (await door.desk.join(request(LEARNER, token, role="learner"))).peer_id == LEARNER.peer_id


async def test_a_cell_joins_as_a_peer_whose_invite_says_that_it_is_one(door: Door) -> None:
    for_cells = await door.desk.new_invite("cell", quota=1, lifetime_s=60)
    for_peers = await door.desk.new_invite("peer", quota=1, lifetime_s=60)
    cell, peer = Identity.generate(), Identity.generate()
    reply = await door.desk.join(request(cell, for_cells, role="cell"))
    assert caller_from_certificate_pem(reply.certificate_pem.encode()).role == "peer"
    await door.desk.join(request(peer, for_peers))
    assert await door.desk.is_for_cells(await door.desk.invite_of(cell.peer_id))
    assert not await door.desk.is_for_cells(await door.desk.invite_of(peer.peer_id))
    with pytest.raises(JoinRefused, match="for the role cell"):
        await door.desk.join(request(Identity.generate(), for_cells))


async def test_a_key_must_be_proved_for_this_run_token_and_request(door: Door) -> None:
    token = await door.desk.new_invite("peer", quota=1, lifetime_s=60)
    victim, thief = Identity.generate(), Identity.generate()
    stolen = json.loads(request(victim, token))
    for body in (
        request(thief, token, public_key=victim.public_key.hex()),
        request(victim, token, run_id="run-2"),
        request(victim, token, csr_pem=new_tls_key().csr_pem().decode()),
        json.dumps({**stolen, "token": "another"}).encode(),
    ):
        with pytest.raises(BadSignature):
            await door.desk.join(body)
    await door.desk.join(request(victim, token))  # none of these attempts used the invite up


async def test_a_mismatch_names_the_side_to_upgrade(door: Door) -> None:
    token = await door.desk.new_invite("peer", quota=1, lifetime_s=60)
    with pytest.raises(ProtocolMismatch) as caught:
        await door.desk.join(request(Identity.generate(), token, protocol={"min": 7, "max": 9}))
    assert "this side" in caught.value.fix


async def test_malformed_certificate_request_is_refused(door: Door) -> None:
    token = await door.desk.new_invite("peer", quota=1, lifetime_s=60)
    identity = Identity.generate()
    signature = identity.sign_bytes(JOIN_DOMAIN, join_payload(RUN_ID, token, b"nonsense")).hex()
    with pytest.raises(MalformedMessage):
        await door.desk.join(request(identity, token, csr_pem="nonsense", signature=signature))
    with pytest.raises(MalformedMessage):
        await door.desk.renew(b"x" * 5000, peer_id=identity.peer_id, role="peer")


GOOD = json.loads(request(Identity.generate(), "token"))

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(GOOD)), JUNK)
def test_any_field_may_be_junk(field: str, junk: object) -> None:
    try:
        parsed = parse_join(json.dumps({**GOOD, field: junk}).encode())
    except MalformedMessage:
        return
    assert len(parsed.public_key) == 32
    assert parsed.role in ("learner", "origin", "peer")


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_may_come(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_join(body)


async def test_banned_identity_neither_joins_nor_renews(door: Door) -> None:
    token, peer = await door.desk.new_invite("peer", quota=2, lifetime_s=60), Identity.generate()
    door.desk.banned_because = lambda peer_id: "sends rubbish" if peer_id == peer.peer_id else ""
    with pytest.raises(Banned) as refused:
        await door.desk.join(request(peer, token))
    assert refused.value.cause == "sends rubbish"
    with pytest.raises(Banned):
        await door.desk.renew(new_tls_key().csr_pem(), peer_id=peer.peer_id, role="peer")
    await door.desk.join(request(Identity.generate(), token))
    await door.desk.join(request(Identity.generate(), token))  # the banned identity used nothing up


class FakeDesk:
    grpc_address = "run.example:7400"

    async def new_invite(self, role: str, *, quota: int, lifetime_s: float, note: str = "") -> str:
        return f"{role}-{quota}-{lifetime_s:g}"


async def test_invite_has_both_ports_and_the_ca() -> None:
    inviting = InviteIssuer(
        cast(JoinDesk, FakeDesk()), run_id=RunId("run-1"), ca_sha256="a" * 64, learner_public_key="b" * 64
    )
    inviting.http_url = "https://run.example:7401"
    made = await inviting.invite("peer", quota=2, lifetime_s=60.0)
    assert made.token == "peer-2-60"
    assert Invite.decode(made.encode()) == made


async def test_invite_has_the_further_addresses() -> None:
    inviting = InviteIssuer(
        cast(JoinDesk, FakeDesk()), run_id=RunId("run-1"), ca_sha256="a" * 64, learner_public_key="b" * 64
    )
    inviting.http_url, inviting.further = "https://run.example:7401", ("10.0.0.5",)
    made = Invite.decode((await inviting.invite("peer", quota=2, lifetime_s=60.0)).encode())
    assert [place.grpc_address for place in made.places()] == ["run.example:7400", "10.0.0.5:7400"]
