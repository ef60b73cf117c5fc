"""Test the owner's page in a real browser: what it shows, every act, widths, themes, accessibility."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from peer.donor.verdict import verdict_from
from peer.worker.core.events import FinishRequested
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.browsing import DEADLINE_MS, Tab, chromium, opened
from tests.peer.donor.page.played_host import PEER_ID, PlayedHost, played_donor

# Accessibility is audited with axe-core, which takes a processor for seconds a page: minutes where others need it.
pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PAGES = ("now", "rollouts", "limits", "log", "machine")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Any]:
    async with chromium() as started:
        yield started


async def choose(tab: Tab, menu: str, item: str) -> None:
    await tab.page.get_by_role("button", name=menu, exact=True).click()
    await tab.page.get_by_role("menuitem", name=item).click()


async def until(tab: Tab, read: Callable[[], Awaitable[str]], wanted: Callable[[str], bool]) -> None:
    """Wait for a condition on the page by polling, because the page's policy forbids injected scripts."""
    async with asyncio.timeout(DEADLINE_MS / 1000.0):
        while not wanted(await read()):
            await tab.page.wait_for_timeout(50)


async def test_the_page_shows_the_machines_state(browser: Any, tmp_path: Path) -> None:
    async with played_donor(tmp_path) as (_, _, url), opened(browser, url) as tab:
        for selector, text in {
            ".head": "attic",
            ".state-card": "64 rollouts with version 1841",
            ".tile:has-text('Accepted today')": "of 40 rollouts",
            ".tile:has-text('Sent this month')": "of 200 GB (internet)",
            ".tile:has-text('Accelerator')": "limit 78 °C",
            ".card:has-text('Receiving version')": "of 4,096 chunks",
            ".card:has(h2:text-is('Speed')) .chart-legend": "tokens/s",
            ".card:has(h2:text-is('How others reach this machine'))": "Hole-punchable",
            "table": "hole-punched",
        }.items():
            await tab.shows(selector, text)
        assert await tab.page.locator(".chunk-map i").count() == 128
        before = await tab.page.locator(".receiving-said").inner_text()
        await until(tab, lambda: tab.page.locator(".receiving-said").inner_text(), lambda text: text != before)
        assert "#token" not in tab.page.url
        await tab.page.get_by_role("link", name="Rollouts", exact=True).click()
        await tab.shows(".receipts", "lease expired")
        await tab.shows(".reasons", "Another machine's attempt")
        await tab.page.get_by_role("button", name="Not accepted").click()
        await tab.page.locator(".receipts tbody tr").nth(4).wait_for(state="detached")
        assert await tab.page.locator(".receipts tbody tr").count() == 4
        await tab.page.get_by_role("link", name="This machine", exact=True).click()
        await tab.shows(".card:has-text('Identity')", PEER_ID)
        await tab.page.get_by_role("link", name="Log", exact=True).click()
        await tab.page.get_by_label("Find").fill("no such words at all")
        await tab.shows("main", "No lines match")
        assert not tab.problems


async def test_the_page_has_every_act_of_the_command_line(browser: Any, tmp_path: Path) -> None:
    async with played_donor(tmp_path) as (donor, host, url), opened(browser, url) as tab:
        await choose(tab, "Pause", "Until I resume")
        await tab.shows(".state-card", "Paused by its owner")
        await tab.page.get_by_role("button", name="Resume").click()
        await tab.shows(".state-card", "Generating")
        await choose(tab, "Pause", "For another time")
        dialog = tab.page.get_by_role("dialog")
        await dialog.get_by_label("How long").fill("soon")
        assert await dialog.get_by_role("button", name="Pause").is_disabled()
        await dialog.get_by_label("How long").fill("2h")
        await tab.page.keyboard.press("Enter")
        await tab.shows(".state-card", "Paused by its owner until")
        await tab.page.get_by_role("button", name="Resume").click()
        await tab.shows(".state-card", "Generating")
        await choose(tab, "Finish", "Then stop")
        await tab.shows(".state-card", "Finishes its work, then stops")
        assert FinishRequested("its owner asked it to finish", ends=True) in host.told
        await tab.page.get_by_role("button", name="Resume").click()
        await tab.shows(".state-card", "Generating")
        await choose(tab, "More", "Leave the run")
        await dialog.get_by_role("button", name="Leave the run").click()
        await tab.shows(".state-card", "Finishing")
        donor.clear_up()
        assert not (tmp_path / "page.json").exists(), "state is removed"
        assert (tmp_path / "receipts").exists(), "receipts are not"
        assert not tab.problems


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
async def test_a_pause_for_a_while_can_be_chosen(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    look = {"width": width, "scheme": scheme}
    async with played_donor(tmp_path) as (_, host, url), opened(browser, url, **look) as tab:
        dialog = tab.page.get_by_role("dialog")
        await choose(tab, "Pause", "For 15 minutes")
        await tab.shows(".state-card", "Paused by its owner until")
        asked = json.loads((tmp_path / "donor.json").read_text())
        assert "pause" in str(asked)
        await tab.page.get_by_role("button", name="Resume").click()
        await tab.shows(".state-card", "Generating")
        await choose(tab, "More", "Finish, then pause for")
        await dialog.get_by_label("How long").fill("2h")
        await tab.fits("finish for a while")
        await dialog.get_by_role("button", name="Finish").click()
        await tab.shows(".state-card", "Finish")
        assert any(isinstance(one, FinishRequested) and not one.ends for one in host.told)
        await tab.page.get_by_role("button", name="Resume").click()
        await tab.shows(".state-card", "Generating")
        await choose(tab, "More", "Finish, then stop")
        await tab.shows(".state-card", "Finishes its work, then stops")
        await choose(tab, "More", "Leave the run")
        await tab.fits("leave")
        await dialog.get_by_role("button", name="Stay").click()
        await tab.gone("dialog")
        assert (tmp_path / "page.json").exists()
        assert not tab.problems


async def test_a_bug_report_is_saved_without_secrets(browser: Any, tmp_path: Path) -> None:
    async with played_donor(tmp_path) as (_, _, url), opened(browser, url) as tab:
        await choose(tab, "More", "Bug report")
        await tab.fits_everywhere("bug report")
        async with tab.page.expect_download(timeout=60_000) as coming:
            await tab.page.get_by_role("button", name="Save the archive").click()
        saved = await (await coming.value).path()
        with tarfile.open(saved) as archive:
            files = [archive.extractfile(one) for one in archive.getmembers() if one.isfile()]
            text = b"".join(file.read() for file in files if file is not None)
        assert b"rollcast" in text
        assert url.partition("#token=")[2].encode() not in text
        await tab.shows(".toasts", "is saved")
        assert not tab.problems


async def test_limits_change_at_once_and_go_back(browser: Any, tmp_path: Path) -> None:
    async with played_donor(tmp_path) as (_, _, url), opened(browser, url) as tab:
        await tab.page.get_by_role("link", name="Limits", exact=True).click()
        await tab.page.get_by_label("Upload at most").fill("fast")
        await tab.shows("form", "Enter a number")
        await tab.page.get_by_label("Upload at most").fill("5")
        await tab.page.get_by_label("Others may use the processor up to").fill("50")
        await tab.page.get_by_label("Hours, one window per line").first.fill("someday")
        await tab.page.get_by_role("button", name="Save").click()
        await tab.shows(".problem", "someday")
        await tab.page.get_by_label("Hours, one window per line").first.fill("mon 01:00-05:00\nsun")
        await tab.page.get_by_role("button", name="Save").click()
        await tab.shows(".toast", "The limits are saved")
        kept = json.loads((tmp_path / "limits.json").read_text())
        assert kept == {
            "upload_mbit_s_max": 5.0,
            "others_cpu_share_max": 0.5,
            "compute_hours": ["mon 01:00-05:00", "sun"],
        }
        label = await tab.page.locator(".week").first.get_attribute("aria-label")
        assert label == "Hours for computing: Mon 01:00 to 05:00; Sun 00:00 to 24:00"
        await tab.page.locator(".field:has-text('Upload at most') button").click()
        await until(tab, lambda: tab.page.get_by_label("Upload at most").input_value(), lambda value: value == "20")
        assert "upload_mbit_s_max" not in json.loads((tmp_path / "limits.json").read_text())
        assert [problem for problem in tab.problems if "400" not in problem] == []


async def test_without_its_token_the_page_explains_how_to_get_it(browser: Any, tmp_path: Path) -> None:
    async with played_donor(tmp_path) as (_, _, url), opened(browser, url.partition("#")[0]) as tab:
        await tab.shows("main", "rollcast peer page --open")


async def test_every_page_fits_and_can_be_read(browser: Any, tmp_path: Path) -> None:
    async with played_donor(tmp_path) as (_, _, url), opened(browser, url) as tab:
        await tab.shows(".state-card", "Generating")
        for name in PAGES:
            await tab.page.evaluate("name => { location.hash = '#/' + name; }", name)
            await tab.page.locator("main h1").wait_for()
            await tab.page.wait_for_timeout(150)  # what moves in has arrived
            await tab.fits_everywhere(name)
        assert not tab.problems


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
async def test_an_unreachable_coordinator_is_shown_with_the_hop_that_fails(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, scheme: str
) -> None:
    place = {
        "address": "run.example.org:7443",
        "hop": "name lookup",
        "reason": "no address for 'run.example.org' (Name or service not known)",
        "fix": "check the name in the invite, and this machine's DNS (`getent hosts NAME`)",
        "failures": 4,
        "seconds_ago": 2.0,
    }
    played = PlayedHost.describe
    away = {"connected": False, "coordinators_failing": [place]}
    monkeypatch.setattr(PlayedHost, "describe", lambda host: {**played(host), **away})
    look = {"width": width, "scheme": scheme}
    async with played_donor(tmp_path) as (_, _, url), opened(browser, url, **look) as tab:
        await tab.shows(".state-card", "trying to connect")
        await tab.shows(".state-card", "name lookup of run.example.org:7443: no address for 'run.example.org'")
        assert await tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert not tab.problems


async def test_a_verdict_shows_the_token_both_values_the_causes_and_what_to_do(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = pb.AuditVerdict(state="quarantined", reason="sent tokens", rollout_id=812, token_at=17, sampler="vllm-cpu")
    told.margin_nats, told.bound_nats = 0.52, 0.001
    played, verdict = PlayedHost.describe, {"verdict": verdict_from(told)}
    monkeypatch.setattr(PlayedHost, "describe", lambda host: played(host) | verdict)
    async with played_donor(tmp_path) as (_, _, url), opened(browser, url, width=390, scheme="dark") as tab:
        for text in (
            "Token 17 of rollout 812",
            "0.520 nats",
            "0.001 nats",
            "memory errors",
            "judges it anew, once; else its operator may enable it",
        ):
            await tab.shows("[aria-label=Verdict]", text)
        assert await tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert not tab.problems
