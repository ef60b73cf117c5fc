"""Measure a large fleet's dashboard: the first paint, the browser's cost per update, and the server's cost of viewers.

The workload is a simulated fleet whose workers send a heartbeat every second, served by the real HTTP side in a process
of its own (bench/people/dashboard_fleet.py). Viewers are event streams as the pages open them, compressed, and read as
they arrive: of every twenty, 8 of Overview, 6 of Workers, 2 each of Broadcast and Run, 1 each of Capacity and Events.

first_paint_ms: first contentful paint of Workers in a new browser without a cache, median. first_data_ms: time until
its first row is shown, median. update_ms: processor time of the main thread in all tasks per one-second update, on the
page where it is largest. server_core_share: processor time that viewers add, measured by alternating without and with
them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import Any

import aiohttp
import psutil

from bench.machine import Outcome, alone
from coordinator.api.wiring import PAGES
from rollcast.runtime.waits import deadline
from rollcast.web.assets import STATIC, Assets

#: Measured page -> the topic that it subscribes to besides ``overview``, which the head line uses.
TOPICS = {
    "overview": "history",
    "workers": "workers",
    "broadcast": "broadcast",
    "run": "steps",
    "capacity": "capacity",
    "events": "events",
}
_VIEWERS = ("overview",) * 8 + ("workers",) * 6 + ("broadcast", "run") * 2 + ("capacity", "events")
_START_S = 180.0
_SETTLE_S = 5.0
_PAINTS = 5
_BROWSER_KEYS = ("first_paint_ms", "first_data_ms", "update_ms", "long_tasks_per_min")
_ROW = ".vt-body [role=row]"
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements without viewers, and as many with them")
    parser.add_argument("--warm-up", type=float, default=120.0, help="virtual seconds that the fleet runs first")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure the figures in milliseconds, shares of a core, and KB of 1000 bytes."""
    with alone():
        figures = asyncio.run(_measure(arguments))
    figures["gzip_kb"] = Assets.of({"/": PAGES, "/web/": STATIC}).gzip_bytes / 1e3
    settings = {name: getattr(arguments, name) for name in ("workers", "viewers", "seconds", "rounds")}
    return Outcome(settings, figures, tuple(key for key in _BROWSER_KEYS if key not in figures))


async def _measure(arguments: argparse.Namespace) -> dict[str, float]:
    async with _fleet(arguments) as (url, process):
        figures = await _server_figures(url, process, arguments)
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
        if chromium is None:
            print("no Chromium found: browser figures are not measured", file=sys.stderr)
            return figures
        return figures | await _browser_figures(url, chromium, arguments.seconds)


@asynccontextmanager
async def _fleet(arguments: argparse.Namespace) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Run the fleet in a process of its own; yields its address and the process."""
    program = (sys.executable, "-m", "bench.people.dashboard_fleet")
    options = ("--workers", str(arguments.workers), "--port", "0", "--warm-up", str(arguments.warm_up))
    child = await asyncio.create_subprocess_exec(*program, *options, stdout=asyncio.subprocess.PIPE)
    try:
        assert child.stdout is not None
        async with deadline(_START_S, "the fleet to print its address"):
            line = await child.stdout.readline()
        if not line:
            raise RuntimeError("the fleet did not start: see its messages above")
        url = line.decode().partition("/#")[0]
        await asyncio.sleep(_SETTLE_S)
        yield url, psutil.Process(child.pid)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


# ---------------------------------------------------------------- the server


async def _server_figures(url: str, process: psutil.Process, arguments: argparse.Namespace) -> dict[str, float]:
    """Measure the server alternately without and with viewers; the difference is the viewers' cost."""
    shares: dict[bool, list[float]] = {False: [], True: []}
    received = 0
    for number in range(2 * arguments.rounds):
        watched = number % 2 == 1
        async with _viewing(url, arguments.viewers if watched else 0) as counts:
            await asyncio.sleep(_SETTLE_S)
            before, sent_before = _busy_s(process), sum(counts)
            await asyncio.sleep(arguments.seconds)
            shares[watched].append((_busy_s(process) - before) / arguments.seconds)
            received += sum(counts) - sent_before
    watched_s = arguments.rounds * arguments.seconds * max(1, arguments.viewers)
    return {
        "server_core_share": max(0.0, median(shares[True]) - median(shares[False])),
        "fleet_core_share": median(shares[False]),
        "viewer_kb_per_s": received / watched_s / 1e3,
    }


def _busy_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@asynccontextmanager
async def _viewing(url: str, viewers: int) -> AsyncIterator[list[int]]:
    """Read ``viewers`` streams; yields the bytes received by each viewer, compressed as on the wire."""
    counts = [0] * viewers
    # No decompression: the viewers' own work must not slow down the server that is measured.
    async with aiohttp.ClientSession(auto_decompress=False, read_bufsize=1 << 20) as session, AsyncExitStack() as stack:
        for number in range(viewers):
            page = _VIEWERS[number % len(_VIEWERS)]
            task = asyncio.create_task(
                _read(session, f"{url}/api/v1/stream?topics=overview,{TOPICS[page]}", counts, number)
            )
            stack.callback(task.cancel)
        yield counts


async def _read(session: aiohttp.ClientSession, url: str, counts: list[int], number: int) -> None:
    async with session.get(url, headers={"Accept-Encoding": "gzip"}, timeout=aiohttp.ClientTimeout()) as response:
        response.raise_for_status()
        async for part in response.content.iter_any():
            counts[number] += len(part)


# ---------------------------------------------------------------- the browser


async def _browser_figures(url: str, chromium: str, seconds: float) -> dict[str, float]:
    from playwright.async_api import async_playwright  # an optional dependency that only this function needs

    async with async_playwright() as started:
        browser = await started.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        paints = [await _first_paint(browser, url) for _ in range(_PAINTS)]
        updates = {page: await _updates(browser, f"{url}/#/{page}", seconds) for page in TOPICS}
        await browser.close()
    for page, (busy_ms, long_tasks) in updates.items():
        print(f"{page}: {busy_ms:.1f} ms an update, {long_tasks:.0f} long tasks a minute", file=sys.stderr)
    return {
        "first_paint_ms": median(paint for paint, _ in paints),
        "first_data_ms": median(data for _, data in paints),
        "update_ms": max(busy_ms for busy_ms, _ in updates.values()),
        "long_tasks_per_min": max(long_tasks for _, long_tasks in updates.values()),
    }


async def _first_paint(browser: Any, url: str) -> tuple[float, float]:
    """Return the milliseconds from navigation to the first contentful paint, and to the first worker's row."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    await page.goto(f"{url}/#/workers", wait_until="commit")
    await page.wait_for_selector(_ROW)
    data_ms: float = await page.evaluate("performance.now()")
    paint_ms: float = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    await context.close()
    return paint_ms, data_ms


async def _updates(browser: Any, url: str, seconds: float) -> tuple[float, float]:
    """Return the main thread's milliseconds per update, and the number of tasks of 50 ms or more per minute."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    await page.goto(url)
    await page.evaluate(
        "window.longTasks = 0;"
        "const count = (list) => { window.longTasks += list.getEntries().length; };"
        "new PerformanceObserver(count).observe({entryTypes: ['longtask']});"
    )
    await page.wait_for_timeout(3000)  # by then the page has loaded and rendered its data
    session = await context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})  # counts this thread's time only
    before, long_before = await _task_s(session), await page.evaluate("window.longTasks")
    await page.wait_for_timeout(seconds * 1000.0)
    busy_s, long_tasks = await _task_s(session) - before, await page.evaluate("window.longTasks") - long_before
    await context.close()
    return 1000.0 * busy_s / seconds, 60.0 * long_tasks / seconds


async def _task_s(session: Any) -> float:
    """Return the processor seconds of the main thread's tasks since the page was opened."""
    metrics: Sequence[dict[str, Any]] = (await session.send("Performance.getMetrics"))["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))
