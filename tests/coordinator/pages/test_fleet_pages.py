"""Test Workers, Broadcast, Capacity, Events, Invites and Settings in a real browser: their content, and each act."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.browsing import Tab, opened
from tests.coordinator.pages.fleet_site import SECRET, FleetSite, broadcast_view, worker
from tests.coordinator.pages.sample_site import TOKEN

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

Serve = Callable[..., Awaitable[FleetSite]]


@pytest_asyncio.fixture(loop_scope="package")
async def serve() -> AsyncIterator[Serve]:
    sites: list[FleetSite] = []

    async def start(**size: int) -> FleetSite:
        site = FleetSite(**size)
        await site.start()
        sites.append(site)
        return site

    yield start
    for site in sites:
        await site.stop()


@asynccontextmanager
async def signed_in(browser: Any, site: FleetSite, where: str, **look: Any) -> AsyncIterator[Tab]:
    """Open a page as an admin."""
    async with opened(browser, f"http://127.0.0.1:{site.port}/#token={TOKEN}", **look) as tab:
        await tab.shows("main h1", "Overview")
        await tab.page.evaluate(f"location.hash = {where!r}")
        yield tab


async def _names(tab: Tab) -> list[str]:
    shown: list[str] = await tab.page.locator(".vt-body .vt-row .worker-name b").all_inner_texts()
    return shown


async def test_thousand_workers_are_listed_and_few_are_rendered(browser: Any, serve: Serve) -> None:
    site = await serve(workers=1000)
    async with signed_in(browser, site, "#/workers") as tab:
        await tab.shows(".page-head", "1,000 workers")
        grid = tab.page.get_by_role("grid", name="Workers")
        assert await grid.get_attribute("aria-rowcount") == "1002"
        assert await tab.page.locator(".vt-body .vt-row").count() < 60
        await tab.page.get_by_role("button", name="Tokens/s").click()
        await tab.shows(".vt-body", "gpu-1000")
        await grid.focus()
        await tab.page.keyboard.press("End")
        await tab.shows(".vt-active", "origin")  # the origin generates no tokens
        await tab.page.get_by_label("Filter workers").fill("gpu-77 eu-west")
        await tab.shows(".page-head", "2 listed")
        assert not tab.problems


async def test_silence_turns_amber_and_red(browser: Any, serve: Serve) -> None:
    site = await serve(workers=6)
    site.workers[1]["last_seen_s"], site.workers[2]["last_seen_s"] = 3.4, 42.0
    site.show()
    async with signed_in(browser, site, "#/workers") as tab:
        await tab.shows(".page-head", "2 silent")
        await tab.shows(".vt-body .vt-row:has-text('gpu-1') .warn", "3 s")
        await tab.shows(
            ".vt-body .vt-row:has-text('gpu-2') .vt-end.bad, .vt-body .vt-row:has-text('gpu-2') .vt-end .bad", "42 s"
        )


async def test_workers_are_drained_after_a_preview(browser: Any, serve: Serve) -> None:
    site = await serve(workers=8)
    site.refuse = {"gpu-2"}
    async with signed_in(browser, site, "#/workers?sort=name&down=0") as tab:
        await tab.shows(".vt-body", "gpu-1")
        await tab.page.get_by_role("grid").focus()
        for key in ("ArrowDown", " ", "Shift+ArrowDown"):  # by keyboard: the first two
            await tab.page.keyboard.press(key)
        await tab.shows(".picked", "2 selected")
        await tab.page.get_by_role("button", name="Drain").click()
        await tab.shows("dialog .preview", "Asked {'act': 'drain'")
        await tab.shows("dialog .preview-table", "98.0")
        assert not await tab.accessibility_problems()
        await tab.page.get_by_label("Reason").fill("moving the rack")
        await tab.page.get_by_role("button", name="Drain 2 workers").click()
        await tab.shows("dialog .problem", "gpu-2: it left")
        path, body = site.posted[-1]
        assert (path, body["act"], body["reason"]) == ("acts/peers", "drain", "moving the rack")
        assert body["peers"] == [worker(1)["peer_id"], worker(2)["peer_id"]]
        await tab.page.keyboard.press("Escape")
        await tab.shows(".vt-row:has-text('gpu-1')", "drained")
        assert not tab.problems


async def test_a_worker_has_its_story_and_an_address(browser: Any, serve: Serve) -> None:
    site = await serve(workers=3)
    async with signed_in(browser, site, "#/workers") as tab:
        await tab.page.locator(".vt-row:has-text('gpu-1')").click()
        await tab.shows(".fleet-side", "joined as peer")
        await tab.shows(".fleet-side .story .facts", "open 2")
        assert "[object" not in await tab.page.inner_text(".fleet-side")
        await tab.shows(".fleet-side", worker(1)["peer_id"])
        assert worker(1)["peer_id"] in await tab.page.evaluate("location.hash")
        await tab.page.keyboard.press("Escape")
        await tab.page.get_by_role("grid").focus()
        await tab.page.keyboard.press("Escape")
        await tab.gone(".fleet-side")


async def test_reader_without_the_role_is_asked_to_sign_in(browser: Any, serve: Serve) -> None:
    site = await serve(workers=3)
    async with opened(browser, f"http://127.0.0.1:{site.port}/#/workers/{worker(1)['peer_id']}") as tab:
        await tab.page.get_by_role("button", name="Ban").click()
        await tab.shows("dialog", "operator")
        assert not site.posted


async def test_the_order_is_held_under_the_pointer(browser: Any, serve: Serve) -> None:
    site = await serve(workers=6)
    async with signed_in(browser, site, "#/workers?sort=tokens&down=1") as tab:
        await tab.shows(".vt-body .vt-row:first-child", "gpu-6")
        await tab.page.locator(".vt-row:has-text('gpu-5')").hover()
        site.workers[1]["tokens_per_s"] = 9e6
        site.show()
        await tab.shows(".vt-row:has-text('gpu-1')", "9.00M")
        assert (await _names(tab))[0] == "gpu-6"


@pytest.mark.parametrize(("peers", "shape"), [(8, "rows"), (200, "rings")])
async def test_relay_tree_is_shown(browser: Any, serve: Serve, peers: int, shape: str) -> None:
    site = await serve(tree=peers)
    async with signed_in(browser, site, "#/broadcast") as tab:
        await tab.shows(".tree", f"{peers + 1} nodes")
        kind = ".chip-node" if shape == "rows" else ".dot"
        assert await tab.page.locator(f".tree svg {kind}").count() == peers + 1
        assert await tab.page.locator(".tree path.hop:not(.slow)").count() == peers
        await tab.page.get_by_label("Stripe").select_option("1")
        await tab.shows(".tree", "stripe 1")
        await tab.page.locator(f".tree {kind}:has-text('p3') circle:last-of-type").first.hover()
        await tab.shows(".tree-told", "RTT 40")
        await tab.page.get_by_role("button", name="List").click()
        assert await tab.page.locator(".tree-list tbody tr").count() == peers + 1
        assert not tab.problems


async def test_broadcast_names_the_peers_it_waits_for(browser: Any, serve: Serve) -> None:
    site = await serve()
    async with signed_in(browser, site, "#/broadcast") as tab:
        await tab.shows(".now-card", "Waiting for peer-5, which holds 41% of version 87")
        await tab.shows(".now-card", "7 of 8 peers hold it")
        await tab.shows(".now-card", "Slowest branch")
        await tab.shows(".tile:has-text('Saved by deltas')", "181")
        await tab.shows(".heat", "1 peer still lacks chunks")
        site.views["broadcast"] = {**broadcast_view(), "version": None}
        await tab.shows("main", "No version has been published yet")


async def test_how_members_reach_each_other_is_shown(browser: Any, serve: Serve) -> None:
    site = await serve(workers=8)
    site.views["overview"] = {**site.views["overview"], "activation": {"mode": "advise"}}
    async with signed_in(browser, site, "#/workers") as tab:
        await tab.shows(".vt-body .vt-row:has-text('gpu-3')", "hole-punchable")
        await tab.page.get_by_label("Filter workers").fill("symmetric")
        await tab.shows(".page-head", "1 listed")
        await tab.page.evaluate(f"location.hash = '#/workers/{site.workers[3]['peer_id']}'")
        await tab.shows("dl.facts", "hole-punchable (port-restricted)")
        await tab.shows("dl.facts", "hole-punched, relayed")
        await tab.shows("dl.facts", "Planner only advises")
        await tab.page.evaluate("location.hash = '#/broadcast'")
        card = ".card:has(h2:text-is('How members reach each other'))"
        await tab.shows(card, "3 holes punched of 5")
        for part in ("hole-punchable", "only outwards", "LAN", "relayed"):
            await tab.shows(f"{card} .reach-parts", part)
        assert not await tab.page.locator(f"{card}:has-text('libp2p')").count()  # the fleet has no such links
        assert not tab.problems


async def test_s_is_changed_after_a_preview(browser: Any, serve: Serve) -> None:
    site = await serve()
    async with signed_in(browser, site, "#/capacity") as tab:
        await tab.shows(".tiles", "7 1 on standby")
        await tab.page.get_by_role("button", name="Change S").click()
        field = tab.page.get_by_label("S, the staleness limit")
        await field.fill("65")
        await tab.shows("dialog .field.wrong", "At most 64.")
        await field.fill("1")
        await tab.shows("dialog .preview-warning", "the learner would wait")
        assert not await tab.accessibility_problems()
        await tab.page.get_by_role("button", name="Apply to the run").click()
        await tab.shows(".toasts", "S is 1")
        assert site.posted == [("acts/settings", {"staleness_limit": 1})]


async def test_a_run_is_paused_after_a_preview(browser: Any, serve: Serve) -> None:
    site = await serve()
    async with signed_in(browser, site, "#/settings") as tab:
        await tab.page.get_by_role("button", name="Pause", exact=True).click()
        await tab.shows("dialog .preview-sentence", "Asked {'act': 'pause'}")
        await tab.shows("dialog .preview-warning", "It costs 2 $/h.")
        await tab.page.get_by_label("Reason").fill("heat")
        assert not await tab.accessibility_problems()
        await tab.page.get_by_role("button", name="Pause the run").click()
        await tab.shows(".toasts", "The run is paused")
        assert site.posted == [("acts/run", {"act": "pause", "reason": "heat"})]
        assert not tab.problems


async def test_cards_on_a_phone_are_as_tall_as_the_tallest_of_them(browser: Any, serve: Serve) -> None:
    site = await serve(workers=6)
    async with signed_in(browser, site, "#/workers", width=390) as tab:
        await tab.shows(".vt-cards .vt-body", "gpu-1")
        await tab.becomes(
            """(() => {
                const heights = [...document.querySelectorAll('.vt-body .vt-card')].map((one) => one.scrollHeight);
                const tall = document.querySelector('.vt-body .vt-row').offsetHeight;
                return Math.max(...heights) + 1 === tall;
            })()""",
            True,
        )


async def test_events_are_filtered_and_explained(browser: Any, serve: Serve) -> None:
    site = await serve()
    async with signed_in(browser, site, "#/events") as tab:
        await tab.shows(".table-foot", "40 events")
        await tab.page.get_by_label("Kind").select_option("peer_left")
        await tab.shows(".table-foot", "20 events")
        site.views["events"] = {
            "events": [{**site.events[0], "id": 41, "kind": "peer_left", "detail": "silent for 15 s"}]
        }
        await tab.shows(".vt-body .vt-row:first-child", "silent for 15 s")
        await tab.page.locator(".vt-row:has-text('decision 40')").click()
        await tab.shows(".fleet-side", "What led to it")
        await tab.becomes("location.hash", "#/events/40?kind=peer_left")
        assert not await tab.accessibility_problems()


async def test_an_invite_is_made_shown_once_and_revoked(browser: Any, serve: Serve) -> None:
    site = await serve()
    async with signed_in(browser, site, "#/invites") as tab:
        await tab.shows("main", "No invites yet")
        await tab.page.get_by_label("Machines").fill("3")
        await tab.page.get_by_label("Note").fill("Ada's cluster")
        await tab.page.get_by_role("button", name="Create invite").click()
        await tab.shows(".one-line", f"rollcast peer join {SECRET}")
        await tab.shows(".invite-list", "0 of 3 machines")
        await tab.page.get_by_role("button", name="Revoke Ada's cluster").click()
        await tab.page.get_by_role("button", name="Revoke", exact=True).click()
        await tab.shows(".invite-list .badge", "revoked")
        site.invites[0] |= {"used": 2}
        site.show()
        await tab.page.reload()
        await tab.page.get_by_role("button", name="Ban Ada's cluster").click()
        await tab.page.get_by_label("Reason").fill("canned answers")
        await tab.page.get_by_role("button", name="Ban 2 machines").click()
        await tab.shows(".invite-list .badge", "banned")
        await tab.shows(".invite-list", "Enable")
        await tab.page.get_by_text("Reputation: watched").click()
        await tab.shows(".invite-card", "worst 0.02 nats, token 17 of rollout 812")
        week_s = 7 * 86_400
        made = {"role": "peer", "quota": 3, "lifetime_s": week_s, "note": "Ada's cluster"}
        banned = ("invites/a1/ban", {"reason": "canned answers"})
        assert site.posted == [("invites", made), ("invites/a1/revoke", {}), banned]
