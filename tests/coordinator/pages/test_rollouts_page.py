"""Test the Rollouts page in a real browser: filters, one rollout as a conversation, two answers side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.browsing import opened
from tests.coordinator.pages.sample_rollouts import CALL, PROMPT
from tests.coordinator.pages.sample_site import SampleSite

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]


@pytest_asyncio.fixture(loop_scope="package")
async def site() -> AsyncIterator[SampleSite]:
    site = SampleSite()
    site.views["explain"] = {"title": "rollout 53", "facts": {}, "lines": [{"at_unix_s": 1.0, "text": "it was scored"}]}
    await site.start()
    yield site
    await site.stop()


async def test_rollouts_are_filtered_read_and_compared(browser: Any, site: SampleSite) -> None:
    async with opened(browser, f"http://127.0.0.1:{site.port}/#/rollouts") as tab:
        await tab.shows(".table-foot", "79 rollouts in all")  # from two pages of the API
        await tab.page.get_by_label("Problem", exact=True).fill("shop:1")
        await tab.shows(".table-foot", "10 rollouts in all")  # the first page has none of them
        await tab.page.get_by_label("Highest reward").fill("0.5")
        await tab.page.get_by_label("Highest age").fill("3")
        await tab.page.get_by_role("button", name="Not correct").click()
        await tab.shows(".table-foot", "2 rollouts in all")
        assert "problem=shop%3A1&reward_max=0.5&age_max=3&wrong=true" in site.asked[-1]
        await tab.page.get_by_role("grid").focus()
        for key in ("ArrowDown", "Enter"):
            await tab.page.keyboard.press(key)
        await tab.shows(".fleet-side .talk", PROMPT)
        await tab.shows(".fleet-side .by-assistant", CALL.split("\n")[1])
        await tab.shows(".fleet-side .by-tool", "99")
        await tab.shows(".fleet-side .facts", "format 0.25")
        await tab.shows(".fleet-side .story", "it was scored")
        assert await tab.page.locator(".by-assistant .likely-4").all_inner_texts() == ["."]
        await tab.fits("one rollout")
        assert not await tab.page.locator(".fleet-side .facts dt", has_text="Agent").count(), "its problem has none"
        await tab.page.keyboard.press("Escape")
        await tab.gone(".fleet-side")
        await tab.page.evaluate("location.hash = '#/rollouts/53'")
        await tab.page.get_by_role("link", name="Compare with another answer").click()
        await tab.shows(".versus > :first-child option:checked", "version 83")
        await tab.shows(".versus > :first-child .facts", "Agent listener")
        await tab.shows(".versus > :last-child .facts", "Version 89")  # the newest of another version
        await tab.page.get_by_label("Another answer").last.select_option("51")
        await tab.shows(".versus > :last-child .facts", "not correct")
        await tab.page.set_viewport_size({"width": 390, "height": 900})
        await tab.page.emulate_media(color_scheme="dark")
        await tab.fits("two answers, narrow and dark")
        assert not tab.problems
