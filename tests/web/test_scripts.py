"""Test the pages' computations in a browser: numbers as text, series, rows that arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from coordinator.stores.story import lease_name
from tests.browsing import chromium, opened
from tests.coordinator.pages.sample_site import SampleSite

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def page() -> AsyncIterator[Any]:
    site = SampleSite()
    await site.start()
    async with chromium() as browser, opened(browser, f"http://127.0.0.1:{site.port}/icon.svg") as tab:
        yield tab.page
    await site.stop()


async def call(page: Any, module: str, name: str, *arguments: Any) -> Any:
    """Return the result of a module's function for JSON values."""
    return await page.evaluate(
        "async ([module, name, values]) => (await import(module))[name](...values)", [module, name, list(arguments)]
    )


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("duration", 0.0002, "<1 ms"),
        ("duration", 0.142, "142 ms"),
        ("duration", 0.9996, "1.0 s"),
        ("duration", 59.7, "1 min"),
        ("duration", 3725, "1 h 2 min"),
        ("duration", 0, "0 s"),
        ("duration", None, "\u2013"),
        ("age", 0.4, "now"),
        ("age", 59.9, "59 s"),
        ("age", 90_000, "25 h"),
        ("bytes", 999, "999 B"),
        ("bytes", 999_700, "1.00 MB"),
        ("bytes", 61_300_000, "61.3 MB"),
        ("compact", 12_480, "12.5k"),
        ("compact", 2_340_000, "2.34M"),
        ("compact", 0.5, "0.5"),
        ("figure", 3.67e-7, "3.7e-7"),
        ("figure", 1.0386, "1.04"),
        ("figure", 0, "0"),
        ("percent", 0.0123, "1.2 %"),
        ("percent", 1, "100 %"),
        ("percent", 0.9993, "99.9 %"),
        ("usd", 14.2, "$14.20"),
        ("usd", 0.00061, "$0.00061"),
        ("usd", 12_345.6, "$12,346"),
        ("fixed", -0.001, "0.00"),
        ("count", 23_040, "23,040"),
    ],
)
async def test_numbers_read_as_people_write_them(page: Any, name: str, given: Any, text: str) -> None:
    found = await call(page, "/web/format.js", name, given)
    assert found.replace("\u202f", " ").replace("\u00a0", " ") == text


async def test_series(page: Any) -> None:
    parts = "/web/chart_parts.js"
    assert await call(page, parts, "smoothed", [1, None, 1, 1]) == pytest.approx([1, None, 1, 1])
    smoothed = await call(page, parts, "smoothed", [0, 1, 1, 1, 1])
    assert smoothed == sorted(smoothed)
    assert 0.5 < smoothed[-1] < 1
    stack = [{"values": [1, 2, None]}, {"values": [10, None, None]}]
    assert await call(page, parts, "stackedColumns", stack) == [[11, 2, None], [1, 2, None]]
    assert await call(page, parts, "overlaid", [1, 2], ["a", "b"], [2, 3], ["c", "d"]) == [
        [1, 2, 3],
        ["a", "b", None],
        [None, "c", "d"],
    ]


@pytest.mark.parametrize(
    ("times", "shown"), [([], [0, 1]), ([0], [0, 1]), ([100], [99, 101]), ([100, 105, 160], [100, 160])]
)
async def test_a_chart_begins_with_a_short_range_of_time(page: Any, times: list[int], shown: list[int]) -> None:
    assert await call(page, "/web/chart_parts.js", "xRange", times) == shown


async def test_a_single_value_is_drawn_as_a_point(page: Any) -> None:
    single = [await call(page, "/web/chart_parts.js", "isSingle", values) for values in ([None, 3, None], [3], [3, 4])]
    assert single == [True, True, False]
    assert not await call(page, "/web/chart_parts.js", "isSingle", [None])


@pytest.mark.parametrize(("lease_id", "name"), [(17, "17"), ((1 << 32) + 17, "17"), ((2 << 32) + 17, "2.17")])
async def test_leases_are_named_as_commands_name_them(page: Any, lease_id: int, name: str) -> None:
    assert await call(page, "/web/format.js", "leaseName", lease_id) == name == lease_name(lease_id)


async def test_sample_extends_the_history_and_a_gap_reloads_it(page: Any) -> None:
    history = {
        "times_unix_s": [10, 15],
        "series": {"lag": {"unit": "", "mean": [1, 2], "worst": [3, 4], "worst_who": ["a", "b"]}},
    }
    sample = {"time_unix_s": 20, "values": {"lag": [5, 6, "c"]}}
    grown = await call(page, "/history.js", "extended", history, sample, 7)
    assert grown["times_unix_s"] == [15, 20]
    assert grown["series"]["lag"] == {"unit": "", "mean": [2, 5], "worst": [4, 6], "worst_who": ["b", "c"]}
    assert await call(page, "/history.js", "extended", history, {**sample, "time_unix_s": 15}, 7) == history
    assert await call(page, "/history.js", "extended", history, {**sample, "time_unix_s": 90}, 7) is None


async def test_steps_that_come_in_are_added_once(page: Any) -> None:
    answer = {"run": "a", "columns": ["step", "loss"], "rows": [[1, 0.5], [2, 0.4]]}
    message = {"run": "a", "columns": ["loss", "step", "entropy"], "rows": [[0.4, 2, 1.1], [0.3, 3, 1.0]]}
    grown = await call(page, "/run_data.js", "withRows", answer, message)
    assert grown["columns"] == ["step", "loss", "entropy"]
    assert grown["rows"][-1] == [3, 0.3, 1.0]
    assert len(grown["rows"]) == 3
    assert await call(page, "/run_data.js", "missesRows", answer, message) is False
    assert await call(page, "/run_data.js", "missesRows", answer, {**message, "rows": [[0.1, 5, 1.0]]}) is True


async def test_evaluations_are_found_by_their_columns(page: Any) -> None:
    names = ["step", "eval_held_out_pass_at_8", "eval_held_out_pass_at_1", "eval_held_out_pass_at_1_low"]
    names += ["eval_held_out_pass_at_1_high", "eval_held_out_version", "eval_other_pass_at_4"]
    answer = {"columns": names, "rows": [[10, 0.8, 0.6, 0.5, 0.7, 9, None]]}
    table = await call(page, "/run_data.js", "tableOf", answer)
    found = await call(page, "/run_data.js", "evaluations", table)
    first, second = found["held_out"]
    assert (first["k"], first["values"], first["band"]) == (1, [0.6], [[0.5], [0.7]])
    assert (second["k"], second["values"], second["band"]) == (8, [0.8], None)
    assert list(found) == ["held_out"]  # the other set has no value yet
