"""Following a fleet until its run is over, over the coordinator's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from rollcast.cli.coordinator_api import Target, ask
from rollcast.cli.processes import Endpoints, Fleet
from rollcast.runtime.errors import ProcessFailed, RollcastError
from rollcast.runtime.run_folder import RunFolder

#: Called with the coordinator's status and the exit statuses of the processes that have ended.
OnStatus = Callable[[Mapping[str, Any], Mapping[str, int]], None]

_POLL_S = 0.5
_FINISH_TIMEOUT_S = 60.0


async def run_fleet(
    fleet: Fleet, on_start: Callable[[Endpoints], None], on_status: OnStatus, stop: asyncio.Event
) -> bool:
    """Start the fleet, follow it, and stop what is left; True when the run was finished, False when stopped.

    Raises:
        ProcessFailed: a process that the run cannot do without has failed.
        WaitTimedOut: the coordinator did not listen in time.
    """
    fleet.prepare()
    try:
        endpoints = await fleet.start(stop)
        if endpoints is None:
            return False
        on_start(endpoints)
        return await _follow(fleet, on_status, stop)
    finally:
        await fleet.stop()


async def _follow(fleet: Fleet, on_status: OnStatus, stop: asyncio.Event) -> bool:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while not stop.is_set():
            fleet.check()
            ended = fleet.ended()
            if "coordinator" in ended and "learner" in ended:
                await _origin_ends(fleet)
                return True
            status = await _fetch_status(session, fleet.folder)
            if status is not None:
                on_status(status, ended)
            try:
                await asyncio.wait_for(stop.wait(), _POLL_S)
            except TimeoutError:
                continue
    return False


async def _origin_ends(fleet: Fleet) -> None:
    """The run is over: all have been told to stop; peers that do not are stopped with the fleet."""
    for name in await fleet.wait(["origin"], _FINISH_TIMEOUT_S):
        raise ProcessFailed(f"the {name} did not end with the run", fix=f"see {fleet.log_path(name)}")
    await fleet.wait(list(fleet.processes), fleet.config.stop_timeout_s)


async def _fetch_status(session: aiohttp.ClientSession, folder: RunFolder) -> dict[str, Any] | None:
    try:
        return await ask(session, Target(folder.root), "/api/v1/status")
    except RollcastError:
        return None  # busy or ending; fleet.check() tells which
