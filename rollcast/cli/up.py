"""`rollcast up`: one run on this machine, watched live, summed up at the end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from rollcast.cli.files import load
from rollcast.cli.fleet import ESSENTIAL, Endpoints, Fleet
from rollcast.cli.options import Json, Settings
from rollcast.cli.up_config import UpConfig
from rollcast.cli.view import LiveView, PlainView, summary_table
from rollcast.runtime.config import dump_json
from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.process import EXIT_INTERRUPTED, stop_on_signals
from rollcast.runtime.run_folder import RunFolder, run_folder_error

_POLL_S = 0.5
_FINISH_TIMEOUT_S = 60.0


def up(
    config: Path,
    /,
    *,
    setting: Settings = (),
    dry_run: bool = False,
    plain: bool = False,
    json_output: Json = False,
) -> int:
    """Run coordinator, learner, origin and peers on this machine until the configured step.

    Ctrl-C stops everything in order; a second one kills.

    Parameters
    ----------
    config: TOML file with sections coordinator, learner, origin and peer.
    setting: section.key=value on top of the file, for example coordinator.run.steps=50; may be repeated.
    dry_run: check the configuration, print it resolved, and stop.
    plain: a line now and then instead of the live view (chosen by itself when the output is no terminal).
    json_output: print the summary as JSON on stdout, progress on stderr.
    """
    parsed = load(config, "up", setting)
    assert isinstance(parsed, UpConfig)
    if dry_run:
        print(dump_json(parsed))
        return 0
    console = Console(stderr=json_output)
    view = PlainView(console) if plain or json_output or not console.is_terminal else LiveView(console)
    fleet = Fleet(parsed, new_run_folder(parsed))
    try:
        status = asyncio.run(_run(fleet, view, console))
    finally:
        fleet.kill_all()  # whatever happened: nothing stays behind
    _report(fleet.folder, console, json_output=json_output)
    return status


def new_run_folder(config: UpConfig) -> RunFolder:
    """A fresh folder under runs_folder, with ``latest`` pointing to it.

    Raises:
        RunFolderError: it cannot be made.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    root = (config.runs_folder / f"{config.coordinator.run.name}-{stamp}-{os.getpid()}").absolute()
    folder = RunFolder(root).prepare()
    link = root.parent / "latest"
    temporary = root.parent / f".latest-{os.getpid()}"
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(root.name)
        temporary.replace(link)
    except OSError as error:
        raise run_folder_error(link, error) from None
    return folder


async def _run(fleet: Fleet, view: LiveView | PlainView, console: Console) -> int:
    stop = stop_on_signals(asyncio.get_running_loop(), on_second=fleet.kill_all)
    fleet.prepare()
    console.print(f"run folder  {fleet.folder.root}", soft_wrap=True)
    try:
        endpoints = await fleet.start()
        console.print(f"dashboard   {endpoints.http_url}", soft_wrap=True)
        finished = await _watch(fleet, endpoints, view, stop)
    finally:
        view.close()
        await fleet.stop()
    return 0 if finished else EXIT_INTERRUPTED


async def _watch(fleet: Fleet, endpoints: Endpoints, view: LiveView | PlainView, stop: asyncio.Event) -> bool:
    """Show the run until it is finished (True) or we are asked to stop (False)."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while not stop.is_set():
            fleet.check()
            ended = fleet.ended()
            if "coordinator" in ended and "learner" in ended:
                return await _all_end(fleet)
            status = await _fetch_status(session, endpoints)
            if status is not None:
                view.update(status, ended)
            try:
                await asyncio.wait_for(stop.wait(), _POLL_S)
            except TimeoutError:
                continue
    return False


async def _all_end(fleet: Fleet) -> bool:
    left = await fleet.wait(list(fleet.processes), _FINISH_TIMEOUT_S)
    if any(name in ESSENTIAL for name in left):
        raise ProcessFailed(f"{', '.join(left)} did not end with the run", fix=f"see {fleet.folder.logs}")
    return True


async def _fetch_status(session: aiohttp.ClientSession, endpoints: Endpoints) -> dict[str, Any] | None:
    try:
        async with session.get(f"{endpoints.http_url}/api/v1/status") as response:
            return dict(await response.json()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None  # busy or ending; fleet.check() tells which


def _report(folder: RunFolder, console: Console, *, json_output: bool) -> None:
    if not folder.summary.exists():
        return
    summary = json.loads(folder.summary.read_text())
    if json_output:
        json.dump(summary, sys.stdout, indent=2)
        print()
    else:
        console.print(summary_table(summary))
        console.print(f"\nsummary      {folder.summary}\nreward plot  {folder.reward_plot}", soft_wrap=True)
