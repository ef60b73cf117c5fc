"""End a peer process in order: upload finished rollouts, return the other leases, close the session and the links."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import structlog

from peer.worker.core.events import Event, FinishRequested, StopRequested
from rollcast.runtime.errors import WaitTimedOut
from rollcast.runtime.waits import deadline

log = structlog.get_logger()

ResultT = TypeVar("ResultT")

DRAIN_TIMEOUT_S = 1.2  # of the 2 s that a stopping peer has; the worker's core usually ends its drain earlier
RELAY_CLOSE_TIMEOUT_S = 0.4  # for links to close


class EndingWorker(Protocol):
    """See peer.worker.worker.Worker."""

    def handle(self, event: Event) -> None: ...


class EndingSession(Protocol):
    """See peer.session.session.Session."""

    async def close(self, reason: str) -> None: ...


class EndingRelay(Protocol):
    """See peer.relay.relay.Relay."""

    async def close(self) -> None: ...


async def finish(worker: EndingWorker, tasks: Mapping[str, asyncio.Task[Any]], reason: str, seconds: float) -> None:
    """Let running rollouts finish; return once they have, after so many seconds, or when the process must end.

    Args:
        tasks: tasks by name, of which "worker" ends when it holds no lease, and "signal" has ended already.
    """
    log.info("peer finishes its work", reason=reason, most_s=seconds)
    worker.handle(FinishRequested(reason))
    waited = [task for name, task in tasks.items() if name != "signal"]
    await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


async def end(
    reason: str,
    tasks: Mapping[str, asyncio.Task[Any]],
    *,
    worker: EndingWorker | None,
    session: EndingSession,
    relay: EndingRelay,
) -> None:
    """Upload finished rollouts, return the other leases, close the session and the relay; within 2 s."""
    log.info("peer stops", reason=reason)
    if worker is not None and not tasks["worker"].done():
        worker.handle(StopRequested(reason))
        await asyncio.wait((tasks["worker"],), timeout=DRAIN_TIMEOUT_S)
    if not tasks["session"].done():
        await session.close(reason)
    with contextlib.suppress(WaitTimedOut):
        async with deadline(RELAY_CLOSE_TIMEOUT_S, "chunk links to close"):
            await relay.close()


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """Return the result of ``work``, or cancel it and return None once ``stop`` is set."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
