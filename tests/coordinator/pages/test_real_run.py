"""Test every page and every act of the dashboard in a real browser over a real coordinator's core.


Each page is tested wide and narrow, dark and light; an act wide and light, one also on a phone, and with `-m slow` all.
An act changes the run, and the audit log names its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from bench.shown.run import ShownRun, shown_run
from coordinator.core.members.membership import Reputation
from rollcast.wire.ids import PeerId
from rollcast.wire.joining.invite import Invite
from tests.browsing import DEADLINE_MS, LOOKS, Tab, opened

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

ACTS_IN = ((1440, "light"), (390, "dark"))  # dialogs are checked in all looks
TABS_MAX = 40  # presses of the key until the main act has the focus

#: Of each page: its title, something that is only there with data, and what the keyboard must reach.
PAGES: dict[str, tuple[str, str, str]] = {
    "overview": ("Overview", ".overview-tiles .tile-value", ".segments button"),
    "workers": ("Workers", ".vt-body .vt-row", "[role=grid]"),
    "broadcast": ("Broadcast", ".tree svg, .tree-list", ".segments button"),
    "run": ("Run", ".chart canvas", "select"),
    "capacity": ("Capacity", ".who .vt-row", "button:has-text('Change S')"),
    "events": ("Events", ".vt-body .vt-row", "[data-search]"),
    "events?tab=audit": ("Events", "[role=tabpanel], .card", "[role=tab]"),
    "invites": ("Invites", ".invite-form", "button:has-text('Create invite')"),
    "settings": ("Settings", ".settings-fields input", ".settings-fields input"),
}


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShownRun]:
    folder = tmp_path_factory.mktemp("shown") / "simulated"
    async with shown_run(folder, workers=12, port=0, seed=7, warm_up_s=60.0) as shown:
        yield shown
        assert not shown.failed.done(), shown.failed.result()


@asynccontextmanager
async def signed_in(browser: Any, run: ShownRun, page: str, width: int, scheme: str) -> AsyncIterator[Tab]:
    async with opened(browser, run.page, width=width, scheme=scheme) as tab:
        await tab.shows("main h1", "Overview")
        await tab.page.evaluate("page => { location.hash = '#/' + page; }", page)
        yield tab
        assert tab.problems == []


# ---------------------------------------------------------------- every page


OVERLAPS = """[...document.querySelectorAll("main button, main input, main select, main h1, main h2, main a")]
    .map((one) => [one, one.getBoundingClientRect()])
    .filter(([, box]) => box.width && box.bottom > 0 && box.top < innerHeight && box.left < innerWidth)
    .map(([one, box]) => [one, document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2)])
    .filter(([one, hit]) => hit && !one.contains(hit) && !hit.contains(one) && hit.closest("main")
        && !one.closest(".hidden, .vt-body, label") && !hit.closest("label, .vt-body"))
    .map(([one, hit]) => one.outerHTML.slice(0, 90) + " is covered by " + hit.outerHTML.slice(0, 90))"""
# Text that is cut off.
CUT_OFF = """[...document.querySelectorAll('.tile-value, .now-sentence, .alert-text p, h1, h2, .button, .badge')]
    .filter((one) => one.scrollWidth > one.clientWidth + 1 && !one.closest(".hidden")).map((one) => one.textContent)"""


@pytest.mark.timeout(300)  # axe-core takes a second of processor time a page
@pytest.mark.parametrize(
    ("width", "scheme"),
    [look if look in ACTS_IN else pytest.param(*look, marks=pytest.mark.slow) for look in LOOKS],
)
async def test_every_page(browser: Any, run: ShownRun, width: int, scheme: str) -> None:
    async with opened(browser, run.page, width=width, scheme=scheme) as tab:
        for name, (title, data, main_act) in PAGES.items():
            await tab.page.evaluate("name => { location.hash = '#/' + name; }", name)
            await tab.shows("main h1", title)
            await tab.page.locator(f"main {data}").first.wait_for()
            assert await tab.page.locator("main h1").count() == 1, name
            assert await tab.page.get_by_role("main").count() == 1, name
            assert await tab.page.get_by_role("banner").is_visible(), name
            seen = tab.page.get_by_role("navigation") if width > 1000 else tab.page.get_by_label("Open the navigation")
            assert await seen.is_visible(), name
            run_name = await tab.page.locator(".head-name").inner_text()
            assert await tab.page.title() == f"{title} · {run_name} · Rollcast"
            assert await tab.page.evaluate(OVERLAPS) == [], name
            assert await tab.page.evaluate(CUT_OFF) == [], name
            await tab.fits(name)
            await reaches(tab, main_act)
            assert "NaN" not in (shown := await tab.page.inner_text("body")), name
            assert "undefined" not in shown, name
            assert tab.problems == [], name


async def reaches(tab: Tab, selector: str) -> None:
    """Press Tab from the top of the content until an element of the selector has the focus, visibly."""
    await tab.page.evaluate("document.getElementById('content').focus()")
    wanted = tab.page.locator(f"main {selector}")
    for _ in range(TABS_MAX):
        await tab.page.keyboard.press("Tab")
        if await wanted.evaluate_all("all => all.includes(document.activeElement)"):
            break
    else:
        raise AssertionError(f"the keyboard does not reach {selector}")
    style = "(({ outlineStyle, boxShadow }) => outlineStyle + boxShadow)(getComputedStyle(document.activeElement))"
    assert await tab.page.evaluate(style) != "nonenone", selector


# ---------------------------------------------------------------- every act


async def asked(run: ShownRun, path: str) -> Any:
    """Return an answer of the API to the operator."""
    headers = {"Authorization": f"Bearer {run.key}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{run.url}/api/v1/{path}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def audited(run: ShownRun) -> dict[str, Any]:
    """Return the newest row of the audit log."""
    row: dict[str, Any] = (await asked(run, "audit?limit=1"))["rows"][0]
    return row


def reputation_of(run: ShownRun, name: str) -> Reputation:
    """Return the core's reputation of a machine."""
    core = run.fleet.coordinator.core
    assert core is not None
    peer_id = next(one.peer_id for one in run.fleet.machines if one.name == name)
    return core.state.members.reputation(PeerId(peer_id))


async def untouched(run: ShownRun) -> list[str]:
    """Return the names of working peers that no operator has drained, banned or pinned."""
    answer = await asked(run, "workers")
    rows = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
    idle = [one for one in rows if one["role"] == "peer" and one["state"] not in ("left", "lost", "quarantined")]
    return [one["name"] for one in idle if not (one["drained"] or one["banned"] or one["pin"])]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(DEADLINE_MS // 20):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition did not become true")


async def pick(tab: Tab, name: str) -> None:
    """Search for a worker by name and tick its box."""
    await tab.page.locator("main [data-search]").fill(name)
    await tab.shows(".vt-body", name)
    await tab.page.locator(f".vt-body .vt-row:has-text('{name}') input").click()


async def looked_at(tab: Tab, said: str) -> None:
    """Check the open dialog in all looks; only in the first look of an act."""
    if tab.page.viewport_size["width"] == ACTS_IN[0][0]:
        await tab.fits_everywhere(said)


acts = pytest.mark.parametrize(("width", "scheme"), [ACTS_IN[0], pytest.param(*ACTS_IN[1], marks=pytest.mark.slow)])


@pytest.mark.parametrize(("width", "scheme"), ACTS_IN)
async def test_workers_are_drained_and_enabled(browser: Any, run: ShownRun, width: int, scheme: str) -> None:
    name, other = (await untouched(run))[:2]
    async with signed_in(browser, run, "workers", width, scheme) as tab:
        for one in (name, other):
            await pick(tab, one)  # each by its name: those picked before stay
        await tab.shows(".picked", "2 selected")
        await tab.page.get_by_role("button", name="Drain", exact=True).click()
        await tab.shows("dialog", "Drain 2 workers?")
        await looked_at(tab, "drain")
        await tab.page.get_by_label("Reason").fill("to be moved")
        await tab.page.get_by_role("button", name="Drain 2 workers").click()
        await tab.shows(".toasts", "2 workers drained")
        assert reputation_of(run, name).drained
        assert reputation_of(run, other).drained
        row = await audited(run)
        assert (row["who"], row["access"], row["act"]) == ("run's key", "admin", "peers")
        assert (row["detail"], row["outcome"]) == ("drain: to be moved", "done")
        await tab.page.locator("main [data-search]").fill(name)
        await tab.page.locator(f".vt-body .vt-row:has-text('{name}') .worker-name").click()
        await tab.shows(".detail-state", "drained")
        await tab.page.get_by_role("button", name="Enable", exact=True).first.click()
        await tab.page.get_by_role("button", name="Enable it").click()
        await tab.shows(".detail-state", "generating")
        assert not reputation_of(run, name).drained
        assert (await audited(run))["detail"] == "enable"


@acts
async def test_a_worker_is_banned(browser: Any, run: ShownRun, width: int, scheme: str) -> None:
    name = (await untouched(run))[-1]
    async with signed_in(browser, run, "workers", width, scheme) as tab:
        await pick(tab, name)
        await tab.page.get_by_role("button", name="Ban", exact=True).click()
        await tab.shows("dialog", f"Ban {name}?")
        await tab.page.get_by_label("Reason").fill("sends noise")
        await tab.page.get_by_role("button", name="Ban it").click()
        await tab.shows(".toasts", "1 worker banned")
        assert "sends noise" in reputation_of(run, name).banned
        await tab.shows(f".vt-row:has-text('{name}')", "banned")
        assert (await audited(run))["detail"] == "ban: sends noise"


@acts
async def test_a_worker_is_pinned(browser: Any, run: ShownRun, width: int, scheme: str) -> None:
    name = (await untouched(run))[0]
    async with signed_in(browser, run, "capacity", width, scheme) as tab:
        for words, act, pin in (
            ("Pin on", "pin_on", "on"),
            ("Pin off", "pin_off", "off"),
            ("Leave to", "pin_auto", ""),
        ):
            await pick(tab, name)
            await tab.page.get_by_role("button", name="Pin", exact=True).click()
            await tab.page.get_by_role("menuitem", name=words).click()
            await tab.page.locator("dialog .button.primary").click()
            await until(lambda pin=pin: reputation_of(run, name).pin == pin)  # type: ignore[misc]
            await tab.gone("dialog")
            assert (await audited(run))["detail"] == act
            if pin:
                await tab.shows(f".who .vt-row:has-text('{name}')", f"pinned {pin}")


@acts
async def test_s_kappa_and_the_budget_are_changed(browser: Any, run: ShownRun, width: int, scheme: str) -> None:
    core = run.fleet.coordinator.core
    assert core is not None
    before = core.rules.rules
    async with signed_in(browser, run, "capacity", width, scheme) as tab:
        await tab.page.get_by_role("button", name="Change S").click()
        await tab.page.get_by_label("S, the staleness limit").fill(str(before.limit - 1))
        await tab.page.wait_for_selector("dialog .preview[aria-busy=false]")
        await looked_at(tab, "change S")
        await tab.page.get_by_role("button", name="Apply to the run").click()
        await tab.shows(".toasts", f"S is {before.limit - 1}")
        assert core.rules.rules.limit == before.limit - 1
        assert (await audited(run))["act"] == "settings"
        await tab.page.evaluate("location.hash = '#/settings'")
        await tab.page.get_by_label("steps between versions").fill("2")
        await tab.page.get_by_label("Budget per hour").fill("40")
        await tab.page.get_by_label("Total budget").fill("-1")
        await tab.shows(".settings-fields .field.wrong", "At least 0")
        assert await tab.page.get_by_role("button", name="Apply to the run").is_disabled()
        await tab.page.get_by_label("Total budget").fill("900")
        await tab.page.keyboard.press("Enter")
        await tab.shows(".toasts", "the budget per hour is $40")
        settings = await asked(run, "settings")
        assert core.rules.rules.publish_every_steps == settings["publish_every_steps"]["value"] == 2
        assert (settings["usd_per_hour_max"]["value"], settings["usd_total_max"]["value"]) == (40.0, 900.0)
        row = await audited(run)
        assert (row["act"], row["outcome"]) == ("settings", "done")
        await tab.page.get_by_label("steps between versions").fill("1")
        await tab.page.get_by_label("Budget per hour").fill("")
        await tab.page.get_by_label("Total budget").fill("")
        await tab.page.get_by_role("button", name="Apply to the run").click()
        await until(lambda: core.rules.rules.publish_every_steps == 1)


@acts
async def test_invite_works_until_it_is_revoked(browser: Any, run: ShownRun, width: int, scheme: str) -> None:
    note = f"for Ada, {width}"
    async with signed_in(browser, run, "invites", width, scheme) as tab:
        await tab.page.get_by_label("Machines").fill("2")
        await tab.page.get_by_label("Note").fill(note)
        await tab.page.get_by_role("button", name="Create invite").click()
        line = await tab.page.locator(".one-line code").inner_text()
        assert line.startswith("rollcast peer join rollcast1-")
        invite = Invite.decode(line.split()[-1])
        await tab.shows(".invite-made", "Only the coordinator's machine can use it")
        assert await let_in(run, invite.token) == 200
        assert (await audited(run))["act"] == "invite"
        await looked_at(tab, "an invite")
        await tab.page.get_by_role("button", name=f"Revoke {note}").click()
        await looked_at(tab, "revoke")
        await tab.page.get_by_role("button", name="Revoke", exact=True).click()
        await tab.shows(f".invite-list li:has-text('{note}')", "revoked")
        assert (await audited(run))["act"] == "revoke invite"
        assert await let_in(run, invite.token) == 403
        assert invite.token not in str(await asked(run, "audit?limit=100"))


async def let_in(run: ShownRun, token: str) -> int:
    """Return the status of a small speed test requested with an invite."""
    headers = {"Authorization": f"Invite {token}"}
    down = f"{run.url}/api/v1/speed/down?bytes=1000"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(down) as response:
        return response.status


@acts
async def test_a_viewer_signs_in_and_may_not_act(browser: Any, run: ShownRun, width: int, scheme: str) -> None:
    name = f"vi-{width}"
    async with signed_in(browser, run, "settings", width, scheme) as tab:
        await tab.page.get_by_role("button", name="New token").click()
        await tab.page.get_by_label("Name").fill(name)
        await looked_at(tab, "new token")
        await tab.page.get_by_role("button", name="Create token").click()
        token = await tab.page.locator("dialog .one-line code").inner_text()
        await tab.page.get_by_role("button", name="Done").click()
        await tab.shows(".card:has-text('Tokens')", name)
        async with opened(browser, f"{run.url}/#/workers", width=width, scheme=scheme) as theirs:
            await theirs.page.locator(".vt-body .vt-row").first.locator("input").click()
            await theirs.page.get_by_role("button", name="Drain", exact=True).click()
            await theirs.shows("dialog", "operator")
            await looked_at(theirs, "sign in")
            await theirs.page.get_by_label("Token").fill(token)
            await theirs.page.keyboard.press("Enter")
            await theirs.shows(".toasts", f"Signed in as {name} (viewer)")
            refused = """token => fetch("/api/v1/acts/settings", {
                method: "POST", body: '{"staleness_limit": 1}',
                headers: { "Content-Type": "application/json", Authorization: "Bearer " + token },
            }).then((one) => one.status)"""
            assert await theirs.page.evaluate(refused, token) == 403
        row = await audited(run)
        assert (row["who"], row["access"], row["act"]) == (name, "viewer", "settings")
        assert "RC307" in row["outcome"]
        await tab.page.get_by_role("button", name=f"Revoke {name}").click()
        await tab.page.get_by_role("button", name="Revoke", exact=True).click()
        await tab.shows(f".card:has-text('Tokens') tr:has-text('{name}')", "revoked")
        await tab.page.evaluate("location.hash = '#/events?tab=audit'")
        await tab.shows("main", "RC307")
        assert token not in await tab.page.inner_text("main")
