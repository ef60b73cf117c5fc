from __future__ import annotations

import pytest

from rollcast.cli.durations import in_words, seconds_of
from rollcast.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d12h", 129600), ("1.5h", 5400), (" 1D 1s", 86401)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2x", "-1h", "0s", "1h?"])
def test_malformed_durations_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0s"), (59.6, "1m"), (3725, "1h 2m"), (129600, "1d 12h"), (86401, "1d 1s"), (-5, "0s")]
)
def test_durations_are_formatted(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
