"""Charts: round ticks, points where they belong, text that cannot become markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from coordinator.report.curves import HEIGHT, WIDTH, Curve, bars, curves, nice_ticks, number

finite = st.floats(-1e12, 1e12)


@given(finite, finite)
def test_ticks_are_few_rise_and_hold_all_values(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    ticks = nice_ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert ticks == sorted(ticks)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack


@given(st.lists(st.one_of(st.none(), finite, st.just(float("nan"))), max_size=60), st.text(max_size=20))
def test_any_values_make_a_drawing_whose_points_are_inside(ys: list[float | None], name: str) -> None:
    drawn = curves("t", [Curve(re.sub(r"[^\x20-\x7e]", "", name), list(range(len(ys))), ys)])
    if not drawn:
        return
    ElementTree.fromstring(drawn)
    for pair in " ".join(re.findall(r'points="([^"]*)"', drawn)).split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_a_spike_does_not_flatten_all_else_and_is_told() -> None:
    drawn = curves("t", [Curve("loss", list(range(100)), [0.1 + 0.001 * x for x in range(99)] + [50.0])])
    assert "1 beyond the scale" in drawn
    assert "beyond" not in curves("t", [Curve("loss", list(range(100)), [float(x) for x in range(100)])])


def test_names_are_text() -> None:
    assert "<script>" not in curves("<script>", [Curve("<script>", [1, 2], [1.0, 2.0])])
    assert "<script>" not in bars("<script>", {"<script>": 1.0}, limit="<script>", limit_name="<script>")


def test_bars_tell_their_shares() -> None:
    root = ElementTree.fromstring(bars("ages", {"0": 1.0, "1": 3.0}, limit="1", limit_name="S = 1"))
    (drawing,) = root.iter("svg")
    assert drawing.get("aria-label") == "ages: 0: 25.0%, 1: 75.0%"
    assert len(list(root.iter("rect"))) == 2
    assert bars("nothing", {}) == ""


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.0, 0.12345, 512.0, 51200.0, 1e-6, 2e12)] == [
        "0", "0.123", "512", "51,200", "1.0e-06", "2.0e+12"
    ]  # fmt: skip
