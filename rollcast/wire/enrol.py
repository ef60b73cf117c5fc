"""Joining a run: an invite and an identity become a certificate of the run CA.

The answers are trusted no further than they can be checked: the CA by the fingerprint in the invite, the certificate by
the CA, the run, role and peer id in it, and our key.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from rollcast.runtime.errors import RollcastError, Unreachable, WrongKey
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.certificates import Caller, fingerprint_of
from rollcast.wire.identity import Identity
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.invite import Invite
from rollcast.wire.pinned_http import NotReady, PinnedHttp, text_in
from rollcast.wire.protocol import PROTOCOL_RANGE
from rollcast.wire.tls import TlsCredentials, new_tls_key

JOIN_DOMAIN = "rollcast/join/1"
REUSE_VALID_FOR_S = 600.0
"""A saved certificate with less time left than this is not used again."""

_ATTEMPT_TIMEOUT_S = 10.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A process's place in a run."""

    credentials: TlsCredentials
    run_id: RunId
    grpc_address: str
    http_url: str
    learner_public_key: bytes
    peer_id: PeerId


def join_payload(run_id: str, token: str, csr_pem: bytes) -> bytes:
    """What the joining identity signs for ``JOIN_DOMAIN``: run, token and request belong together."""
    return run_id.encode("ascii") + hashlib.sha256(token.encode("ascii")).digest() + csr_pem


async def enrol(invite: Invite, identity: Identity, state_folder: Path, timeout_s: float) -> Enrolment:
    """Join, or take up a saved certificate of the same run that is valid for at least another ten minutes.

    While the coordinator cannot be reached or is not ready, tries again until ``timeout_s`` seconds are over.

    Raises:
        Unreachable: it could not be reached in time.
        JoinRefused: the invite is wrong, expired or used up.
        WrongKey: whoever answers is not the coordinator that wrote the invite.
        ProtocolMismatch: the two sides speak different protocol versions.
        MalformedMessage: it answers something else than a join.
        RunFolderError: the credentials cannot be saved.
    """
    saved = await asyncio.to_thread(_reusable, invite, identity, state_folder)
    if saved is not None:
        log.info("certificate reused", run_id=invite.run_id, peer_id=identity.peer_id)
        return _enrolment(invite, identity, saved, invite.grpc_address)
    loop = asyncio.get_running_loop()
    gives_up_at_s = loop.time() + timeout_s
    last_problem = "no attempt ended"
    for delay_s in backoff_delays_s(random.Random(), most_s=2.0):
        try:
            left_s = gives_up_at_s - loop.time()
            async with asyncio.timeout(min(left_s, _ATTEMPT_TIMEOUT_S)):
                enrolment = await _join(invite, identity)
            await asyncio.to_thread(enrolment.credentials.save, state_folder)
            log.info("joined", run_id=invite.run_id, peer_id=identity.peer_id)
            return enrolment
        except aiohttp.ClientConnectorCertificateError as error:
            raise WrongKey(
                f"whoever answers at {invite.http_url} has no certificate of this run", cause=str(error)
            ) from None
        except (NotReady, aiohttp.ClientError, OSError, TimeoutError) as error:
            last_problem = str(error) or "no answer in time"
        if loop.time() + delay_s >= gives_up_at_s:
            break
        await asyncio.sleep(delay_s)
    raise Unreachable(
        f"cannot reach the coordinator at {invite.http_url} within {timeout_s:g} s",
        cause=last_problem,
        fix="check that the coordinator runs and that its address can be reached from here",
    )


async def _join(invite: Invite, identity: Identity) -> Enrolment:
    timeout = aiohttp.ClientTimeout(total=_ATTEMPT_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
        pinned = await PinnedHttp.open(session, invite)
        key = new_tls_key()
        request = _join_request(invite, identity, key.csr_pem())
        answer = await pinned.exchange("POST", "/api/v1/join", request)
    credentials = TlsCredentials(pinned.ca_pem, text_in(answer, "certificate_pem").encode("ascii"), key.private_pem)
    credentials.check()
    _check_caller(credentials.caller, invite, identity)
    return _enrolment(invite, identity, credentials, text_in(answer, "grpc_address") or invite.grpc_address)


def _join_request(invite: Invite, identity: Identity, csr_pem: bytes) -> dict[str, Any]:
    signature = identity.sign_bytes(JOIN_DOMAIN, join_payload(invite.run_id, invite.token, csr_pem))
    return {
        "token": invite.token,
        "role": invite.role,
        "public_key": identity.public_key.hex(),
        "csr_pem": csr_pem.decode("ascii"),
        "signature": signature.hex(),
        "protocol": {"min": PROTOCOL_RANGE[0], "max": PROTOCOL_RANGE[1]},
    }


def _check_caller(caller: Caller, invite: Invite, identity: Identity) -> None:
    expected = Caller(invite.run_id, invite.role, identity.peer_id)
    if caller != expected:
        raise WrongKey("the certificate is for somebody else", cause=f"{caller.uri} instead of {expected.uri}")


def _reusable(invite: Invite, identity: Identity, state_folder: Path) -> TlsCredentials | None:
    try:
        credentials = TlsCredentials.load(state_folder)
        _check_caller(credentials.caller, invite, identity)
    except RollcastError:
        return None
    is_ours = fingerprint_of(credentials.ca_pem) == invite.ca_sha256
    return credentials if is_ours and credentials.valid_for_s >= REUSE_VALID_FOR_S else None


def _enrolment(invite: Invite, identity: Identity, credentials: TlsCredentials, grpc_address: str) -> Enrolment:
    return Enrolment(
        credentials=credentials,
        run_id=invite.run_id,
        grpc_address=grpc_address,
        http_url=invite.http_url,
        learner_public_key=bytes.fromhex(invite.learner_public_key),
        peer_id=identity.peer_id,
    )
