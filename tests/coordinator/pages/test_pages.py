"""Test the dashboard's shell, Overview and Run in a real browser: figures, access, keyboard, widths, themes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.browsing import Tab, opened
from tests.coordinator.pages.sample_site import TOKEN, SampleSite
from tests.coordinator.pages.sample_views import alert, sample_overview

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]


@pytest_asyncio.fixture(loop_scope="package")
async def site() -> AsyncIterator[SampleSite]:
    site = SampleSite()
    await site.start()
    yield site
    await site.stop()


def page_of(browser: Any, site: SampleSite, where: str = "#/overview", **look: Any) -> AbstractAsyncContextManager[Tab]:
    return opened(browser, f"http://127.0.0.1:{site.port}/{where}", **look)


async def test_the_overview_shows_the_figures_and_follows_them(browser: Any, site: SampleSite) -> None:
    async with page_of(browser, site) as tab:
        for selector, text in {
            ".head": "step 87 of 200",
            ".now-sentence": "Waiting for 3 of 32 groups for the batch of step 88, since 0.8 s",
            ".alerts": "peer-3 is lost: silent for 5.2 s",
            ".tile:has-text('Reward')": "held out 0.34",
            ".tile:has-text('Tokens')": "12.5k",
            ".tile:has-text('p50')": "142 ms",
            ".tile:has-text('Workers on')": "6 standby, 1 lost",
            ".tile:has-text('Cost')": "$14.20",
            ".histogram": "64 %",
            ".why": "lease expired",
        }.items():
            await tab.shows(selector, text)
        await tab.shows(".card:has-text('Version lag') .chart-legend", "peer-6")  # the worst member by name
        site.views["overview"] = sample_overview(step=200, phase="finished", reward_after=0.93, alerts=[])
        await tab.shows(".head", "finished")
        await tab.shows(".tile:has-text('Reward')", "0.34 → 0.93")
        await tab.gone(".alerts")
        lowered = {**sample_overview()["staleness"], "age_max": 2}
        site.views["overview"] = sample_overview(staleness_max_trained=4, staleness_limit=2, staleness=lowered)
        await tab.shows(".tile:has-text('Oldest')", "trained under a larger S")
        assert not tab.problems


async def test_worst_member_is_named_at_the_pointer(browser: Any, site: SampleSite) -> None:
    async with page_of(browser, site) as tab:
        chart = tab.page.locator(".card:has-text('Version lag') .chart")
        await chart.locator("canvas").wait_for()
        await chart.focus()
        await tab.page.keyboard.press("Home")
        await tab.shows(".card:has-text('Version lag') .chart-legend", "peer-3")
        assert "worst" not in (label := await chart.get_attribute("aria-label"))
        assert "furthest" in label
        assert "peer-3" in label
        await tab.shows(".card:has-text('Tokens per second') .chart-legend", "peer-3")  # the same moment everywhere
        assert not tab.problems


async def test_run_page_overlays_another_run(browser: Any, site: SampleSite) -> None:
    async with page_of(browser, site, "#/run") as tab:
        for title in ("Loss", "KL to behaviour", "Entropy", "Gradient norm", "Importance ratio", "Clip fraction"):
            await tab.shows(f".card:has(h2:text-is('{title}')) .chart-legend", "smoothed")
        await tab.shows(".card:has-text('Mismatch KL') .chart-legend", "…plepeerB")
        await tab.shows(".card:has-text('Evaluation') .chart-legend", "pass@8")
        await tab.shows(".card:has-text('Age by cause') .chart-legend", "queue 900 ms")
        await tab.shows(".card:has-text('Rollouts') .why", "peer left")
        await tab.shows(".profile", "3 steps from step 71: saved, 3.40 MB; /data/runs/learner/profiles/step-000071")
        await tab.page.get_by_label("Compare with").select_option("local-20260313-221904")
        await tab.shows(".card:has(h2:text-is('Loss')) .chart-legend", "local-20260313-221904")
        assert "with=local-20260313-221904" in tab.page.url
        assert not tab.problems


async def test_lost_coordinator_is_shown_until_it_answers_again(browser: Any, site: SampleSite) -> None:
    async with page_of(browser, site) as tab:
        await tab.shows(".head-link", "live")
        await site.stop()
        await tab.shows(".notice", "Trying to reconnect")
        await site.start()
        # On a busy machine the page may have reconnected by itself by now: then there is no button any more.
        await tab.page.evaluate("document.querySelector('.notice button')?.click()")
        await tab.shows(".head-link", "live")
        await tab.gone(".notice")


async def test_a_page_asks_again_by_itself_once_the_store_answers(browser: Any) -> None:
    site, is_away = SampleSite(), True

    async def events(_request: web.Request) -> web.Response:
        if is_away:
            return web.json_response({"code": "RC401", "what": "cannot use the store"}, status=503)
        return web.json_response({"events": [], "kinds": [], "next_before": None})

    site.more = [web.get("/api/v1/events", events)]
    await site.start()
    try:
        async with page_of(browser, site, "#/events") as tab:
            await tab.shows(".problem", "cannot use the store")
            assert "No event matches" not in await tab.page.inner_text("main")
            is_away = False
            await tab.shows(".table-foot", "0 events in all")
            await tab.gone(".problem")
    finally:
        await site.stop()


async def test_a_link_signs_in_and_leaves_no_token_in_the_address(browser: Any, site: SampleSite) -> None:
    site.open_reading = False
    async with page_of(browser, site, f"#token={TOKEN}") as tab:
        await tab.shows(".nav-who", "sam")
        await tab.shows(".now-sentence", "Waiting for")
        assert TOKEN not in tab.page.url
        await tab.page.reload()
        await tab.shows(".nav-who", "sam")
        await tab.page.get_by_role("button", name="sam").click()
        await tab.page.get_by_role("menuitem", name="Sign out").click()
        await tab.shows("dialog h2", "Sign in")
        assert await tab.page.evaluate("sessionStorage.length + localStorage.length") == 0


async def test_invalid_token_is_discarded(browser: Any, site: SampleSite) -> None:
    async with page_of(browser, site, "#token=of-a-run-before") as tab:
        await tab.shows(".now-sentence", "Waiting for")  # reading is open: nothing to sign in for
        await tab.shows(".nav-who", "Sign in")
        assert await tab.page.evaluate("sessionStorage.length") == 0
        await tab.gone("dialog")


async def test_closed_reading_asks_for_a_token(browser: Any, site: SampleSite) -> None:
    site.open_reading = False
    async with page_of(browser, site) as tab:
        token = tab.page.get_by_label("Token")
        await token.fill("wrong")
        await tab.page.keyboard.press("Enter")
        await tab.shows("dialog [role=alert]", "This token is unknown")
        await token.fill(TOKEN)
        await tab.page.keyboard.press("Enter")
        await tab.shows(".now-sentence", "Waiting for")
        assert site.asked
        assert all(TOKEN not in path for path in site.asked)


async def test_the_keyboard_reaches_everything(browser: Any, site: SampleSite) -> None:
    async with page_of(browser, site) as tab:
        keyboard = tab.page.keyboard
        await tab.shows(".now-sentence", "Waiting for")
        await keyboard.press("Tab")
        await tab.becomes("document.activeElement.className", "skip")
        await keyboard.press("Enter")
        await tab.becomes("document.activeElement.id", "content")
        await keyboard.press("g")
        await keyboard.press("r")
        await tab.shows("h1", "Run")
        await tab.becomes("document.activeElement.tagName", "H1")
        await keyboard.press("?")
        await tab.shows("dialog", "Events")
        await keyboard.press("Escape")
        await tab.gone("dialog")
        await keyboard.press("t")
        await tab.becomes("document.documentElement.dataset.theme", "light")
        await keyboard.press("t")
        await tab.becomes("getComputedStyle(document.documentElement).colorScheme", "dark")
        await tab.page.reload()
        await tab.becomes("document.documentElement.dataset.theme", "dark")


async def test_dialogs_and_menus_are_accessible_too(browser: Any, site: SampleSite) -> None:
    for width, opener in ((390, "Open the navigation"), (1440, "Keyboard shortcuts and links"), (1440, "Sign in")):
        async with page_of(browser, site, width=width) as tab:
            await tab.page.get_by_role("button", name=opener).first.click()
            await tab.page.wait_for_selector("dialog[open]")
            assert await tab.accessibility_problems() == [], opener


async def test_hostile_names_stay_text(browser: Any, site: SampleSite) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    site.views["overview"] = sample_overview(run_name=hostile, alerts=[alert("warning", hostile, subject=hostile)])
    site.views["overview"]["waiting"]["sentence"] = hostile
    async with page_of(browser, site) as tab:
        await tab.shows(".now-sentence", hostile)
        await tab.shows(".alerts", hostile)
        assert await tab.page.locator("img").count() == 1  # our own icon
        assert not tab.problems


async def test_before_the_first_step(browser: Any, site: SampleSite) -> None:
    """Every figure that may be unknown is unknown, and no series has a point."""
    nothing = {key: None for key in sample_overview() if key.startswith(("reward_", "exact_", "usd_", "staleness_m"))}
    figures = {"t_train_s": None, "newest_version": None, "learner_utilisation": None, "peer_byte_share": None}
    site.views["overview"] = sample_overview(
        **{**nothing, **figures, "step": 0, "phase": "starting", "reward_history": [], "staleness_histogram": {}},
        t_bcast_s={"p50": None, "p95": None, "last": None},
        alerts=[],
    )
    site.views["history"] = {"times_unix_s": [], "series": {}}
    async with page_of(browser, site) as tab:
        await tab.shows(".head", "starting")
        await tab.shows(".tile:has-text('Reward')", "\u2013")
        await tab.shows(".card:has-text('Reward') .chart", "no data yet")
        assert "NaN" not in await tab.page.inner_text("body")
        assert "undefined" not in await tab.page.inner_text("body")
        assert not tab.problems
