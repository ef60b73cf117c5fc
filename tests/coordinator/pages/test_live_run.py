"""Look at every page of a real run on this machine, the dashboard's and a donor's, at three widths in both themes.

Nothing may be cut off, wider than the window or hard to read for assistive technology. ``pytest -m slow`` starts a run
of configs/local.toml; ROLLCAST_LIVE_RUN names the folder of one that is under way instead, and ROLLCAST_SCREENSHOTS a
folder for a picture of each page.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from rollcast.runtime.errors import DaemonAway, WaitTimedOut
from rollcast.wire.donor.control_socket import request
from tests.browsing import Tab, opened

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

ROOT = Path(__file__).parents[3]
STEPS_FIRST = 30  # learner steps before the pages are looked at: charts, alerts and reputations have content by then
START_S = 900.0
SETTLE_MS = 1_500  # by then a page has an update
DASHBOARD = ("overview", "workers", "broadcast", "run", "rollouts", "capacity", "events", "events?tab=audit", "invites")
DASHBOARD += ("settings",)
DONOR = ("now", "rollouts", "limits", "log", "machine")

# Visible text that is not shown in full: by its own hidden overflow, or by that of an element around it.
CUT_OFF = """[...document.querySelectorAll('body *')].filter((one) => {
    if (one.closest('.hidden, [aria-hidden=true], .vt-unseen, svg, canvas')) return false;
    if (one.getBoundingClientRect().width < 2) return false;
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) return false;
    for (let box = one; box && box !== document.body; box = box.parentElement) {
      const style = getComputedStyle(box), across = box === one ? one.scrollWidth : 0;
      const clips = (way) => way === 'hidden' || way === 'clip';
      if (box === one && clips(style.overflowX) && across > one.clientWidth + 1) return true;
      if (box === one && clips(style.overflowY) && one.scrollHeight > one.clientHeight + 2) return true;
      const below = one.getBoundingClientRect().bottom - box.getBoundingClientRect().bottom;
      if (box.matches('.vt-body .vt-row') && below > 1.5) return true;
      if (box !== one && clips(style.overflowX)) {
        const inner = one.getBoundingClientRect(), outer = box.getBoundingClientRect();
        if (inner.right > outer.right + 1.5 || inner.left < outer.left - 1.5) return true;
      }
      if (box !== one && ['auto', 'scroll'].includes(style.overflowX)) return false;
    }
    return false;
  }).map((one) => `${one.tagName.toLowerCase()}.${one.className}: ${one.textContent.trim().slice(0, 80)}`)"""


# Choices whose text is wider than their field.
CUT_OFF_CHOICES = """[...document.querySelectorAll('select')].filter((one) => {
    const style = getComputedStyle(one), pen = document.createElement('canvas').getContext('2d');
    pen.font = style.font;
    const room = one.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return room > 0 && pen.measureText(one.selectedOptions[0]?.text || '').width > room + 1;
  }).map((one) => `select: ${one.selectedOptions[0].text}`)"""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Addresses of a run's pages, signed in."""

    dashboard: str
    donor: str


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveRun]:
    if given := os.environ.get("ROLLCAST_LIVE_RUN"):
        yield await _pages_of(Path(given))
        return
    folder = tmp_path_factory.mktemp("live")
    async with _started(folder) as process:
        async with asyncio.timeout(START_S):
            while not (await _step_of(folder / "runs" / "latest")) >= STEPS_FIRST:
                assert process.returncode is None, "the run ended before its pages were looked at"
                await asyncio.sleep(1.0)
        yield await _pages_of(folder / "runs" / "latest")


@asynccontextmanager
async def _started(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run configs/local.toml until the end of the block."""
    settings = ("--set", "coordinator.run.steps=100000", "--set", "coordinator.serve.http_port=0")
    arguments = ("-m", "rollcast.cli.main", "up", str(ROOT / "configs" / "local.toml"), "--plain", *settings)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, env=environment, stdout=DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.wait()


def _address(folder: Path) -> tuple[str, str]:
    """Return the address of a run's HTTP server and the operator's key."""
    endpoints = json.loads((folder / "endpoints.json").read_text())
    return endpoints["http_url"], (folder / "secrets" / "operator.key").read_text().strip()


async def _step_of(folder: Path) -> int:
    try:
        url, key = _address(folder)
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/api/v1/overview") as answer:
            return int((await answer.json())["step"])
    except (OSError, aiohttp.ClientError, KeyError, ValueError):  # the run is starting
        return -1


async def _pages_of(folder: Path) -> LiveRun:
    url, key = _address(folder)
    donor = await asyncio.to_thread(_donor_page, folder / "peers" / "peer-1")
    return LiveRun(f"{url}/#token={key}", donor)


def _donor_page(state_folder: Path) -> str:
    try:
        return str(request(state_folder, {"do": "page"})["url"])
    except (DaemonAway, WaitTimedOut) as away:
        raise AssertionError(f"the peer in {state_folder} does not answer") from away


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 1024, 390])
async def test_nothing_is_cut_off(browser: Any, run: LiveRun, width: int, scheme: str) -> None:
    found: list[str] = []
    for whose, address, pages in (("run", run.dashboard, DASHBOARD), ("donor", run.donor, DONOR)):
        async with opened(browser, address, width=width, scheme=scheme) as tab:
            await tab.page.locator("main h1").first.wait_for()
            for name in pages:
                found += [f"{name}: {one}" for one in await _findings(tab, name, f"{whose}-{width}-{scheme}")]
            found += tab.problems
    assert not found, "\n".join(["", *dict.fromkeys(found)])


async def _findings(tab: Tab, page: str, look: str) -> list[str]:
    await tab.page.evaluate("page => { location.hash = '#/' + page; }", page)
    await tab.page.wait_for_timeout(SETTLE_MS)
    if folder := os.environ.get("ROLLCAST_SCREENSHOTS"):
        name = page.replace("?", "-").replace("=", "-")
        await tab.page.screenshot(path=str(Path(folder) / f"{name}-{look}.png"), full_page=True)
    wide = await tab.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    cut_off = [f"cut off: {one}" for find in (CUT_OFF, CUT_OFF_CHOICES) for one in await tab.page.evaluate(find)]
    return [*(["wider than the window"] if wide else []), *cut_off, *await tab.accessibility_problems()]
