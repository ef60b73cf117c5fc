"""Join a run: exchange an invite and an identity for a certificate of the run CA.

Answers are trusted no further than they can be checked: the CA by the fingerprint in the invite, the certificate by
the CA, the run, role and peer id in it, and our key.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from rollcast.runtime.errors import RollcastError, RunFolderError, Unreachable, WrongKey
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.identity.certificates import Caller, fingerprint_of
from rollcast.wire.identity.clock import out_of_time
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials, new_tls_key
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.joining.bootstrap import Bootstrap
from rollcast.wire.joining.diagnose import failed_hop
from rollcast.wire.joining.gateways import gateways_in, save_gateways, saved_gateways
from rollcast.wire.joining.invite import Invite
from rollcast.wire.joining.pinned_http import NotReady, PinnedHttp, text_in
from rollcast.wire.joining.release import check_release
from rollcast.wire.joining.request import JOIN_DOMAIN, certified_role, join_payload
from rollcast.wire.protocol import PROTOCOL_RANGE

REUSE_VALID_FOR_S = 600.0
"""Seconds that a saved certificate must still be valid for to be reused."""

_ATTEMPT_TIMEOUT_S = 10.0
_DELAY_MOST_S = 10.0
_NO_ANSWER = "no answer in time"
_DIAGNOSIS_LEAST_S, _DIAGNOSIS_MOST_S = 1.0, 30.0  # a join that is out of time still says which hop failed

#: (number of the attempt from 1, URL of the place that is tried, what failed there last or empty)
OnAttempt = Callable[[int, str, str], None]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The membership of a process in a run: its credentials and the addresses of the coordinator."""

    credentials: TlsCredentials
    run_id: RunId
    grpc_address: str
    http_url: str
    learner_public_key: bytes
    peer_id: PeerId
    further: tuple[str, ...] = ()
    """More control addresses of the same coordinator."""

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        """Return all control addresses, in the order to try."""
        return (self.grpc_address, *self.further)


async def enrol(
    invite: Invite,
    identity: Identity,
    state_folder: Path,
    timeout_s: float | None,
    *,
    also: Sequence[str] = (),
    reuse_valid_for_s: float = REUSE_VALID_FOR_S,
    on_attempt: OnAttempt = lambda _attempt, _url, _problem: None,
) -> Enrolment:
    """Join the run, or reuse a saved certificate of the same run that is valid for long enough.

    While the coordinator cannot be reached or is not ready, all of its places are retried in turn.

    Args:
        timeout_s: seconds after which to give up; None: never.
        also: further places of the coordinator (rollcast.wire.joining.bootstrap).
        reuse_valid_for_s: seconds that a saved certificate must still be valid for; minus infinity accepts any, for
            callers that renew it later by themselves.
        on_attempt: called before each attempt.

    Raises:
        Unreachable: the coordinator could not be reached in time; the message names the hop that failed.
        JoinRefused: the invite is wrong, expired or used up.
        WrongKey: the server that answers is not the coordinator that wrote the invite.
        ClockWrong: the coordinator's certificate is not valid by this machine's clock.
        ReleaseMismatch: the invite names another release than this one.
        ProtocolMismatch: the two sides speak different protocol versions.
        MalformedMessage: the answer is not that of a join.
    """
    check_release(invite.release, invite.role)
    places = invite.places(also)
    saved = await asyncio.to_thread(_reusable, invite, identity, state_folder, reuse_valid_for_s)
    if saved is not None:
        log.info("certificate reused", run_id=invite.run_id, peer_id=identity.peer_id)
        gateways = await asyncio.to_thread(saved_gateways, state_folder)
        addresses = [*gateways, *(place.grpc_address for place in places)]
        return _enrolment(invite, identity, saved, places[0].http_url, addresses)
    loop = asyncio.get_running_loop()
    gives_up_at_s = float("inf") if timeout_s is None else loop.time() + timeout_s
    problems: dict[str, str] = {}
    unproven: dict[str, RollcastError] = {}
    delays_s = backoff_delays_s(random.Random(), most_s=_DELAY_MOST_S)
    for attempt, (place, delay_s) in enumerate(zip(cycle(places), delays_s, strict=False), 1):
        on_attempt(attempt, place.http_url, problems.get(place.http_url, ""))
        try:
            async with asyncio.timeout(min(gives_up_at_s - loop.time(), _ATTEMPT_TIMEOUT_S)):
                enrolment, gateways = await _join(invite, identity, place, places)
            await asyncio.to_thread(_save, enrolment, gateways, state_folder)
            log.info("joined", run_id=invite.run_id, peer_id=identity.peer_id)
            return enrolment
        except _UnprovenServer as error:
            unproven[place.http_url] = error.error
            if len(unproven) == len(places):  # a place that has not answered may be the coordinator
                raise error.error from None
            problems[place.http_url] = error.error.what
        except (NotReady, aiohttp.ClientError, OSError, TimeoutError) as error:
            await _note(problems, place, error, gives_up_at_s - loop.time(), logs=timeout_s is None)
        if loop.time() + delay_s >= gives_up_at_s:
            break
        await asyncio.sleep(delay_s)
    raise Unreachable(
        f"cannot reach the coordinator at {' or '.join(place.http_url for place in places)} within {timeout_s:g} s",
        cause="; ".join(problems.values()) or "no attempt ended",
        fix="check that the coordinator runs and that its address can be reached from here",
    )


class _UnprovenServer(Exception):
    """The server that answers at a place has not proved that it is this run's coordinator."""

    def __init__(self, error: RollcastError) -> None:
        super().__init__(error.what)
        self.error = error


async def _note(problems: dict[str, str], place: Bootstrap, error: Exception, left_s: float, *, logs: bool) -> None:
    """Find out within the time that is left which hop fails, and log it if it is another one than before.

    Without a timeout no error ever reports the problem, so the log must.
    """
    problem = str(error) or _NO_ANSWER
    if not isinstance(error, NotReady):
        try:
            async with asyncio.timeout(max(_DIAGNOSIS_LEAST_S, min(left_s, _DIAGNOSIS_MOST_S))):
                failed = await failed_hop(place.http_url.partition("://")[2], None)
        except TimeoutError:
            problems.setdefault(place.http_url, _NO_ANSWER)
            return
        problem = problem if failed is None else str(failed)
    if logs and problems.get(place.http_url) != problem:
        log.warning("the coordinator cannot be reached; retrying", url=place.http_url, cause=problem)
    problems[place.http_url] = problem


async def _join(
    invite: Invite, identity: Identity, place: Bootstrap, places: Sequence[Bootstrap]
) -> tuple[Enrolment, tuple[str, ...]]:
    """Join at one place; return the enrolment, and the gateways that the coordinator names."""
    timeout = aiohttp.ClientTimeout(total=_ATTEMPT_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
        try:
            pinned = await PinnedHttp.open(session, replace(invite, http_url=place.http_url))
        except RollcastError as error:
            raise _UnprovenServer(error) from None
        key = new_tls_key()
        request = _join_request(invite, identity, key.csr_pem())
        try:
            answer = await pinned.exchange("POST", "/api/v1/join", request)
        except aiohttp.ClientConnectorCertificateError as error:
            what = f"the server at {place.http_url} has no certificate of this run"
            wrong = out_of_time(place.http_url, error.certificate_error) or WrongKey(what, cause=str(error))
            raise _UnprovenServer(wrong) from None
    credentials = TlsCredentials(pinned.ca_pem, text_in(answer, "certificate_pem").encode("ascii"), key.private_pem)
    credentials.check()
    _check_caller(credentials.caller, invite, identity)
    # The coordinator reports its control port, which may have moved. If that address cannot be reached, the place that
    # answered is tried.
    named = [text_in(answer, "grpc_address")] if answer.get("grpc_address") else []
    others = [one.grpc_address for one in (place, *places)]
    addresses = [*named, *others] if place == places[0] else [others[0], *named, *others]
    gateways = gateways_in(answer)
    return _enrolment(invite, identity, credentials, place.http_url, [*gateways, *addresses]), gateways


def _save(enrolment: Enrolment, gateways: Sequence[str], folder: Path) -> None:
    """Save the certificate and the gateways. A disk that refuses costs another join at the next start, no more."""
    try:
        enrolment.credentials.save(folder)
        save_gateways(folder, gateways)
    except RunFolderError as error:
        log.warning("the certificate is not saved", cause=error.cause, fix=error.fix)
    except OSError as error:
        log.warning("the addresses of the run's gateways are not saved", cause=str(error))


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
    expected = Caller(invite.run_id, certified_role(invite.role), identity.peer_id)
    if caller != expected:
        raise WrongKey("the certificate is for another member", cause=f"{caller.uri} instead of {expected.uri}")


def _reusable(invite: Invite, identity: Identity, state_folder: Path, valid_for_s: float) -> TlsCredentials | None:
    try:
        credentials = TlsCredentials.load(state_folder)
        _check_caller(credentials.caller, invite, identity)
    except RollcastError:
        return None
    is_ours = fingerprint_of(credentials.ca_pem) == invite.ca_sha256
    return credentials if is_ours and credentials.valid_for_s >= valid_for_s else None


def _enrolment(
    invite: Invite, identity: Identity, credentials: TlsCredentials, http_url: str, addresses: Sequence[str]
) -> Enrolment:
    first, *further = dict.fromkeys(addresses)
    return Enrolment(
        credentials=credentials,
        run_id=invite.run_id,
        grpc_address=first,
        http_url=http_url,
        learner_public_key=bytes.fromhex(invite.learner_public_key),
        peer_id=identity.peer_id,
        further=tuple(further),
    )
