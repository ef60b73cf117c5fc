"""Admit machines to the run: make invites with a quota and an expiry, and issue certificates for them.

A join is checked from cheap to expensive: size and form, protocol range, role and key, the Ed25519 signature, then the
invite in the ledger. The use of an invite is durable before the certificate leaves.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from coordinator.ledger.store import RunStore
from rollcast.runtime.errors import Banned, JoinRefused, MalformedMessage, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import peer_id_of, verify_bytes
from rollcast.wire.identity.member_proof import proved_member
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.ids import PeerId, Role, RunId
from rollcast.wire.joining.gateways import in_turn
from rollcast.wire.joining.invite import Invite
from rollcast.wire.joining.release import Release
from rollcast.wire.joining.request import JOIN_DOMAIN, certified_role, join_payload
from rollcast.wire.protocol import PROTOCOL_RANGE, agree

log = structlog.get_logger()

JOINING_ROLES: tuple[Role, ...] = ("cell", "gateway", "learner", "origin", "peer")
TOKEN_BYTES = 32  # 256 bits cannot be guessed
CSR_LIMIT_BYTES = 4 * 1024  # a P-256 request is about 400 bytes
LEDGER_DEADLINE_S = 10.0
INVITES_LISTED_MAX = 65_536  # among which the invite of a cell is looked up
INVITES_KNOWN_MAX = 16_384  # identities whose invites are kept in memory, so that reconnecting asks the ledger nothing


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A join request whose form was checked."""

    token: str
    role: Role
    public_key: bytes
    csr_pem: bytes
    signature: bytes
    protocol: tuple[int, int]


@dataclass(frozen=True, slots=True)
class JoinReply:
    certificate_pem: str
    run_id: str
    peer_id: str
    grpc_address: str
    gateways: tuple[str, ...] = ()
    """Where a peer dials instead, in turn; grpc_address comes last."""


def parse_join(body: bytes) -> JoinRequest:
    """Parse the JSON body of a join.

    Raises:
        MalformedMessage: it is not the object described in docs, or a field is too long.
    """
    try:
        raw = json.loads(body)
        csr_pem = _text(raw, "csr_pem", CSR_LIMIT_BYTES).encode("ascii")
        protocol = raw["protocol"]
        request = JoinRequest(
            token=_text(raw, "token", 256),
            role=_role(_text(raw, "role", 16)),
            public_key=bytes.fromhex(_text(raw, "public_key", 64)),
            csr_pem=csr_pem,
            signature=bytes.fromhex(_text(raw, "signature", 128)),
            protocol=(_small_int(protocol["min"]), _small_int(protocol["max"])),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedMessage(
            "this is not a join request",
            cause=f"{type(error).__name__}: {error}",
            fix="use the same software on both ends",
        ) from None
    if len(request.public_key) != 32 or len(request.signature) != 64:
        raise MalformedMessage("this is not a join request", cause="a key or signature has the wrong length")
    return request


class JoinDesk:
    """Checks joins and memberships, and issues certificates."""

    def __init__(
        self,
        *,
        run_id: RunId,
        ca: RunCA,
        ledger: RunStore,
        learner_public_key: bytes,
        certificate_lifetime_s: float,
        learner_signs: bool = True,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            learner_signs: whether the learner must have the key that signs versions. In a cell the uplink has the
                learner's place, and passes on what the head's learner signed.
        """
        self._learner_signs = learner_signs
        self._run_id = run_id
        self._ca = ca
        self._ledger = ledger
        self._learner_public_key = learner_public_key
        self._certificate_lifetime_s = certificate_lifetime_s
        self._unix_clock = unix_clock
        self._invite_of: dict[PeerId, str] = {}  # of identities that opened a session lately
        self.grpc_address = ""  # known once the control port is bound
        self.gateways: tuple[str, ...] = ()  # where peers dial them
        self.on_claimed: Callable[[bytes, PeerId], None] = lambda token_hash, peer_id: None
        self.banned_because: Callable[[PeerId], str] = lambda peer_id: ""  # why it may not join, or ""
        self.has_session: Callable[[PeerId], bool] = lambda peer_id: False

    @property
    def ca_pem(self) -> bytes:
        """Return the certificate of the run CA."""
        return self._ca.certificate_pem

    async def new_invite(self, role: Role, *, quota: int, lifetime_s: float, note: str = "") -> str:
        """Return a new token, whose hash is durable before the return. ``note`` names its intended holder."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        expires_unix_s = self._unix_clock() + lifetime_s
        async with deadline(LEDGER_DEADLINE_S, "the ledger to store an invite"):
            await self._ledger.create_invite(
                token_hash(token), role, quota=quota, expires_unix_s=expires_unix_s, note=note
            )
        return token

    async def check_invite(self, token: str) -> None:
        """Check that a token is an invite of this run and has not expired; its quota is not used.

        Raises:
            JoinRefused: the token is no invite, or has expired.
            StoreError, WaitTimedOut: the ledger cannot look it up.
        """
        async with deadline(LEDGER_DEADLINE_S, "the ledger to look up an invite"):
            await self._ledger.check_invite(token_hash(token), now_unix_s=self._unix_clock())

    async def invite_of(self, peer_id: PeerId) -> str:
        """Return the id of the invite with which an identity joined; empty if it is not known.

        Raises:
            StoreError, WaitTimedOut: the ledger cannot look it up.
        """
        known = self._invite_of.get(peer_id)
        if known is None:
            async with deadline(LEDGER_DEADLINE_S, "the ledger to look up the invite of an identity"):
                known = await self._ledger.invite_of(peer_id)
            while len(self._invite_of) >= INVITES_KNOWN_MAX:
                del self._invite_of[next(iter(self._invite_of))]
            self._invite_of[peer_id] = known
        return known

    async def is_for_cells(self, invite_id: str) -> bool:
        """Return whether an invite admits cells.

        Raises:
            StoreError, WaitTimedOut: the ledger cannot look it up.
        """
        async with deadline(LEDGER_DEADLINE_S, "the ledger to list invites"):
            invites = await self._ledger.invites(INVITES_LISTED_MAX)
        return any(one.invite_id == invite_id and one.role == "cell" for one in invites)

    def check_member(self, proof: str, path: str) -> PeerId:
        """Return the member that this proof of membership names (rollcast.wire.identity.member_proof).

        Raises:
            BadSignature, WrongKey: the proof is not valid for this path at this time.
            JoinRefused: the member has no open session.
            Banned: the operator banned the member.
        """
        peer_id = proved_member(proof, self._run_id, path, self._unix_clock())
        self._refuse_banned(peer_id)
        if not self.has_session(peer_id):
            raise JoinRefused(
                "only members with an open session may send this request", fix="retry once the session is open"
            )
        return peer_id

    async def join(self, body: bytes) -> JoinReply:
        """Check a join and issue its certificate.

        Raises:
            MalformedMessage, JoinRefused, ProtocolMismatch, WrongKey, BadSignature, Banned: the join is refused.
            StoreError, WaitTimedOut: the use of the invite cannot be recorded.
        """
        request = parse_join(body)
        agree(PROTOCOL_RANGE, request.protocol)
        if request.role == "learner" and self._learner_signs and request.public_key != self._learner_public_key:
            raise WrongKey(
                "this learner's key is not the run's",
                cause="the coordinator's learner_public_key is another key",
                fix="set learner_public_key to what `rollcast identity FILE` prints for the learner's key",
            )
        payload = join_payload(self._run_id, request.token, request.csr_pem)
        verify_bytes(request.public_key, JOIN_DOMAIN, payload, request.signature)
        peer_id = peer_id_of(request.public_key)
        self._refuse_banned(peer_id)
        claimed = token_hash(request.token)
        async with deadline(LEDGER_DEADLINE_S, "the ledger to look up an invite"):
            await self._ledger.claim_invite(claimed, request.role, peer_id, now_unix_s=self._unix_clock())
        self.on_claimed(claimed, peer_id)
        certificate = await self.renew(request.csr_pem, peer_id=peer_id, role=certified_role(request.role))
        log.info("identity joined", peer_id=peer_id, peer_role=request.role)
        gateways = in_turn(self.gateways, peer_id) if request.role in ("cell", "peer") else ()
        return JoinReply(certificate.decode("ascii"), self._run_id, peer_id, self.grpc_address, gateways)

    async def renew(self, csr_pem: bytes, *, peer_id: PeerId, role: Role) -> bytes:
        """Issue a certificate (PEM) for an identity that was proved before; it is signed in a thread.

        Raises:
            MalformedMessage: the request is not for a P-256 key.
            Banned: the operator banned the identity.
        """
        self._refuse_banned(peer_id)
        if len(csr_pem) > CSR_LIMIT_BYTES:
            raise MalformedMessage("this certificate request is too long")
        lifetime_s = self._certificate_lifetime_s
        return await asyncio.to_thread(self._ca.issue, csr_pem, peer_id=peer_id, role=role, lifetime_s=lifetime_s)

    def _refuse_banned(self, peer_id: PeerId) -> None:
        reason = self.banned_because(peer_id)
        if reason:
            raise Banned.because(reason)


def token_hash(token: str) -> bytes:
    """Return the SHA-256 of an invite's token; only that is stored."""
    return hashlib.sha256(token.encode()).digest()


def _text(raw: Any, name: str, limit: int) -> str:
    value = raw[name]
    if not isinstance(value, str) or len(value) > limit or not value.isascii():
        raise ValueError(f"{name} is not an ASCII text of at most {limit} characters")
    return value


def _role(text: str) -> Role:
    if text not in JOINING_ROLES:
        raise ValueError(f"a machine cannot join with the role {text!r}")
    return text


def _small_int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise ValueError("a protocol version is not a small integer")
    return value


class InviteIssuer:
    """Makes invites. ``http_url`` is set once the port is bound; ``further`` holds more addresses of the run.

    Args:
        release: what every invite asks of the machine that joins with it; None: nothing.
    """

    def __init__(
        self,
        desk: JoinDesk,
        *,
        run_id: RunId,
        ca_sha256: str,
        learner_public_key: str,
        release: Release | None = None,
    ) -> None:
        self._desk = desk
        self._run_id = run_id
        self._ca_sha256 = ca_sha256
        self._learner_public_key = learner_public_key
        self._release = release
        self.http_url = ""
        self.further: tuple[str, ...] = ()

    async def invite(self, role: Role, *, quota: int, lifetime_s: float, note: str = "") -> Invite:
        """Make an invite, durable before the return. ``note`` names its intended holder.

        Raises:
            StoreError, WaitTimedOut: the ledger cannot store it.
        """
        return Invite(
            run_id=self._run_id,
            role=role,
            http_url=self.http_url,
            grpc_address=self._desk.grpc_address,
            ca_sha256=self._ca_sha256,
            learner_public_key=self._learner_public_key,
            token=await self._desk.new_invite(role, quota=quota, lifetime_s=lifetime_s, note=note),
            further=self.further,
            release=self._release,
        )
