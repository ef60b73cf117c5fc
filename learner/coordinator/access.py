"""Keep the learner's certificate valid: renew it when a connection is about to be opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from rollcast.runtime.errors import RollcastError
from rollcast.wire.joining.enrol import REUSE_VALID_FOR_S, Enrolment

_log = structlog.get_logger()


class Access:
    """Credentials for connections that are about to be opened.

    A connection outlives its certificate, and only opening one needs a valid certificate, so nothing is renewed by the
    clock. A certificate is renewed once a third of its remaining validity is left, but not while it is valid for more
    than ten minutes, because enrolling returns a new certificate only below that.

    Args:
        enrolment: the first enrolment.
        enrol: enrols again with the same invite and identity; the coordinator counts an identity once.
    """

    def __init__(self, enrolment: Enrolment, enrol: Callable[[], Awaitable[Enrolment]]) -> None:
        self._enrol = enrol
        self._renewing = asyncio.Lock()
        self._take(enrolment)

    async def fresh(self) -> Enrolment:
        """Return an enrolment whose certificate can open a connection now.

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
