"""`rollcast broadcast status`: show how the newest version spreads to the peers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
from cyclopts import App
from rich.console import Console, RenderableType
from rich.live import Live

from rollcast.cli.coordinator_api import Target, fetch
from rollcast.cli.live.broadcast_view import line, render
from rollcast.cli.options import THIS_RUN, Json, RunOptions
from rollcast.runtime.errors import MalformedMessage, RollcastError
from rollcast.runtime.process import stop_on_signals

app = App(name="broadcast")

WATCH_INTERVAL_S = 1.0
GONE_S = 30.0  # while watching, a coordinator that has not answered for this long counts as lost
_PATH = "/api/v1/broadcast"

Show = Callable[[dict[str, Any], str], None]  # a status, and the error if no newer one could be fetched, else empty


@app.command
def status(
    *,
    run: RunOptions = THIS_RUN,
    watch: bool = False,
    json_output: Json = False,
) -> int:
    """Show how much of the newest version each peer holds, the hops it takes, and what the broadcast is waiting for.

    Parameters
    ----------
    watch
        Refresh every second until Ctrl-C.
    json_output
        Print one JSON object; with --watch one line per second.
    """
    asyncio.run(_status(Target.of(run), watch=watch, json_output=json_output))
    return 0


async def _status(target: Target, *, watch: bool, json_output: bool) -> None:
    console = Console()
    async with aiohttp.ClientSession(trust_env=False) as session:
        if not watch:
            found = await fetch(session, target, _PATH)
            if json_output:
                print(json.dumps(found, indent=2), flush=True)
            else:
                console.print(_screen(console, found))
        elif json_output or not console.is_terminal:
            await follow(session, target, _print_json if json_output else _print_line)
        else:
            with Live(console=console, auto_refresh=False) as live:
                await follow(
                    session, target, lambda found, lost: live.update(_screen(console, found, lost), refresh=True)
                )


def _print_json(found: dict[str, Any], lost: str) -> None:
    if not lost:
        print(json.dumps(found), flush=True)


def _print_line(found: dict[str, Any], lost: str) -> None:
    print(lost or line(found), flush=True)


def _screen(console: Console, found: dict[str, Any], lost: str = "") -> RenderableType:
    """Return the screen, cut to the terminal's height; in full if the output is not a terminal.

    Raises:
        MalformedMessage: the answer is not that of a coordinator of this version.
    """
    rows = console.height if console.is_terminal else None
    try:
        return render(found, width=console.width, rows=rows, notice=lost)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedMessage(
            "the answer is not the status of a broadcast",
            cause=repr(error),
            fix="check the address, or upgrade Rollcast",
        ) from None


async def follow(
    session: aiohttp.ClientSession, target: Target, show: Show, *, stop: asyncio.Event | None = None
) -> None:
    """Show a status every second until a signal arrives; keep trying while the coordinator does not answer.

    Raises:
        RollcastError: the first request failed, or every request for GONE_S seconds.
    """
    loop = asyncio.get_running_loop()
    stop = stop or stop_on_signals(loop)
    found: dict[str, Any] | None = None
    answered_at = loop.time()
    while not stop.is_set():
        try:
            found, lost = await fetch(session, target, _PATH), ""
            answered_at = loop.time()
        except RollcastError as error:
            if found is None or loop.time() - answered_at > GONE_S:
                raise
            lost = f"{error.what} for {loop.time() - answered_at:.0f} s; these are the last figures"
        show(found, lost)
        try:
            await asyncio.wait_for(stop.wait(), WATCH_INTERVAL_S)
        except TimeoutError:
            continue
