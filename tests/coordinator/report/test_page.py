"""The file as a browser reads it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from coordinator.report.page import render
from coordinator.report.run_data import read_facts
from tests.coordinator.report.sample_run import sample_run


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


def test_it_shows_the_run_and_fetches_nothing(tmp_path: Path) -> None:
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


def test_a_run_that_goes_on_says_so(tmp_path: Path) -> None:
    assert "still going on" in render(read_facts(sample_run(tmp_path, over=False, steps=3)), 0.0)
