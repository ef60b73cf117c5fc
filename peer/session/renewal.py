"""Renew this process's certificate over its open session, before the old one expires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import structlog

from rollcast.runtime.errors import ClockWrong, RollcastError, RunFolderError, WaitTimedOut, WrongKey
from rollcast.runtime.waits import backoff_delays_s, deadline
from rollcast.wire.identity.clock import CLOCK_FIX
from rollcast.wire.identity.tls import TlsCredentials, new_tls_key
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

ANSWER_TIMEOUT_S = 10.0  # from the request to the new certificate
LOOK_AGAIN_S = 3600.0  # longest sleep, because a machine that was suspended wakes up with less validity left


class Renewal:
    """Keep ``credentials`` valid: renew them once two thirds of their remaining life at startup have passed.

    Args:
        folder: folder in which credentials are saved.
        send: queues a message in the session; a request that is lost with the session is retried.
        renewed: called with the new credentials.
    """

    def __init__(
        self,
        credentials: TlsCredentials,
        *,
        folder: Path,
        send: Callable[[pb.PeerMessage], None],
        renewed: Callable[[TlsCredentials], None],
        random: Random,
    ) -> None:
        self.credentials = credentials
        self._folder = folder
        self._send = send
        self._renewed = renewed
        self._random = random
        self._life_s = credentials.valid_for_s
        self._answer: asyncio.Future[bytes] | None = None

    @property
    def due_in_s(self) -> float:
        """The seconds until a renewal is due; negative once it is overdue."""
        # The life is negative if this machine's clock was ahead when it was computed.
        return self.credentials.valid_for_s - max(0.0, self._life_s) / 3.0

    def received(self, certificate_pem: bytes) -> None:
        """Accept the coordinator's answer; a certificate that was not requested is ignored."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(certificate_pem)

    def replace(self, fresh: TlsCredentials) -> None:
        """Use these credentials from now on; the caller saves them to disk."""
        self.credentials, self._life_s = fresh, fresh.valid_for_s
        self._renewed(fresh)
        if self._life_s > 0.0:
            log.info("certificate renewed", valid_for_s=round(self._life_s))
        else:
            what = "by this machine's clock, which is ahead, even a new certificate has expired: all links fail"
            log.warning(what, code=ClockWrong.code, fix=CLOCK_FIX)

    async def run(self) -> None:
        """Wait until a renewal is due, then request it until it is answered; repeat until cancelled."""
        delays, failing = backoff_delays_s(self._random, first_s=1.0, most_s=60.0), False
        while True:
            if self.due_in_s > 0.0:
                delays, failing = backoff_delays_s(self._random, first_s=1.0, most_s=60.0), False
                await asyncio.sleep(min(self.due_in_s, LOOK_AGAIN_S))
                continue
            try:
                await self._renew()
            except RollcastError as error:
                # Without a session every retry fails in the same way: only the first failure is worth a warning.
                log.log(logging.DEBUG if failing else logging.WARNING, "certificate not renewed", cause=str(error))
                failing = True
            await asyncio.sleep(next(delays))

    async def _renew(self) -> None:
        key = new_tls_key()
        self._answer = asyncio.get_running_loop().create_future()
        self._send(pb.PeerMessage(certificate_request=pb.CertificateRequest(csr_pem=key.csr_pem())))
        try:
            async with deadline(ANSWER_TIMEOUT_S, "the coordinator's new certificate"):
                certificate_pem = await self._answer
        except WaitTimedOut:
            self._answer = None
            raise
        fresh = TlsCredentials(self.credentials.ca_pem, certificate_pem, key.private_pem)
        fresh.check()
        if fresh.caller != self.credentials.caller:
            raise WrongKey("the coordinator's new certificate is for another peer or role than this one")
        self.replace(fresh)
        try:
            fresh.save(self._folder)
        except RunFolderError as error:  # after a restart this process joins again if the old one has expired by then
            log.warning("the renewed certificate is not saved", cause=error.cause, fix=error.fix)
