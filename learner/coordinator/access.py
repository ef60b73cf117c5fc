"""The learner's certificate of the run, renewed before a connection needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from rollcast.runtime.errors import RollcastError
from rollcast.wire.joining.enrol import REUSE_VALID_FOR_S, Enrolment

_log = structlog.get_logger()


class Access:
    """Credentials for connections that are about to be opened.

    A connection outlives its certificate; only opening one needs a valid certificate, so nothing is renewed by the
    clock. A certificate counts as old when a third of what it had left is left, and at ten minutes at the latest, from
    where on enrolling gives a new one.

    Args:
        enrolment: the first.
        enrol: makes another with the same invite and identity; the coordinator counts an identity once.
    """

    def __init__(self, enrolment: Enrolment, enrol: Callable[[], Awaitable[Enrolment]]) -> None:
        self._enrol = enrol
        self._renewing = asyncio.Lock()
        self._take(enrolment)

    async def fresh(self) -> Enrolment:
        """An enrolment whose certificate can open a connection now.

        Raises:
            RollcastError: the certificate has expired and there is no new one.
        """
        async with self._renewing:
            left_s = self._enrolment.credentials.valid_for_s
            if left_s >= self._renew_below_s:
                return self._enrolment
            try:
                self._take(await self._enrol())
                _log.info("certificate renewed", valid_for_s=round(self._enrolment.credentials.valid_for_s))
            except RollcastError as error:
                if left_s <= 0.0:
                    raise
                _log.warning("certificate not renewed", valid_for_s=round(left_s), code=error.code, what=error.what)
            return self._enrolment

    def _take(self, enrolment: Enrolment) -> None:
        self._enrolment = enrolment
        self._renew_below_s = min(REUSE_VALID_FOR_S, enrolment.credentials.valid_for_s / 3.0)
