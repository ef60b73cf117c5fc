"""Test a run's report: the facts read from its folder, the charts, and the file in a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.report.curves import HEIGHT, WIDTH, Curve, bars, curves, nice_ticks, number
from coordinator.report.page import render
from coordinator.report.run_data import STEPS_SHOWN, read_facts
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder
from tests.coordinator.report.sample_run import ANN, sample_run

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


def test_values_that_differ_by_rounding_alone_are_drawn() -> None:
    """A run that was stopped after its first steps had such a figure, and its report ended in a division by zero."""
    assert "polyline" in curves("x", [Curve("x", [1.0, 2.0], [0.5, 0.5 + 2e-16])])
    assert len(nice_ticks(1.0, 1.0 + 2e-16)) >= 2


def test_spike_is_cut_off_and_mentioned() -> None:
    drawn = curves("t", [Curve("loss", list(range(100)), [0.1 + 0.001 * x for x in range(99)] + [50.0])])
    assert "1 beyond the scale" in drawn
    assert "beyond" not in curves("t", [Curve("loss", list(range(100)), [float(x) for x in range(100)])])


def test_names_are_text() -> None:
    assert "<script>" not in curves("<script>", [Curve("<script>", [1, 2], [1.0, 2.0])])
    assert "<script>" not in bars("<script>", {"<script>": 1.0}, limit="<script>", limit_name="<script>")


def test_bars_are_labelled_with_shares() -> None:
    root = ElementTree.fromstring(bars("ages", {"0": 1.0, "1": 3.0}, limit="1", limit_name="S = 1"))
    (drawing,) = root.iter("svg")
    assert drawing.get("aria-label") == "ages: 0: 25.0%, 1: 75.0%"
    assert len(list(root.iter("rect"))) == 2
    assert bars("nothing", {}) == ""


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.0, 0.12345, 512.0, 51200.0, 1e-6, 2e12)] == [
        "0", "0.123", "512", "51,200", "1.0e-06", "2.0e+12"
    ]  # fmt: skip


class Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] in (["h2"], ["h3"]):
            self.titles.append(data)


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    return found


def test_report_shows_the_run_and_loads_nothing(tmp_path: Path) -> None:
    text = render(read_facts(sample_run(tmp_path)), 0.0)
    found = outline(text)
    assert {"Reward", "Loss", "Staleness", "Peers", "Rollouts trained by age, in learner steps"} <= set(found.titles)
    assert found.fetched == []
    assert "script" not in found.tags
    assert "ended: finished" in text
    assert "0.30 → 0.90" in text


@pytest.mark.parametrize("over", [True, False])
def test_names_of_strangers_are_text(tmp_path: Path, over: bool) -> None:
    text = render(read_facts(sample_run(tmp_path, name="<img src=x>", over=over)), 0.0)
    assert "img" not in outline(text).tags
    assert "&lt;img" in text


def test_report_of_a_run_in_progress_is_marked(tmp_path: Path) -> None:
    assert "still running" in render(read_facts(sample_run(tmp_path, over=False, steps=3)), 0.0)


def test_peers_steps_and_events_are_found(tmp_path: Path) -> None:
    facts = read_facts(sample_run(tmp_path))
    assert [(one.name, one.trained, one.dropped, dict(one.reasons)) for one in facts.peers] == [
        ("ann", 3, 0, {}),
        ("sums", 1, 1, {"too_old": 1}),
    ]
    assert facts.peers[0].peer_id == ANN
    assert len(facts.steps) == 40  # the line that was cut short does not count
    assert [one.kind for one in facts.events] == ["peer_joined", "peer_joined"]
    assert facts.is_over


def test_many_steps_are_thinned_and_the_last_is_kept(tmp_path: Path) -> None:
    steps = read_facts(sample_run(tmp_path, steps=2001)).steps
    assert len(steps) <= STEPS_SHOWN + 1
    assert steps[-1]["step"] == 2001


def test_report_without_a_summary_uses_the_newest_step(tmp_path: Path) -> None:
    facts = read_facts(sample_run(tmp_path, over=False))
    assert not facts.is_over
    assert (facts.summary["step"], facts.summary["steps"], facts.summary["staleness_limit"]) == (40, 40, 4)


def test_a_folder_without_a_run_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        read_facts(RunFolder(tmp_path))
