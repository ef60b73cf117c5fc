"""Measure this machine's link to a coordinator before it has joined: round trip, clock, download and upload rate."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any, TypeVar

import aiohttp

from rollcast.runtime.errors import MalformedMessage, RollcastError, Unreachable, WrongKey
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.joining.diagnose import HopFailed, failed_hop
from rollcast.wire.joining.error_json import error_from_json
from rollcast.wire.joining.invite import Invite
from rollcast.wire.joining.pinned_http import NotReady, PinnedHttp, read_bounded
from rollcast.wire.limits import HTTP_JOIN_BYTES_MAX

FIRST_BYTES = 256 << 10
BYTES_MAX = 32 << 20
WANTED_S = 2.0  # approximate duration of the measurement of one direction
ASK_DEADLINE_S = 20.0
BUSY_DEADLINE_S = 75.0  # the coordinator lets others measure first, within an allowance per minute
_GROWTH_MAX = 16.0
_PIECE_BYTES = 128 << 10

ResultT = TypeVar("ResultT")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """The measurements of a link; None: not measured.

    Args:
        rtt_s: round trip of one small request over an open connection.
        skew_s: seconds by which this machine's clock is ahead of the coordinator's, to within a second (HTTP's Date
            has whole seconds).
        control_port: whether the coordinator's control port accepts connections; ``control_failed``: the hop that
            fails.
        problems: reasons why something could not be measured.
    """

    rtt_s: float | None = None
    skew_s: float | None = None
    control_port: bool | None = None
    download_bytes_per_s: float | None = None
    upload_bytes_per_s: float | None = None
    problems: tuple[RollcastError, ...] = field(default=())
    control_failed: HopFailed | None = None


class InviteHttp:
    """Requests to a coordinator, authorised by an invite, over one connection. Use it as a context manager."""

    def __init__(self, invite: Invite, wall_clock: Callable[[], float] = time.time) -> None:
        self._invite = invite
        self._wall_clock = wall_clock
        self._session: aiohttp.ClientSession | None = None
        self._http: PinnedHttp | None = None

    async def __aenter__(self) -> InviteHttp:
        """Connect, and compare the run CA with the invite's fingerprint.

        Raises:
            Unreachable, WrongKey, MalformedMessage: see rollcast.wire.joining.pinned_http.
        """
        timeout = aiohttp.ClientTimeout(total=ASK_DEADLINE_S + BUSY_DEADLINE_S)
        self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        try:
            async with asyncio.timeout(ASK_DEADLINE_S):
                self._http = await PinnedHttp.open(self._session, self._invite)
        except BaseException as error:
            await self._session.close()
            if isinstance(error, NotReady | aiohttp.ClientError | OSError | TimeoutError):
                raise self._unreachable(error) from None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer, retrying while the coordinator is busy.

        Raises:
            Unreachable: the coordinator does not answer in time.
            RollcastError: the error that the coordinator answers.
        """
        http = self._opened
        return await self._patiently(lambda: http.exchange(method, path, body, headers=http.authorization))

    def options(self, path: str) -> dict[str, Any]:
        """Return the arguments of a request that the caller sends over its own connection, with the invite's token."""
        return self._opened.stream_options(path)

    async def clock(self) -> tuple[float, float]:
        """Return the round trip, and the seconds by which this machine's clock is ahead of the coordinator's.

        Raises:
            Unreachable: the coordinator does not answer.
            MalformedMessage: its answer has no date.
        """

        async def once() -> tuple[float, float]:
            async with self._opened.session.get(**self._opened.stream_options("/health")) as response:
                wall_s, date = self._wall_clock(), response.headers.get("Date", "")
                await response.read()
            return wall_s, _unix_s(date)

        await self._patiently(once)  # the connection is open from here on
        started_s = time.monotonic()
        wall_s, theirs_s = await self._patiently(once)
        rtt_s = time.monotonic() - started_s
        # Date is truncated to whole seconds, so it is half a second early on average.
        return rtt_s, wall_s - rtt_s / 2 - (theirs_s + 0.5)

    async def control_hop(self) -> HopFailed | None:
        """Return the hop to the control port that fails; None: the port is reached, and belongs to this run."""
        return await failed_hop(self._invite.grpc_address, self._opened.trusting())

    async def download(self, progress: Progress = lambda _: None) -> float:
        """Return the download rate from the coordinator in bytes per second.

        Raises:
            Unreachable: the coordinator does not answer in time.
            RollcastError: the error that the coordinator answers.
        """
        return await _by_doubling(self._down, progress, "download")

    async def upload(self, progress: Progress = lambda _: None) -> float:
        """Return the upload rate to the coordinator in bytes per second.

        Raises:
            Unreachable: the coordinator does not answer in time.
            RollcastError: the error that the coordinator answers.
        """
        return await _by_doubling(self._up, progress, "upload")

    @property
    def _opened(self) -> PinnedHttp:
        assert self._http is not None, "use it as a context manager"
        return self._http

    async def _down(self, size: int) -> tuple[int, float]:
        async def once() -> tuple[int, float]:
            options = self._opened.stream_options(f"/api/v1/speed/down?bytes={size}")
            async with self._opened.session.get(**options, allow_redirects=False) as response:
                await check_answer(response)
                counted, started_s = 0, time.monotonic()
                async for piece in response.content.iter_any():
                    counted += len(piece)
                return counted, time.monotonic() - started_s

        return await self._patiently(once)

    async def _up(self, size: int) -> tuple[int, float]:
        async def once() -> tuple[int, float]:
            options = self._opened.stream_options("/api/v1/speed/up")
            options["headers"] = {**options["headers"], "Content-Length": str(size)}
            async with self._opened.session.post(**options, data=_noise(size), allow_redirects=False) as response:
                await check_answer(response)
                answer = await response.json()
            return int(answer["bytes"]), float(answer["seconds"])

        return await self._patiently(once)

    async def _patiently(self, once: Callable[[], Awaitable[ResultT]]) -> ResultT:
        gives_up_at_s = time.monotonic() + BUSY_DEADLINE_S
        for delay_s in backoff_delays_s(Random(), first_s=0.5, most_s=10.0):
            try:
                async with asyncio.timeout(ASK_DEADLINE_S + WANTED_S):
                    return await once()
            except NotReady as error:
                if time.monotonic() + delay_s >= gives_up_at_s:
                    raise self._unreachable(error) from None
            except aiohttp.ClientConnectorCertificateError as error:
                raise WrongKey(
                    f"the server at {self._invite.http_url} has no certificate of this run", cause=str(error)
                ) from None
            except (aiohttp.ClientError, OSError, TimeoutError, KeyError, ValueError) as error:
                raise self._unreachable(error) from None
            await asyncio.sleep(delay_s)
        raise AssertionError("delays never end")

    def _unreachable(self, error: BaseException) -> Unreachable:
        return Unreachable(
            f"the coordinator at {self._invite.http_url} cannot be reached",
            cause=str(error) or "no answer in time",
            fix="check this machine's network, and that no firewall blocks outgoing connections to that address",
        )


def mbit_s(bytes_per_second: float) -> str:
    """Return a rate for people, with three significant digits and never an exponent: "3,470 Mbit/s"."""
    rate = bytes_per_second * 8e-6
    return f"{float(f'{rate:.3g}'):,.0f} Mbit/s" if rate >= 100.0 else f"{rate:.3g} Mbit/s"


async def _by_doubling(once: Callable[[int], Awaitable[tuple[int, float]]], progress: Progress, what: str) -> float:
    """Return the rate of the last and largest of several transfers; the others only find out how large it may be."""
    size = FIRST_BYTES
    while True:
        moved, seconds = await once(size)
        rate = moved / max(seconds, 1e-4)
        progress(f"{what}: {mbit_s(rate)} over {moved / 1e6:.2g} MB")
        if seconds >= WANTED_S / 2 or size >= BYTES_MAX:
            return rate
        size = int(min(BYTES_MAX, size * min(_GROWTH_MAX, max(2.0, WANTED_S / max(seconds, 1e-3)))))


async def check_answer(response: aiohttp.ClientResponse) -> None:
    """Check that the request succeeded.

    Raises:
        NotReady: the coordinator is busy.
        RollcastError: the error that the coordinator answers.
    """
    if response.status == 200:
        return
    error = error_from_json(await read_bounded(response, HTTP_JOIN_BYTES_MAX))
    if response.status >= 500 or response.status == 429:
        raise NotReady(str(error.what if error else response.status))
    raise error or MalformedMessage(
        f"the coordinator answers a measurement with HTTP status {response.status}",
        fix="run the same release of Rollcast on both ends",
    )


async def _noise(size: int) -> AsyncIterator[bytes]:
    piece = os.urandom(min(size, _PIECE_BYTES))
    for _ in range(math.ceil(size / len(piece))):
        yield piece[: min(size, len(piece))]
        size -= len(piece)


def _unix_s(date: str) -> float:
    try:
        return parsedate_to_datetime(date).astimezone(UTC).timestamp()
    except (TypeError, ValueError):
        raise MalformedMessage("the coordinator's answer has no date") from None


async def control_port(door: InviteHttp) -> dict[str, Any]:
    """Return the fields of LinkMeasured about the control port. TLS is checked, but no client certificate is sent."""
    failed = await door.control_hop()
    return {"control_port": failed is None, "control_failed": failed}


async def measure_link(invite: Invite, progress: Progress = lambda _: None) -> LinkMeasured:
    """Measure everything about the link; a measurement that fails becomes a problem, and the others continue."""
    problems: list[RollcastError] = []
    values: dict[str, Any] = {}
    try:
        async with InviteHttp(invite) as door:
            progress(f"{invite.http_url} answers")
            values["rtt_s"], values["skew_s"] = await door.clock()
            values |= await control_port(door)
            for name, measure in (("download", door.download), ("upload", door.upload)):
                try:
                    values[f"{name}_bytes_per_s"] = await measure(progress)
                except RollcastError as error:
                    problems.append(error)
    except RollcastError as error:
        problems.append(error)
    return LinkMeasured(**values, problems=tuple(problems))
