from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.decisions.rollouts import malformed_partial, malformed_rollout, sent_past_its_end, unfinished
from rollcast.wire.ids import Epoch, FencingToken, LeaseId, PeerId, Version
from rollcast.wire.rollouts import PartialRollout, Segment
from tests.coordinator.core_world import World, rollout, wants

A = PeerId("a")


def segment(*tokens: int, peer: str = "a", version: int = 0) -> Segment:
    return Segment("assistant", Epoch(0), Version(version), PeerId(peer), tokens, b"\1" * len(tokens))


def world() -> World:
    made = World()
    made.start("a", "b")
    made.tell(wants("a", 1))
    return made


def test_a_rollout_goes_on_from_exactly_what_it_was_given() -> None:
    here = world()
    (lease, _), *_ = here.take("a")
    prefix = (segment(5, 6, peer="b"),)
    state = here.core._state
    whole = rollout(lease, 0, segments=(*prefix, segment(7, 1)))
    assert malformed_rollout(state, A, whole, prefix) == ""
    with_evidence = replace(prefix[0], reported_logprobs=(float("nan"), 0.0))
    assert malformed_rollout(state, A, replace(whole, segments=(with_evidence, segment(7, 1))), prefix) == ""
    other = "uploaded a rollout that does not begin with what it was to continue"
    for changed in (segment(5, 7, peer="b"), segment(5, 6), segment(5, peer="b")):
        assert malformed_rollout(state, A, replace(whole, segments=(changed, segment(7, 1))), prefix) == other
    foreign = replace(whole, segments=(*prefix, segment(7, peer="b")))
    assert malformed_rollout(state, A, foreign, prefix) == "uploaded a segment that another peer made"
    long = replace(whole, segments=(*prefix, segment(7, 7, 7)))
    assert malformed_rollout(state, A, long, prefix) == "uploaded 5 generated tokens"


@pytest.mark.parametrize(
    ("position", "parts", "what"),
    [
        (0, (segment(5, 6),), ""),
        (2, (segment(5),), ""),
        (2, (segment(5, 6),), "sent 4 tokens of a rollout as a part of it"),
        (0, (segment(5, 1),), "sent a part of a rollout that has its end in it"),
        (0, (segment(5, peer="b"),), "uploaded a segment that another peer made"),
        (0, (segment(99),), "uploaded token 99 of a vocabulary of 32"),
    ],
)
def test_a_part_leaves_something_to_draw(position: int, parts: tuple[Segment, ...], what: str) -> None:
    state = world().core._state
    assert malformed_partial(state, A, PartialRollout(LeaseId(1), FencingToken(1), 0, position, parts)) == what


def test_nothing_drawn_is_unfinished_too() -> None:
    assert unfinished(world().core._state, ()) == ""


def test_nothing_comes_after_an_end() -> None:
    here = world()
    (lease, _), *_ = here.take("a")
    state = here.core._state
    after_token = rollout(lease, 0, segments=(segment(5, 1, 6),))
    assert malformed_rollout(state, A, after_token, ()) == "uploaded a rollout that goes on after its end"
    whole = rollout(lease, 0, segments=(segment(5, 6, 7),))
    for text_end, what in ((None, ""), (3, ""), (2, "uploaded a rollout that goes on after a stop string")):
        assert malformed_rollout(state, A, whole, (), text_end) == what


@pytest.mark.parametrize(("text_end", "culprit"), [(None, None), (1, "b"), (2, "b"), (3, "c"), (4, None)])
def test_who_sent_an_end_as_a_part_is_named(text_end: int | None, culprit: str | None) -> None:
    prefix = (segment(5, 6, peer="b"), segment(7, peer="c"))
    assert sent_past_its_end(prefix, text_end) == culprit
