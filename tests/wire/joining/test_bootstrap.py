from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.wire.joining.bootstrap import PLACE_PATTERN, PLACES_MOST, Bootstrap, bootstraps

FIRST = ("https://run.example:7401", "run.example:7400")


def test_a_further_place_takes_the_ports_of_the_first() -> None:
    assert bootstraps(*FIRST, ["10.0.0.1", "[2001:db8::1]", "other.example:1:2"]) == (
        Bootstrap(*FIRST),
        Bootstrap("https://10.0.0.1:7401", "10.0.0.1:7400"),
        Bootstrap("https://[2001:db8::1]:7401", "[2001:db8::1]:7400"),
        Bootstrap("https://other.example:2", "other.example:1"),
    )


def test_one_place_is_tried_once_and_there_are_few() -> None:
    assert bootstraps(*FIRST, ["run.example", "run.example:7400:7401"]) == (Bootstrap(*FIRST),)
    assert len(bootstraps(*FIRST, [f"host-{number}" for number in range(20)])) == PLACES_MOST


@pytest.mark.parametrize("text", ["", "host:1", "host:1:2:3", "http://host", "a b", "::1", "host:x:y"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither host"):
        bootstraps(*FIRST, [text])


@given(st.text(max_size=60))
def test_the_pattern_of_configurations_takes_what_can_be_read(text: str) -> None:
    if re.match(PLACE_PATTERN, text) and not text.endswith("\n"):
        assert len(bootstraps(*FIRST, [text])) <= 2
