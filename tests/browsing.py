"""Drive a real browser for tests of pages: Chromium, through Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from itertools import product
from typing import Any

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DEADLINE_MS = 45_000
EMPTY = "about:blank"
LOOKS = tuple(product((1440, 390), ("light", "dark")))
COLOURS = ("color-contrast", "link-in-text-block")  # the rules of axe-core that read colours, all that a theme changes


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """Yield a started browser; skips the test if there is none."""
    if not CHROMIUM:
        pytest.skip("the page was not tested: no Chromium here (apt-get install chromium, or set CHROMIUM to its path)")
    playwright = pytest.importorskip("playwright.async_api", reason="the page was not tested: no playwright here")
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        await browser.close()


class Tab:
    """A page of a server on this machine, with its errors and its requests to other hosts."""

    def __init__(self, page: Any, origin: str) -> None:
        self.page = page
        self.problems: list[str] = []
        self._origin = origin
        self._listeners = {"pageerror": self._add_error, "console": self._add_message, "request": self._check_origin}
        page.set_default_timeout(DEADLINE_MS)
        for event, listener in self._listeners.items():
            page.on(event, listener)

    async def clear(self) -> None:
        """Leave an empty page, which stores nothing and reports to nothing, for the next one that is opened."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        await self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        await self.page.goto(EMPTY)

    def _add_error(self, error: Any) -> None:
        self.problems.append(str(error))

    def _add_message(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def _check_origin(self, request: Any) -> None:
        if not request.url.startswith((self._origin, "data:")):
            self.problems.append(f"requested {request.url}")

    async def shows(self, selector: str, text: str) -> None:
        """Wait until an element's text contains this; fails with its text otherwise."""
        element, shown = self.page.locator(selector).first, ""
        for _ in range(DEADLINE_MS // 100):
            shown = " ".join(" ".join(await element.all_inner_texts()).split())
            if text in shown:
                return
            await self.page.wait_for_timeout(100)
        raise AssertionError(f"{selector} shows {shown!r}, not {text!r}")

    async def becomes(self, expression: str, expected: object) -> None:
        """Wait until a JavaScript expression has this value; fails with its value otherwise."""
        for _ in range(DEADLINE_MS // 100):
            value = await self.page.evaluate(expression)
            if value == expected:
                return
            await self.page.wait_for_timeout(100)
        raise AssertionError(f"{expression} is {value!r}, not {expected!r}")

    async def gone(self, selector: str) -> None:
        """Wait until no element matches."""
        await self.page.wait_for_selector(selector, state="detached")

    async def accessibility_problems(self, rules: Sequence[str] = ()) -> list[str]:
        """Return the serious and critical findings of axe-core: each rule with the first element that breaks it.

        Under a modal dialog the page is inert, and was checked before the dialog was opened: only the dialog is.

        Args:
            rules: those that are checked; empty: all.
        """
        pytest.importorskip("axe_playwright_python", reason="accessibility was not tested: no axe-core here")
        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
        # Of the elements that keep a rule, axe would describe each as well: half of its time.
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = {"type": "rule", "values": list(rules)}
        run = "axe.run(document.querySelector('dialog:modal') ?? document, options)"
        found = await self.page.evaluate(f"options => {run}.then((found) => found.violations)", options)
        return [
            f"{one['id']} ({len(one['nodes'])}): {one['nodes'][0]['html'][:160]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

    async def fits(self, said: str, rules: Sequence[str] = ()) -> None:
        """Check that the page fits the window and has no accessibility problems; ``said`` names the check."""
        assert await self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), said
        assert await self.accessibility_problems(rules) == [], said

    async def fits_everywhere(self, said: str) -> None:
        """Check ``fits`` in all widths and themes, then restore the page's look. axe-core takes a second a look."""
        size = self.page.viewport_size
        was_dark = await self.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        for width, scheme in LOOKS:
            await self.page.set_viewport_size({"width": width, "height": 900})
            await self.page.emulate_media(color_scheme=scheme)
            await self.fits(f"{said} at {width}, {scheme}", COLOURS if scheme == "dark" else ())
        await self.page.set_viewport_size(size)
        await self.page.emulate_media(color_scheme="dark" if was_dark else "light")


@asynccontextmanager
async def opened(browser: Any, url: str, *, width: int = 1440, scheme: str = "light") -> AsyncIterator[Tab]:
    """Yield a page at a URL, in a browser window of its own: one that another test has left empty, or a new one.

    A new window takes a second of processor time, more than most pages. A test that fails leaves its window as it is.
    """
    windows = (page for context in browser.contexts for page in context.pages)
    page = next((page for page in windows if page.url == EMPTY), None) or await _new_window(browser)
    await page.set_viewport_size({"width": width, "height": 900})
    await page.emulate_media(color_scheme=scheme)
    tab = Tab(page, "/".join(url.split("/", 3)[:3]) + "/")
    await page.goto(url, wait_until="domcontentloaded")
    yield tab
    await tab.clear()


async def _new_window(browser: Any) -> Any:
    context = await browser.new_context(reduced_motion="reduce")  # so that no test waits for an animation
    return await context.new_page()
