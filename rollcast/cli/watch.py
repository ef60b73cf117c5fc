"""Follow a fleet over the coordinator's API until its run is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from rollcast.cli.coordinator_api import Target, fetch
from rollcast.cli.processes import Endpoints, Fleet
from rollcast.runtime.errors import ProcessFailed, RollcastError
from rollcast.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    import aiohttp

#: Called with the coordinator's status, which has the run's `alerts`, and the exit statuses of ended processes.
OnStatus = Callable[[Mapping[str, Any], Mapping[str, int]], None]

_POLL_S = 0.5
_ALERTS_EVERY_S = 5.0
_ALERT_SHOWN_S = 10.0  # it has lasted; shorter ones pass by themselves
_FINISH_TIMEOUT_S = 60.0


async def _nothing() -> None:
    pass


async def run_fleet(
    fleet: Fleet,
    on_start: Callable[[Endpoints], None],
    on_status: OnStatus,
    stop: asyncio.Event,
    at_end: Callable[[], Awaitable[None]] = _nothing,
) -> bool:
    """Start the fleet, follow it and stop it. Return True if the run finished, False if it was stopped before.

    ``at_end`` is awaited after a finished run. If the fleet has stay_s, the coordinator serves the dashboard meanwhile.

    Raises:
        ProcessFailed: the coordinator, the learner or the origin has failed.
        WaitTimedOut: the coordinator did not listen in time.
    """
    fleet.prepare()
    try:
        endpoints = await fleet.start(stop)
        if endpoints is None:
            return False
        on_start(endpoints)
        finished = await _follow(fleet, on_status, stop)
        if finished:
            await at_end()
        return finished
    finally:
        await fleet.stop()


async def _follow(fleet: Fleet, on_status: OnStatus, stop: asyncio.Event) -> bool:
    import aiohttp  # takes a while, and `rollcast up --dry-run` does not need it

    alerts: list[Mapping[str, Any]] = []
    clock = asyncio.get_running_loop().time
    alerts_at = clock()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while not stop.is_set():
            fleet.check()
            ended = fleet.ended()
            if "learner" in ended and ("coordinator" in ended or fleet.stays()):
                await _origin_ends(fleet)
                return True
            status = await _fetch(session, fleet.folder, "/api/v1/status")
            if clock() >= alerts_at:
                alerts_at = clock() + _ALERTS_EVERY_S
                alerts = lasting_alerts(await _fetch(session, fleet.folder, "/api/v1/overview"))
            if status is not None:
                on_status(status | {"alerts": alerts}, ended)
            try:
                await asyncio.wait_for(stop.wait(), _POLL_S)
            except TimeoutError:
                continue
    return False


async def _origin_ends(fleet: Fleet) -> None:
    """Wait until the processes end after the run; peers that do not are stopped with the fleet."""
    for name in await fleet.wait(["origin"], _FINISH_TIMEOUT_S):
        raise ProcessFailed(f"the {name} did not stop when the run ended", fix=f"see its log {fleet.log_path(name)}")
    members = [name for name in fleet.processes if name != "coordinator" or not fleet.stays()]
    await fleet.wait(members, fleet.config.stop_timeout_s)


def lasting_alerts(overview: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the alerts of /api/v1/overview that have lasted; none where there was no answer."""
    return [one for one in overview["alerts"] if one["since_s"] >= _ALERT_SHOWN_S] if overview is not None else []


async def _fetch(session: aiohttp.ClientSession, folder: RunFolder, path: str) -> dict[str, Any] | None:
    try:
        return await fetch(session, Target(folder.root), path)
    except RollcastError:
        return None  # the coordinator is busy or ending; fleet.check() finds out which
