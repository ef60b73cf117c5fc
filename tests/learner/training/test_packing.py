from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from learner.objective.config import ObjectiveConfig
from learner.training.packing import NO_VERSION, TrainingRow, pack, pack_examples
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment, SegmentRole


def segment(tokens: tuple[int, ...], version: int, role: SegmentRole = "assistant") -> Segment:
    trained = b"\x01" if role == "assistant" else b"\x00"
    return Segment(role, Epoch(0), Version(version), PeerId("p"), tokens, trained * len(tokens))


def row(rollout_id: int, *segments: Segment, reward: float = 0.0, group_id: int = 0) -> TrainingRow:
    return TrainingRow(rollout_id, group_id, (2, 3), segments, 0.5 + rollout_id, reward)


def test_rows_are_prompt_and_segments_padded_on_the_right() -> None:
    packed = pack(
        [row(0, segment((4, 5), 7)), row(1, segment((6,), 8))],
        time=5,
        objective=ObjectiveConfig(),
        completion_tokens_max=4,
    )
    assert packed.tokens.tolist() == [[2, 3, 4, 5, 0], [2, 3, 6, 0, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 0, 0]]
    assert packed.segments.tolist() == [[1] * 4 + [0], [1] * 3 + [0] * 2]
    assert packed.loss_mask.tolist() == [[False, False, True, True, False], [False, False, True, False, False]]
    assert packed.temperature.tolist() == [[0.5] * 4 + [0.0], [1.5] * 3 + [0.0] * 2]
    assert (packed.tokens.dtype, packed.positions.dtype) == (np.int32, np.int32)


def test_segments_keep_their_version_and_untrained_ones_have_none() -> None:
    mixed = row(0, segment((4,), 7), segment((5, 6), 7, "tool"), segment((8,), 9))
    packed = pack([mixed, row(1, segment((4,), 9))], time=6, objective=ObjectiveConfig(), completion_tokens_max=4)
    none = NO_VERSION
    assert packed.token_versions.tolist() == [[none, none, 7, none, none, 9], [none, none, 9, none, none, none]]
    assert packed.versions() == [7, 9]


def test_advantages_come_from_the_group() -> None:
    rows = [row(i, segment((4,), 0), reward=float(i == 0), group_id=i // 2) for i in range(4)]
    packed = pack(rows, time=3, objective=ObjectiveConfig(), completion_tokens_max=4)
    np.testing.assert_allclose(packed.advantages[:, 2], [0.9998, -0.9998, 0.0, 0.0], atol=1e-6)
    assert np.all(packed.advantages[:, :2] == 0.0)


def test_rewards_are_at_the_last_trained_token_and_weights_are_the_whole_batchs() -> None:
    rows = [row(0, segment((4, 5), 0), segment((6,), 0, "tool"), reward=1.0), row(1, segment((4,), 0), reward=0.5)]
    packed = pack(rows, time=6, objective=ObjectiveConfig(), completion_tokens_max=4)
    assert packed.rewards.tolist() == [[0.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.0, 0.0, 0.0]]
    third = np.float32(1 / 3)
    assert packed.weights.tolist() == [[0.0, 0.0, third, third, 0.0, 0.0], [0.0, 0.0, third, 0.0, 0.0, 0.0]]
    assert packed.select(np.array([1])).weights.tolist() == packed.weights[1:].tolist()


def test_selected_rows_are_a_batch_of_their_own() -> None:
    packed = pack(
        [row(i, segment((4 + i,), i)) for i in range(3)], time=3, objective=ObjectiveConfig(), completion_tokens_max=4
    )
    chosen = packed.select(np.array([2, 0]))
    assert chosen.tokens[:, 2].tolist() == [6, 4]
    assert chosen.temperature[:, 0].tolist() == [2.5, 0.5]


def test_rollouts_that_share_a_row_are_laid_out_one_behind_the_other() -> None:
    rows = [row(0, segment((4,), 7), reward=1.0), row(1, segment((5, 6, 7), 8)), row(2, segment((8,), 8))]
    packed = pack(rows, time=7, objective=ObjectiveConfig(), completion_tokens_max=4, shared=True)
    assert packed.tokens.tolist() == [[2, 3, 5, 6, 7, 0, 0], [2, 3, 4, 2, 3, 8, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 0, 0], [0, 1, 2, 0, 1, 2, 0]]
    assert packed.segments.tolist() == [[1] * 5 + [0] * 2, [1] * 3 + [2] * 3 + [0]]
    assert packed.temperature[1].tolist() == [0.5] * 3 + [2.5] * 3 + [0.0]
    assert packed.rewards[1].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert packed.token_versions[1].tolist() == [NO_VERSION, NO_VERSION, 7, NO_VERSION, NO_VERSION, 8, NO_VERSION]
    assert packed.sequences_per_row == 2
    apart = pack(rows, time=7, objective=ObjectiveConfig(), completion_tokens_max=4)
    for name in ("advantages", "weights"):
        together = getattr(packed, name)[packed.loss_mask]
        assert sorted(together.tolist()) == sorted(getattr(apart, name)[apart.loss_mask].tolist())


def test_rollouts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="rollout 3 has 4 tokens, more than 3"):
        pack([row(3, segment((4, 5), 0))], time=3, objective=ObjectiveConfig(), completion_tokens_max=4)
    short = dataclasses.replace(segment((4, 5), 0), loss_mask=b"\x01")
    with pytest.raises(ValueError, match="rollout 3: loss mask"):
        pack([row(3, short)], time=9, objective=ObjectiveConfig(), completion_tokens_max=4)


def test_examples_train_on_their_answers() -> None:
    packed = pack_examples([((2, 3), (4, 1)), ((2,), (1,))], time=4)
    assert packed.tokens.tolist() == [[2, 3, 4, 1], [2, 1, 0, 0]]
    assert packed.loss_mask.tolist() == [[False, False, True, True], [False, True, False, False]]
    with pytest.raises(ValueError, match="an example has 5 tokens"):
        pack_examples([((2, 3), (4, 5, 1))], time=4)
