"""How fast a worker draws, and how long its slices are."""

from __future__ import annotations

from peer.worker.status import FIRST_SLICE_TOKENS, RATE_WINDOW_S, DrawingSpeed


def test_the_rate_is_of_the_last_seconds() -> None:
    speed = DrawingSpeed(slice_tokens=64, slice_s=0.5)
    speed.drawn(100, 0.001, 5.0)
    speed.drawn(50, 0.001, 9.0)
    assert speed.per_second(10.0) == 150 / RATE_WINDOW_S
    assert speed.per_second(5.1 + RATE_WINDOW_S) == 50 / RATE_WINDOW_S
    assert speed.tokens == 150


def test_slices_are_as_long_as_allowed_or_as_their_time_lets_them() -> None:
    speed = DrawingSpeed(slice_tokens=64, slice_s=0.5)
    assert speed.next_slice_tokens() == FIRST_SLICE_TOKENS
    for token_s, tokens in ((0.001, 64), (0.0625, 8), (9.0, 1)):
        speed.drawn(1, token_s, 0.0)
        assert speed.next_slice_tokens() == tokens
