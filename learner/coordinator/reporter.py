"""Report to the coordinator what the learner is doing: on every change, and regularly while nothing changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType

import structlog

from learner.coordinator.profile_orders import ProfileOrders
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.waits import cancel_and_wait
from rollcast.wire.proto import rollcast_pb2 as pb

BETWEEN_CHANGES_S = 0.5  # changes within this time are merged
REPEAT_S = 5.0  # the same status is sent again, so that a coordinator that restarted knows it

Send = Callable[[str, str, Mapping[str, float], pb.ProfileReport | None], Awaitable[pb.ProfileOrder | None]]

_log = structlog.get_logger()


class StatusReporter:
    """Send the newest status from a task of its own, so that training does not wait for it.

    ``update`` may be called from any thread. Values stay part of the status, because sending one twice does no harm
    while losing one would.

    Args:
        send: coroutine function (phase, detail, values, profile) that sends a status, and returns the profile that
            the coordinator waits for.
    """

    def __init__(self, send: Send) -> None:
        self.profiles = ProfileOrders()
        self._send = send
        self._lock = threading.Lock()
        self._phase = "starting"
        self._detail = ""
        self._values: dict[str, float] = {}
        self._notes: dict[str, float] = {}
        self._sending = asyncio.Lock()  # one at a time, so that an older status never overtakes a newer one
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def values(self) -> dict[str, float]:
        """Return all values reported so far, without the notes."""
        with self._lock:
            return dict(self._values)

    def update(self, phase: str, detail: str = "", **values: float) -> None:
        """Change the phase, its description and values of the status; the next report sends them."""
        with self._lock:
            if phase != self._phase:
                _log.info("phase", phase=phase, detail=detail, **values)
            self._phase, self._detail = phase, detail
            self._values.update(values)
        self._loop.call_soon_threadsafe(self._changed.set)

    def add(self, **values: float) -> None:
        """Add values to the status, whose phase stays as it is; the next report sends them."""
        with self._lock:
            self._values.update(values)
        self._loop.call_soon_threadsafe(self._changed.set)

    def note(self, **values: float) -> None:
        """Add metrics of this life only, which go with the next status."""
        with self._lock:
            self._notes.update(values)

    async def flush(self) -> None:
        """Send the status now, and return once it has arrived.

        Raises:
            RollcastError: the status could not be sent.
        """
        async with self._sending:
            with self._lock:
                phase, detail, values = self._phase, self._detail, self._values | self._notes
            profile = self.profiles.report
            order = await self._send(phase, detail, values, profile)
            if self.profiles.answered(order, sent=profile):
                self._changed.set()

    async def __aenter__(self) -> StatusReporter:
        self._task = asyncio.create_task(self._run(), name="status reporter")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self.flush()
            except RollcastError as error:  # the calls that matter fail by themselves; a lost status does not
                _log.warning("status not reported", error=error.what)
            except Exception:  # a bug in one status must not end the reports of all later ones
                _log.exception("status not reported")
            await asyncio.sleep(BETWEEN_CHANGES_S)
            try:
                async with asyncio.timeout(REPEAT_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
