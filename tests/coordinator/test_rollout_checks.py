from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.rollout_checks import malformed_partial, malformed_rollout, unfinished
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
