from __future__ import annotations

import math

import pytest

from coordinator.rpc.sanitise import counter, duration_s, rate, text
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.limits import COUNTER_MAX


def test_a_counter_fits_what_stores_it() -> None:
    assert counter(COUNTER_MAX) == COUNTER_MAX
    with pytest.raises(MalformedMessage):
        counter(COUNTER_MAX + 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_what_cannot_be_is_not_measured(value: float) -> None:
    assert (rate(value), duration_s(value)) == (0.0, 0.0)


def test_what_can_be_is_kept() -> None:
    assert (rate(125e6), duration_s(0.04)) == (125e6, 0.04)


def test_texts_cannot_draw_on_a_screen() -> None:
    assert text("\x1b[2J ok") == " [2J ok"
    assert text("abcdef", 3) == "abc"
