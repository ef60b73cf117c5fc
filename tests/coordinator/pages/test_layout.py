"""Test the pages' layout without a screen: order and window of a table, spanning tree and places of the relay tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.browsing import Tab, opened
from tests.coordinator.pages.fleet_site import FleetSite, tree_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def tab(browser: Any) -> AsyncIterator[Tab]:
    site = FleetSite()
    await site.start()
    async with opened(browser, f"http://127.0.0.1:{site.port}/icon.svg") as opened_tab:
        yield opened_tab
    await site.stop()


async def _ask(tab: Tab, module: str, code: str, given: Any = None) -> Any:
    return await tab.page.evaluate(f"async (given) => {{ const m = await import({module!r}); return {code} }}", given)


async def test_unknown_values_sort_last_and_ties_stay(tab: Tab) -> None:
    code = """(() => {
      const rows = new Map(Object.entries({ a: 2, b: null, c: 10, d: 2, e: NaN }));
      const sorted = (before, down) => m.ordered(rows, before, (value) => value, down).join("");
      const orders = [sorted([], false), sorted([], true), sorted(["d", "a", "x"], false)];
      return [...orders, m.kept(rows, ["c", "x", "a"]).join("")];
    })()"""
    assert await _ask(tab, "/web/table_rows.js", code) == ["adcbe", "cadbe", "dacbe", "cabde"]


async def test_names_are_ordered_as_people_count(tab: Tab) -> None:
    code = "[['gpu-9', 'gpu-10', false], ['gpu-9', 'gpu-10', true], ['', 'a', true]].map((one) => m.compared(...one))"
    assert [number > 0 for number in await _ask(tab, "/web/table_rows.js", code)] == [False, True, True]


async def test_a_window_holds_the_rows_in_sight(tab: Tab) -> None:
    code = "[[0, 1000], [995, 1000], [9990, 1000], [500, 3]].map(([top, count]) => m.windowOf(top, 100, 10, count, 2))"
    windows = [(one["first"], one["end"]) for one in await _ask(tab, "/web/table_rows.js", code)]
    assert windows == [(0, 12), (97, 112), (997, 1000), (3, 3)]


async def test_columns_of_a_high_rank_go_first(tab: Tab) -> None:
    columns = [
        {"id": "a", "width": 100, "grow": 1},
        {"id": "b", "width": 100, "rank": 2},
        {"id": "c", "width": 100, "rank": 1},
    ]
    code = "given[1].map((width) => m.fitting(given[0], width).map((one) => [one.id, one.pixels]))"
    assert await _ask(tab, "/web/table_rows.js", code, [columns, [350, 250, 90]]) == [
        [["a", 150], ["b", 100], ["c", 100]],
        [["a", 150], ["c", 100]],
        [["a", 100]],
    ]


async def test_keys_move_within_the_rows(tab: Tab) -> None:
    code = """[["ArrowDown", 0], ["ArrowUp", 0], ["ArrowUp", -1], ["PageDown", 95], ["Home", 50], ["End", 3], ["a", 1]]
      .map(([key, at]) => m.moved(key, at, 100, 10))"""
    assert await _ask(tab, "/web/table_rows.js", code) == [1, 0, 99, 99, 0, 99, None]


SPAN = """(() => {
  const tree = m.spanning(given.nodes, given.edges, { stripe: given.stripe ?? null });
  return [...tree].map(([id, { depth, edge, loose, children }]) => (
    { id, depth, parent: edge && edge.source, loose, children: children.length }));
})()"""


@pytest.mark.parametrize("stripe", [None, 0, 1])
async def test_every_peer_has_one_parent_that_is_nearer_to_the_origin(tab: Tab, stripe: int | None) -> None:
    tree = tree_of(200)
    found = {one["id"]: one for one in await _ask(tab, "/tree_layout.js", SPAN, {**tree, "stripe": stripe})}
    assert len(found) == 201
    edges = {(one["source"], one["target"]) for one in tree["edges"] if stripe is None or stripe in one["stripes"]}
    for one in found.values():
        if one["id"] == "origin":
            assert one["parent"] is None
        else:
            assert (one["parent"], one["id"]) in edges
            assert one["depth"] == found[one["parent"]]["depth"] + 1
            assert not one["loose"]
    assert sum(one["children"] for one in found.values()) == 200


async def test_cycles_and_unreached_nodes_are_placed_too(tab: Tab) -> None:
    nodes = [{"id": one, "name": one, "region": "", "role": "origin" if one == "o" else "peer"} for one in "oabcd"]
    edges = [
        {"source": source, "target": target, "stripes": [0], "bytes_per_s": None}
        for source, target in ("oa", "bc", "cb", "aa")
    ]
    found = {one["id"]: one for one in await _ask(tab, "/tree_layout.js", SPAN, {"nodes": nodes, "edges": edges})}
    assert {name: one["loose"] for name, one in found.items()} == dict(
        zip("oabcd", [False, False, True, False, True], strict=True)
    )
    assert found["c"]["parent"] == "b"


async def test_the_picture_stays_still_while_rates_change(tab: Tab) -> None:
    code = """(() => {
      const nodes = [..."oabc"].map((id) => ({ id, name: id, region: "", role: id === "o" ? "origin" : "peer" }));
      const hop = ([source, target, bytes_per_s]) => ({ source, target, bytes_per_s, stripes: [0] });
      const edges = (fast) => [["o", "a", 1], ["o", "b", 1], ["a", "c", 5], ["b", "c", fast]].map(hop);
      const parent = (fast, before) => m.spanning(nodes, edges(fast), { before }).get("c").edge.source;
      return [parent(1), parent(9), parent(9, new Map([["c", "a"]]))];
    })()"""
    assert await _ask(tab, "/tree_layout.js", code) == ["a", "b", "a"]


async def test_no_two_nodes_share_a_place(tab: Tab) -> None:
    code = """(() => {
      const tree = m.spanning(given.nodes, given.edges);
      const all = [m.asRows(tree, { width: 900, wide: 148, tall: 38 }), m.asRings(tree, { size: 900, margin: 90 })];
      const plain = (places) => [...places.values()].map(({ x, y }) => [x, y]);
      return all.map(({ width, height, places }) => ({ width, height, places: plain(places) }));
    })()"""
    rows, rings = await _ask(tab, "/tree_layout.js", code, tree_of(200))
    for picture in (rows, rings):
        assert len({(round(x), round(y)) for x, y in picture["places"]}) == 201
        assert all(0 <= x <= picture["width"] and 0 <= y <= picture["height"] for x, y in picture["places"])
    assert rings["width"] == rings["height"] == 900
