"""The page in a real browser: it shows the figures, follows them, and says when it lost the coordinator."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from itertools import product
from typing import Any, cast

import pytest

from coordinator.http.server import HttpApi, HttpServer, HttpViews
from coordinator.join import JoinDesk
from tests.coordinator.sample_status import sample_broadcast, sample_status
from tests.coordinator.http.test_server import FakeDesk

pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    if not CHROMIUM:
        pytest.skip("the page was not tested: no Chromium here (apt-get install chromium, or set CHROMIUM to its path)")
    playwright = pytest.importorskip("playwright.async_api", reason="the page was not tested: no playwright here")
    async with playwright.async_playwright() as started:
        chromium = await started.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield chromium
        await chromium.close()


class Screen:
    """A served status that the test changes, and the page that shows it."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = sample_status()
        self.problems: list[str] = []

    async def serve(self, port: int = 0) -> None:
        api = HttpApi(
            HttpViews(lambda: self.status, sample_broadcast, str, bytes), cast(JoinDesk, FakeDesk()), hosts=None
        )
        self.server = await HttpServer.start(api, host="127.0.0.1", port=port, tls=None)

    async def open(self, browser: Any, *, width: int = 1440, scheme: str = "light") -> Any:
        context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = await context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self._check_origin(request.url))
        await page.goto(f"http://127.0.0.1:{self.server.port}/", wait_until="domcontentloaded")
        await shows(page, "connection", "live")
        return page

    def _check_origin(self, url: str) -> None:
        if not url.startswith(f"http://127.0.0.1:{self.server.port}/"):
            self.problems.append(f"asked {url}")


async def shows(page: Any, element_id: str, text: str) -> None:
    """Wait until an element's text has this in it; fails with what it has instead."""
    element, shown = page.locator(f"#{element_id}"), ""
    for _ in range(150):
        shown = await element.text_content()
        if text in shown:
            return
        await page.wait_for_timeout(100)
    raise AssertionError(f"#{element_id} shows {shown!r}, not {text!r}")


async def test_the_figures_are_shown_and_followed(browser: Any) -> None:
    screen = Screen()
    await screen.serve()
    page = await screen.open(browser)
    for element_id, text in {
        "phase": "training",
        "waiting": "3 of 32 groups",
        "next": "step 88 is trained",
        "reward-now": "0.864",
        "reward-held-out": "0.34 → …",
        "t-bcast": "142 ms",
        "t-bcast-note": "391 ms",
        "tokens": "12.5k",
        "utilisation": "71 %",
        "peer-bytes": "78 %",
        "staleness-note": "oldest trained 4, limit 4",
        "reasons": "lease expired 96",
        "peers": "silent for 5.2 s",
    }.items():
        await shows(page, element_id, text)
    assert await page.locator("#peers tr").count() == 4
    assert await page.locator("#staleness-chart rect").count() == 5
    assert await page.locator("#reward-chart path").count() == 2
    screen.status = sample_status(step=200, phase="finished", reward_after=0.93, peers=[])
    await shows(page, "phase", "finished")
    await shows(page, "reward-held-out", "0.34 → 0.93")
    assert await page.locator("#no-peers").is_visible()
    await screen.server.stop()
    await shows(page, "notice", "The run has finished")
    assert not [problem for problem in screen.problems if "ERR_" not in problem]


async def test_a_lost_coordinator_is_said_and_found_again(browser: Any) -> None:
    screen = Screen()
    await screen.serve()
    page = await screen.open(browser)
    port = screen.server.port
    await screen.server.stop()
    await shows(page, "notice", "Trying to reconnect")
    await screen.serve(port)
    await shows(page, "connection", "live")
    assert not await page.locator("#notice").is_visible()
    await screen.server.stop()


GROUNDS = {"light": "rgb(245, 246, 248)", "dark": "rgb(15, 18, 22)"}
CUT_OFF = "[...document.querySelectorAll('.figure, dd, td')].filter(e => e.scrollWidth > e.clientWidth + 1).length"


async def test_nothing_is_cut_off_in_any_width_and_scheme(browser: Any) -> None:
    screen = Screen()
    await screen.serve()
    for width, scheme in product((390, 800, 1440), GROUNDS):
        page = await screen.open(browser, width=width, scheme=scheme)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, scheme)
        assert await page.evaluate(CUT_OFF) == 0, (width, scheme)
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == GROUNDS[scheme]
        await page.context.close()
    await screen.server.stop()
    assert not screen.problems


async def test_hostile_names_stay_text(browser: Any) -> None:
    screen = Screen()
    hostile = "<img src=x onerror=alert(1)>"
    peers = [{**peer, "name": hostile, "reason": hostile} for peer in sample_status()["peers"]]
    screen.status = sample_status(run_name=hostile, waiting_for=hostile, peers=peers)
    await screen.serve()
    page = await screen.open(browser)
    await shows(page, "peers", hostile)
    assert await page.locator("img").count() == 1  # our own icon
    await asyncio.wait_for(screen.server.stop(), 10)
    assert not [problem for problem in screen.problems if "ERR_" not in problem]


async def test_the_gate_beyond_s_is_named_inside_its_chart(browser: Any) -> None:
    screen = Screen()
    screen.status["staleness"] = {**screen.status.get("staleness", {}), "age_max": screen.status["staleness_limit"] + 2}
    await screen.serve()
    page = await screen.open(browser)
    label = page.locator(".limit-text")
    assert await label.text_content() == f"gate={screen.status['staleness']['age_max']}"
    text, chart = await label.bounding_box(), await page.locator("svg:has(.limit-text)").bounding_box()
    assert chart["x"] <= text["x"]
    assert text["x"] + text["width"] <= chart["x"] + chart["width"]
    await screen.server.stop()
