"""Test that no batch that breaks the rules is trained on, and no rollout twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.training.batch_check import BatchRules, check_batch, signal_of
from learner.training.trained_ids import TrainedIds
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.routes import RouteShape
from rollcast.wire.token_ids import pack_ids

RULES = BatchRules(staleness_limit=2, groups_per_step=2, samples_per_group=2, vocabulary_size=10, row_tokens=8)

STEP = 7


def segment(version: int, tokens: int) -> pb.Segment:
    return pb.Segment(
        role=pb.ASSISTANT,
        version=version,
        peer_id="p",
        packed_ids=pack_ids(range(1, tokens + 1)),
        loss_mask=b"\1" * tokens,
    )


def batch() -> list[pb.TrainingRollout]:
    return [
        pb.TrainingRollout(
            rollout_id=20 + index,
            group_id=index // 2,
            sample_index=index % 2,
            prompt_token_ids=[3, 4],
            segments=[segment(5, 2), segment(7, 2)],
            sampling=pb.Sampling(temperature=0.5, max_new_tokens=6),
            reward=float(index),
        )
        for index in range(4)
    ]


def test_a_good_batch_becomes_rows() -> None:
    rows = check_batch(batch(), STEP, RULES, TrainedIds())
    assert [row.rollout_id for row in rows] == [20, 21, 22, 23]
    assert [row.reward for row in rows] == [0.0, 1.0, 2.0, 3.0]
    assert [part.version for part in rows[0].segments] == [5, 7]
    assert rows[0].temperature == 0.5


def test_the_signal_of_a_batch_is_its_groups_that_differ() -> None:
    rows = check_batch(batch(), STEP, RULES, TrainedIds())
    assert signal_of(rows, 5, ()) == {"reward_mean": 1.5, "flat_groups_share": 0.0, "cut_short_share": 0.0}
    solved = [replace(row, reward=1.0) if row.group_id == 0 else row for row in rows]
    assert signal_of(solved, 4, (1,)) == {"reward_mean": 1.75, "flat_groups_share": 0.5, "cut_short_share": 1.0}
    ended = solved[0].segments[-1].token_ids[-1]
    assert signal_of(solved, 4, (ended,))["cut_short_share"] == 0.0  # they end with their last token


def test_agents_of_a_game_are_compared_within_their_role() -> None:
    rollouts = batch()
    for number, one in enumerate(rollouts):  # one group of two games: the seller has 1, the buyer 0
        one.group_id, one.sample_index, one.agents, one.reward = 7, number, 2, float(number % 2)
    rows = check_batch(rollouts, STEP, replace(RULES, groups_per_step=1, samples_per_group=4), TrainedIds())
    assert [row.role for row in rows] == [0, 1, 0, 1]
    assert signal_of(rows, 5, ())["flat_groups_share"] == 1.0


def set_version(version: int) -> Callable[[list[pb.TrainingRollout]], None]:
    return lambda rollouts: setattr(rollouts[1].segments[0], "version", version)


def repeat_id(rollouts: list[pb.TrainingRollout]) -> None:
    rollouts[1].rollout_id = 20


def mix_groups(rollouts: list[pb.TrainingRollout]) -> None:
    rollouts[1].group_id = 1


def drop_one(rollouts: list[pb.TrainingRollout]) -> None:
    rollouts.pop()


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (set_version(4), "age 3, the limit is 2"),
        (set_version(8), "does not exist yet"),
        (repeat_id, "in it twice"),
        (mix_groups, "not 2 groups of 2"),
        (drop_one, "not 2 groups of 2"),
    ],
)
def test_a_batch_that_breaks_a_rule(spoil: Callable[[list[pb.TrainingRollout]], None], problem: str) -> None:
    rollouts = batch()
    spoil(rollouts)
    with pytest.raises(MalformedMessage, match=f"batch of step {STEP + 1}") as caught:
        check_batch(rollouts, STEP, RULES, TrainedIds())
    assert problem in caught.value.cause


def test_nothing_is_trained_on_twice() -> None:
    with pytest.raises(MalformedMessage) as caught:
        check_batch(batch(), STEP, RULES, TrainedIds([(10, 20)]))
    assert "rollout 20 was trained on before" in caught.value.cause


def too_long(rollout: pb.TrainingRollout) -> None:
    rollout.segments.append(segment(7, 3))


def no_segment(rollout: pb.TrainingRollout) -> None:
    del rollout.segments[:]


def no_prompt(rollout: pb.TrainingRollout) -> None:
    del rollout.prompt_token_ids[:]


def unknown_token(rollout: pb.TrainingRollout) -> None:
    rollout.prompt_token_ids[0] = 10


def bad_reward(rollout: pb.TrainingRollout) -> None:
    rollout.reward = float("nan")


def no_temperature(rollout: pb.TrainingRollout) -> None:
    rollout.sampling.temperature = 0.0


def too_many_agents(rollout: pb.TrainingRollout) -> None:
    rollout.agents = 17


def bad_mask(rollout: pb.TrainingRollout) -> None:
    rollout.segments[0].loss_mask = b"\1"


@pytest.mark.parametrize(
    "spoil", [too_long, no_segment, no_prompt, unknown_token, bad_reward, no_temperature, bad_mask, too_many_agents]
)
def test_malformed_rollouts_are_refused(spoil: Callable[[pb.TrainingRollout], None]) -> None:
    rollouts = batch()
    spoil(rollouts[2])
    with pytest.raises(MalformedMessage):
        check_batch(rollouts, STEP, RULES, TrainedIds())


@pytest.mark.parametrize(
    ("routes", "kept"),
    [(b"", b""), (b"\0\2\1\3", b"\0\2\1\3"), (b"\2\0\1\3", None), (b"\0\2", None), (b"\0\2\1\4", None)],
)
def test_routes_are_checked_once_more_where_they_are_replayed(routes: bytes, kept: bytes | None) -> None:
    rollouts = batch()
    rollouts[1].segments[1].routes = routes
    assert check_batch(rollouts, STEP, RULES, TrainedIds())[1].segments[1].routes == b""
    replayed = replace(RULES, routes=RouteShape(layers=1, experts=4, experts_per_token=2))
    if kept is not None:
        assert check_batch(rollouts, STEP, replayed, TrainedIds())[1].segments[1].routes == kept
    else:
        with pytest.raises(MalformedMessage):
            check_batch(rollouts, STEP, replayed, TrainedIds())


@pytest.mark.parametrize(("number", "tokens", "fits"), [(0, 1, True), (0, 2, False), (1, 3, True), (1, 1, False)])
def test_routes_of_a_context_are_for_all_tokens_before(number: int, tokens: int, fits: bool) -> None:
    rollouts, rules = batch(), replace(RULES, routes=RouteShape(layers=1, experts=4, experts_per_token=1))
    rollouts[0].segments[number].context_routes = b"\3" * tokens
    if fits:
        assert check_batch(rollouts, STEP, rules, TrainedIds())[0].segments[number].context_routes == b"\3" * tokens
    else:
        with pytest.raises(MalformedMessage, match="context of another length"):
            check_batch(rollouts, STEP, rules, TrainedIds())


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 60)))
def test_it_is_a_set(ids: list[int]) -> None:
    trained, model = TrainedIds(), set[int]()
    for rollout_id in ids:
        assert trained.add(rollout_id) == (rollout_id not in model)
        model.add(rollout_id)
    assert len(trained) == len(model)
    assert all((rollout_id in trained) == (rollout_id in model) for rollout_id in range(-1, 62))
    again = TrainedIds((start, end) for start, end in trained.ranges())
    assert again.ranges() == trained.ranges()


def test_neighbours_merge_into_one_range() -> None:
    trained = TrainedIds()
    for rollout_id in (5, 7, 6, 1):
        trained.add(rollout_id)
    assert trained.ranges() == [[1, 1], [5, 7]]


@pytest.mark.parametrize("ranges", [[(3, 2)], [(1, 4), (4, 6)]])
def test_invalid_ranges_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="overlap"):
        TrainedIds(ranges)


def test_an_episode_is_as_old_as_its_oldest_assistant_segment_and_trains_on_no_other() -> None:
    said = pb.Segment(role=pb.TOOL, peer_id="environment", packed_ids=pack_ids([1, 2]), loss_mask=b"\0\0")
    rollouts = batch()
    rollouts[0].segments.insert(1, said)
    (row, *_) = check_batch(rollouts, STEP, RULES, TrainedIds())
    assert [part.role for part in row.segments] == ["assistant", "tool", "assistant"]
    rollouts[0].segments[1].loss_mask = b"\0\1"
    with pytest.raises(MalformedMessage, match="what an environment said"):
        check_batch(rollouts, STEP, RULES, TrainedIds())
    del rollouts[0].segments[:]
    rollouts[0].segments.append(said)
    with pytest.raises(MalformedMessage, match="no token of the policy"):
        check_batch(rollouts, STEP, RULES, TrainedIds())
