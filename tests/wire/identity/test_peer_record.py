"""Test what a peer signs: its record, and a proof of membership, which is valid for one purpose and a short time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import BadSignature, MalformedMessage, RollcastError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.member_proof import GOOD_FOR_S, SCHEME, member_proof, proved_member
from rollcast.wire.identity.peer_record import (
    LIFETIME_S_MAX,
    RECORD_DOMAIN,
    PeerRecord,
    bounded,
    sign_record,
    verify_record,
)
from rollcast.wire.ids import RunId
from rollcast.wire.limits import PEER_ADDRESSES_MAX, PEER_RECORDS_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

NOW = 1_800_000_000.0

RUN = RunId("run-1")

IDENTITY = Identity.generate()

RECORD = PeerRecord(RUN, IDENTITY.peer_id, "peer", 7, ("192.0.2.1:4000", "punch"), int(NOW) + 3600)


def verified(signed: pb.Signed, run_id: RunId = RUN, now: float = NOW) -> PeerRecord:
    return verify_record(signed, run_id=run_id, now_unix_s=now)


def test_a_signed_record_reads_back() -> None:
    assert verified(sign_record(RECORD, IDENTITY)) == RECORD
    assert RECORD.address == "192.0.2.1:4000 punch"


def test_of_another_run_or_time_it_does_not_count() -> None:
    signed = sign_record(RECORD, IDENTITY)
    with pytest.raises(MalformedMessage, match="another run"):
        verified(signed, RunId("run-2"))
    with pytest.raises(MalformedMessage, match="expired"):
        verified(signed, now=NOW + 3600)
    with pytest.raises(MalformedMessage, match="too long"):
        verified(signed, now=NOW - LIFETIME_S_MAX)


def test_no_peer_can_sign_for_another_one() -> None:
    other = Identity.generate()
    with pytest.raises(MalformedMessage):
        sign_record(RECORD, other)
    forged = other.sign(RECORD_DOMAIN, sign_record(RECORD, IDENTITY).payload)
    with pytest.raises(MalformedMessage, match="another peer"):
        verified(forged)
    forged.public_key = IDENTITY.public_key
    with pytest.raises(BadSignature):
        verified(forged)


def test_a_signature_for_another_purpose_is_refused() -> None:
    with pytest.raises(BadSignature):
        verified(IDENTITY.sign("rollcast/manifest/1", sign_record(RECORD, IDENTITY).payload))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(RECORD, role="learner"),
        replace(RECORD, sequence=0),
        replace(RECORD, expires_unix_s=0),
        replace(RECORD, addresses=("a:1",) * (PEER_ADDRESSES_MAX + 1)),
        replace(RECORD, addresses=("a:1 b:2",)),
        replace(RECORD, addresses=("",)),
        replace(RECORD, addresses=("x" * 257,)),
        replace(RECORD, addresses=("https://mirror.example/run",)),
        replace(RECORD, addresses=("a\n:1",)),
    ],
)
def test_bounds(wrong: PeerRecord) -> None:
    with pytest.raises(MalformedMessage):
        sign_record(wrong, IDENTITY)


@given(st.binary(max_size=300), st.binary(max_size=64), st.binary(max_size=40))
@settings(deadline=None, max_examples=200)
def test_random_records_are_refused(payload: bytes, signature: bytes, public_key: bytes) -> None:
    with pytest.raises(RollcastError):
        verified(pb.Signed(payload=payload, signature=signature, public_key=public_key))


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_a_changed_record_is_refused(data: st.DataObject) -> None:
    signed = sign_record(RECORD, IDENTITY)
    payload = bytearray(signed.payload)
    index = data.draw(st.integers(0, len(payload) - 1))
    payload[index] ^= data.draw(st.integers(1, 255))
    signed.payload = bytes(payload)
    with pytest.raises(RollcastError):
        verified(signed)


def test_a_message_has_so_many_at_most() -> None:
    signed = sign_record(RECORD, IDENTITY)
    assert list(bounded(pb.PeerRecords(records=[signed]))) == [signed]
    with pytest.raises(MalformedMessage):
        bounded(pb.PeerRecords(records=[signed] * (PEER_RECORDS_MAX + 1)))


NOW_S = 1_700_000_000.7

PATH = "/api/v1/speed/seen"


def _proof(identity: Identity) -> str:
    scheme, _, text = member_proof(identity, "run-1", PATH, NOW_S)["Authorization"].partition(" ")
    assert scheme == SCHEME
    return text


def test_a_proof_names_its_member() -> None:
    identity = Identity.generate()
    assert proved_member(_proof(identity), "run-1", PATH, NOW_S + GOOD_FOR_S - 1.0) == identity.peer_id


@pytest.mark.parametrize(
    ("run_id", "path", "now_s"),
    [("run-2", PATH, NOW_S), ("run-1", "/api/v1/else", NOW_S), ("run-1", PATH, NOW_S + GOOD_FOR_S + 2.0)],
)
def test_it_is_good_for_one_run_and_path_and_for_a_while(run_id: str, path: str, now_s: float) -> None:
    with pytest.raises(BadSignature):
        proved_member(_proof(Identity.generate()), run_id, path, now_s)


def test_seconds_cannot_be_changed() -> None:
    key, seconds, signature = _proof(Identity.generate()).split(".")
    with pytest.raises(BadSignature):
        proved_member(f"{key}.{int(seconds) + 1}.{signature}", "run-1", PATH, NOW_S)


@given(st.text(max_size=300))
def test_other_texts_are_no_proof(text: str) -> None:
    with pytest.raises(RollcastError):
        proved_member(text, "run-1", PATH, NOW_S)
