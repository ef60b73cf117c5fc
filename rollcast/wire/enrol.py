"""Joining a run: an invite and an identity become a certificate of the run CA.

The answers are trusted no further than they can be checked: the CA by the fingerprint in the invite, the certificate by
the CA, the run, role and peer id in it, and our key.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from rollcast.runtime.errors import JoinRefused, MalformedMessage, RollcastError, Unreachable, WrongKey
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.certificates import COORDINATOR_NAME, Caller, fingerprint_of
from rollcast.wire.error_json import error_from_json
from rollcast.wire.http_answers import json_object, read_bounded
from rollcast.wire.identity import Identity
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.invite import Invite
from rollcast.wire.limits import HTTP_JOIN_BYTES_MAX
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
        except (_NotReady, aiohttp.ClientError, OSError, TimeoutError) as error:
            last_problem = str(error) or "no answer in time"
        if loop.time() + delay_s >= gives_up_at_s:
            break
        await asyncio.sleep(delay_s)
    raise Unreachable(
        f"cannot reach the coordinator at {invite.http_url} within {timeout_s:g} s",
        cause=last_problem,
        fix="check that the coordinator runs and that its address can be reached from here",
    )


class _NotReady(Exception):
    """The coordinator answers but cannot let anybody in yet."""


async def _join(invite: Invite, identity: Identity) -> Enrolment:
    timeout = aiohttp.ClientTimeout(total=_ATTEMPT_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
        # Nothing secret is sent before the CA has matched the invite's fingerprint.
        answer = await _exchange(session, "GET", f"{invite.http_url}/api/v1/ca", _anybody())
        ca_pem = _text(answer, "ca_pem").encode("ascii")
        if fingerprint_of(ca_pem) != invite.ca_sha256:
            raise WrongKey(
                f"whoever answers at {invite.http_url} is not the coordinator of this invite",
                cause="its run CA has another fingerprint",
                fix="ask the operator for a new invite, or check the address",
            )
        key = new_tls_key()
        request = _join_request(invite, identity, key.csr_pem())
        url = f"{invite.http_url}/api/v1/join"
        answer = await _exchange(session, "POST", url, _pinned(ca_pem), request)
    credentials = TlsCredentials(ca_pem, _text(answer, "certificate_pem").encode("ascii"), key.private_pem)
    credentials.check()
    _check_caller(credentials.caller, invite, identity)
    return _enrolment(invite, identity, credentials, _text(answer, "grpc_address") or invite.grpc_address)


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


async def _exchange(
    session: aiohttp.ClientSession, method: str, url: str, context: ssl.SSLContext, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    is_tls = url.startswith("https:")
    async with session.request(
        method,
        url,
        json=body,
        allow_redirects=False,
        ssl=context if is_tls else True,
        server_hostname=COORDINATOR_NAME if is_tls else None,
    ) as response:
        data = await read_bounded(response, HTTP_JOIN_BYTES_MAX)
        if response.status == 200:
            return json_object(data, url, fix="check the address in the invite")
        error = error_from_json(data)
        if response.status >= 500 or response.status == 429:
            raise _NotReady(f"the coordinator answers {response.status}" + (f": {error.what}" if error else ""))
        raise error or JoinRefused(f"{url} answers {response.status}", fix="check that this is a coordinator's address")


def _text(answer: dict[str, Any], key: str) -> str:
    value = answer.get(key)
    if not isinstance(value, str) or not value.isascii():
        raise MalformedMessage(f"the coordinator's answer has no {key}")
    return value


def _anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _pinned(ca_pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    return context


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
