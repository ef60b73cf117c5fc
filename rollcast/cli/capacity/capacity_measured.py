"""What a running coordinator, or the records of a run, tell the planner."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from capacity.inputs.live_pool import LiveRun, live_run
from rollcast.cli.coordinator_api import Target, ask
from rollcast.runtime.errors import MalformedMessage


def asked_live(url: str, ca_file: Path | None) -> LiveRun:
    """Ask a coordinator over its HTTP API.

    Raises:
        RollcastError: see coordinator_api; MalformedMessage: it is no coordinator of this version.
    """
    status, broadcast = asyncio.run(_answers(Target(Path("runs/latest"), url, ca_file)))
    try:
        return live_run(status, broadcast)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedMessage(
            "the answer is not a run's status", cause=repr(error), fix="check the address, and upgrade"
        ) from None


def recorded(run_folder: Path) -> LiveRun:
    """Calibrate the records of a run.

    Raises:
        RunFolderError: it has no records, or too few.
    """
    from capacity.reports.calibrated_pool import calibrated_run
    from rollcast.cli.capacity.calibrate import calibration_of

    return calibrated_run(calibration_of(run_folder), run_folder.name)


async def _answers(target: Target) -> tuple[dict[str, Any], dict[str, Any]]:
    async with aiohttp.ClientSession(trust_env=False) as session:
        return await ask(session, target, "/api/v1/status"), await ask(session, target, "/api/v1/broadcast")
