from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.views.phrases import duration, members_in_words, sentence
from tests.coordinator.views.viewed import core


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1.0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_have_the_unit_that_suits_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@given(st.floats(0.0, 1e9))
def test_any_duration_is_short(seconds: float) -> None:
    assert len(duration(seconds)) < 20


def test_members_are_the_subject_of_a_sentence() -> None:
    members = list(core("a", "b").state.members)[1:]
    assert members_in_words(members) == "2 workers are"
    assert members_in_words(members[:1]) == "a is"


def test_what_is_waited_for_is_said_in_one_sentence() -> None:
    said = sentence("the learner (step 3)", 12.0, "it asks for the batch of step 3")
    assert said == "The run has waited 12 s for the learner (step 3). Next: it asks for the batch of step 3."
    assert sentence("", 0.0, "the run is over: finished") == "The run is over: finished."
