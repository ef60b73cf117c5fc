"""Sign and verify peer records, in which a peer states its own addresses to other peers.

A record proves that the holder of the peer id's key named these addresses. It does not prove that the peer is a member
of the run, nor that it answers there: the handshake of a link shows both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.checks import require
from rollcast.wire.identity.identity import Identity, peer_id_of, verify_bytes
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.proto import rollcast_pb2 as pb

RECORD_DOMAIN = "rollcast/peer-record/1"
LIFETIME_S = 6 * 3600
"""Validity of a new record in seconds: over a night without the coordinator, but no longer than addresses last."""
LIFETIME_S_MAX = 7 * 86400
"""Longest accepted validity in seconds: a signed record cannot be revoked."""

_ROLES = frozenset({"peer", "origin"})


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """The addresses at which a peer can be reached.

    Args:
        sequence: a number that increases with every record of a peer; the record with the highest one is valid.
        addresses: addresses in the forms of the relay plan (host:port, "punch", libp2p's), the preferred one first;
            empty if the peer only dials others.
        expires_unix_s: the Unix time at which the record expires.
    """

    run_id: RunId
    peer_id: PeerId
    role: str
    sequence: int
    addresses: tuple[str, ...]
    expires_unix_s: int

    @property
    def address(self) -> str:
        """Return all addresses as one text, separated by spaces as in a relay plan."""
        return " ".join(self.addresses)


def sign_record(record: PeerRecord, identity: Identity) -> pb.Signed:
    """Sign a peer's own record.

    Raises:
        MalformedMessage: receivers would refuse the record.
    """
    _check(record)
    require(record.peer_id == identity.peer_id, "a peer record is signed by the peer that it names")
    message = pb.PeerRecord(
        run_id=record.run_id,
        peer_id=record.peer_id,
        role=record.role,
        sequence=record.sequence,
        addresses=record.addresses,
        expires_unix_s=record.expires_unix_s,
    )
    return identity.sign(RECORD_DOMAIN, message.SerializeToString(deterministic=True))


def verify_record(signed: pb.Signed, *, run_id: RunId, now_unix_s: float) -> PeerRecord:
    """Verify a record from the network: bounds, signature, run and time.

    Raises:
        MalformedMessage: the record is of another run, has expired, is valid for too long, or exceeds a bound.
        BadSignature: the peer that the record names did not sign it.
        WrongKey: the public key next to the record is no key.
    """
    record = read_record(signed)
    require(record.run_id == run_id, "a peer record is of another run")
    require(now_unix_s < record.expires_unix_s, "a peer record has expired")
    require(record.expires_unix_s <= now_unix_s + LIFETIME_S_MAX, "a peer record is valid for too long")
    return record


def read_record(signed: pb.Signed) -> PeerRecord:
    """Verify a record's bounds and signature, but not run and time, which its final receiver checks.

    Raises:
        MalformedMessage: the record exceeds a bound.
        BadSignature: the peer that the record names did not sign it.
        WrongKey: the public key next to the record is no key.
    """
    require(len(signed.payload) <= limits.PEER_RECORD_BYTES_MAX, "a peer record is too long")
    try:
        message = pb.PeerRecord.FromString(signed.payload)
    except DecodeError:
        raise MalformedMessage("a peer record cannot be read") from None
    record = PeerRecord(
        RunId(message.run_id),
        PeerId(message.peer_id),
        message.role,
        message.sequence,
        tuple(message.addresses),
        message.expires_unix_s,
    )
    _check(record)
    require(peer_id_of(signed.public_key) == record.peer_id, "a peer record is signed by another peer")
    verify_bytes(signed.public_key, RECORD_DOMAIN, signed.payload, signed.signature)
    return record


def bounded(records: pb.PeerRecords) -> Iterable[pb.Signed]:
    """Return the records of one message.

    Raises:
        MalformedMessage: the message has too many records.
    """
    require(len(records.records) <= limits.PEER_RECORDS_MAX, "too many peer records in one message")
    return records.records


def _check(record: PeerRecord) -> None:
    require(0 < len(record.peer_id) <= limits.PEER_ID_LENGTH_MAX, "a peer record without a peer id")
    require(record.role in _ROLES, "a peer record of an unknown role")
    require(0 < record.sequence <= limits.COUNTER_MAX, "a peer record with a sequence out of range")
    require(0 < record.expires_unix_s <= limits.COUNTER_MAX, "a peer record with an expiry out of range")
    require(len(record.addresses) <= limits.PEER_ADDRESSES_MAX, "a peer record with too many addresses")
    require(all(map(_is_address, record.addresses)), "a peer record with a malformed address")


def _is_address(text: str) -> bool:
    """Return whether the text is one word of visible ASCII and no mirror's URL: only the operator may name mirrors."""
    visible = text.isascii() and text.isprintable() and " " not in text
    return 0 < len(text) <= limits.PEER_ADDRESS_LENGTH_MAX and visible and "://" not in text
