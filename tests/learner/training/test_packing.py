"""Test sequences packed into rows, and rows split into micro-batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.config import MeshConfig
from learner.objective.config import ObjectiveConfig
from learner.training.mesh import make_mesh
from learner.training.micro_batches import FORWARD_ROWS, ForwardPasses, Gradients, Side, inputs, parts, rows_each
from learner.training.packing import NO_VERSION, Example, PackedBatch, TrainingRow, pack, pack_examples, share_rows
from rollcast.policy.kernels.cudnn import ROW_SEQUENCES_MAX
from rollcast.policy.params import Params
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import Segment, SegmentRole
from rollcast.wire.routes import RouteShape
from rollcast.wire.token_ids import pack_ids
from tests.learner.tiny import TIME, tiny_batch


def segment(tokens: tuple[int, ...], version: int, role: SegmentRole = "assistant") -> Segment:
    trained = b"\x01" if role == "assistant" else b"\x00"
    return Segment(role, Epoch(0), Version(version), PeerId("p"), pack_ids(tokens), trained * len(tokens))


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


def test_advantages_come_from_the_group() -> None:
    rows = [row(i, segment((4,), 0), reward=float(i == 0), group_id=i // 2) for i in range(4)]
    packed = pack(rows, time=3, objective=ObjectiveConfig(), completion_tokens_max=4)
    np.testing.assert_allclose(packed.advantages[:, 2], [0.9998, -0.9998, 0.0, 0.0], atol=1e-6)
    assert np.all(packed.advantages[:, :2] == 0.0)


def test_advantages_of_agents_come_from_their_role() -> None:
    rewards = [5.0, 0.0, 5.0, 1.0]  # the seller always has more than the buyer
    rows = [
        dataclasses.replace(row(i, segment((4,), 0), reward=reward), role=i % 2) for i, reward in enumerate(rewards)
    ]
    packed = pack(rows, time=3, objective=ObjectiveConfig(), completion_tokens_max=4)
    np.testing.assert_allclose(packed.advantages[:, 2], [0.0, -0.9998, 0.0, 0.9998], atol=1e-6)


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
    first, second = Example.of((2, 3), (4, 1)), Example.of((2,), (1,))
    packed = pack_examples([[first, second], [second]], time=6, sequences_per_row=2)
    assert packed.tokens.tolist() == [[2, 3, 4, 1, 2, 1], [2, 1, 0, 0, 0, 0]]
    assert packed.segments.tolist() == [[1, 1, 1, 1, 2, 2], [1, 1, 0, 0, 0, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 0, 1], [0, 1, 0, 0, 0, 0]]
    trained = np.array([[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(packed.loss_mask, trained)
    np.testing.assert_array_equal(packed.advantages, trained)
    np.testing.assert_allclose(packed.weights, trained / 4)
    with pytest.raises(ValueError, match="have 5 tokens, more than its 4"):
        pack_examples([[Example.of((2, 3), (4, 5, 1))]], time=4)


MESH = make_mesh(MeshConfig())


@pytest.mark.parametrize("shared", [False, True])
def test_rollouts_are_laid_out_again_as_far_as_their_last_wanted_token(shared: bool) -> None:
    rows = [row(0, segment((4, 5), 7), segment((6, 7), 9)), row(1, segment((8,), 9)), row(2, segment((4, 5, 6), 7))]
    packed = pack(rows, time=8, objective=ObjectiveConfig(), completion_tokens_max=4, shared=shared)
    again = packed.prefixes(packed.loss_mask & (packed.token_versions == 7), 7)
    assert [span.stop - span.start for _, span in again.places] == [4, 0, 5]
    for (line, span), own in zip(again.places, packed.places, strict=True):
        for name in ("tokens", "positions", "temperature"):
            whole = getattr(packed, name)[own]
            np.testing.assert_array_equal(getattr(again, name)[line, span], whole[: span.stop - span.start])
    assert len(again.tokens) == 2
    assert again.tokens.shape[1] == 8
    assert np.count_nonzero(again.segments) == 9


def test_rollouts_of_one_version_share_rows() -> None:
    rows = [row(index, segment((4, 5), index % 2)) for index in range(8)]
    packed = pack(rows, time=8, objective=ObjectiveConfig(), completion_tokens_max=4, shared=True)
    again = packed.prefixes(packed.loss_mask & (packed.token_versions == 1), 1)
    assert (len(packed.tokens), len(again.tokens)) == (4, 2)
    assert again.segments.tolist() == [[1] * 4 + [2] * 4] * 2


ROUTE = RouteShape(layers=2, experts=9, experts_per_token=1)


def routed(*segments: Segment, first: int) -> tuple[Segment, ...]:
    """Give the tokens of a rollout routes to experts from ``first`` on, the same in both layers."""
    result = []
    for one in segments:
        ids = np.arange(first, first + len(one.token_ids))
        result.append(dataclasses.replace(one, routes=ROUTE.to_bytes(np.tile(ids[:, None, None], (1, 2, 1)))))
        first += len(one.token_ids)
    return tuple(result)


@pytest.mark.parametrize("shared", [False, True])
def test_a_generated_token_sends_the_token_before_it_through_its_experts(shared: bool) -> None:
    rows = [
        row(0, *routed(segment((4, 5), 7), segment((6, 7), 9), first=1)),
        row(1, *routed(segment((8,), 9), first=6)),
        row(2, segment((4,), 9), *routed(segment((5, 6), 7), first=5)),
    ]
    layout = {"time": 12, "objective": ObjectiveConfig(), "completion_tokens_max": 4, "shared": shared}
    packed = pack(rows, **layout, routes=ROUTE)
    assert packed.routes is not None
    assert (packed.routes.shape, packed.routes.dtype) == ((*packed.tokens.shape, 2, 1), np.uint8)

    def experts(batch: PackedBatch) -> list[list[int]]:
        assert batch.routes is not None
        known = batch.routes != ROUTE.no_route
        assert np.count_nonzero(known) == sum(np.count_nonzero(known[place]) for place in batch.places)
        np.testing.assert_array_equal(batch.routes[:, :, 0], batch.routes[:, :, 1])
        return [batch.routes[place][:, 0, 0].tolist() for place in batch.places]

    # Without a record are the prompt but for its end, a rollout's last token, and what leads to a segment without one.
    no = ROUTE.no_route
    assert experts(packed) == [[no, 1, 2, 3, 4, no], [no, 6, no], [no, no, 5, 6, no]]
    assert experts(packed.prefixes(packed.loss_mask & (packed.token_versions == 7), 7)) == [
        [no, 1, 2, no],
        [],
        [no, no, 5, 6, no],
    ]
    # Version 9 read the tokens of version 7 again, and chose other experts for them, which are not known.
    assert experts(packed.prefixes(packed.loss_mask & (packed.token_versions == 9), 9)) == [
        [no, no, no, 3, 4, no],
        [no, 6, no],
        [no, no, no],
    ]
    assert packed.routes_share() == 7 / 8
    assert pack(rows, **layout).routes is None


def test_the_routes_of_a_context_count_where_there_are_no_others() -> None:
    def context(one: Segment, *experts: int) -> Segment:
        routes = ROUTE.to_bytes(np.tile(np.array(experts)[:, None, None], (1, 2, 1)))
        return dataclasses.replace(one, context_routes=routes)

    whole = routed(segment((4, 5), 7), segment((6,), 9), first=3)
    begun_by_another = segment((4, 5), 7), context(*routed(segment((6,), 9), first=3), 0, 1, 2)
    rows = [row(0, context(whole[0], 0), whole[1]), row(1, *begun_by_another)]
    packed = pack(rows, time=5, objective=ObjectiveConfig(), completion_tokens_max=4, routes=ROUTE)
    assert packed.routes is not None
    no = ROUTE.no_route
    assert packed.routes[:, :, 0, 0].tolist() == [[0, 3, 4, 5, no], [0, 1, 2, 3, no]]
    assert packed.routes_share() == 1.0
    older, newer = (packed.prefixes(packed.token_versions == version, version).routes for version in (7, 9))
    assert older is not None
    assert newer is not None
    assert older[:, :, 0, 0].tolist() == [[0, 3, 4, no, no], [no] * 5]
    assert newer[:, :, 0, 0].tolist() == [[no, no, no, 5, no], [0, 1, 2, 3, no]]


@pytest.mark.parametrize("rows", [1, 3, 5, 64])
def test_gradients_of_parts_add_up_to_those_of_the_whole(rows: int) -> None:
    values = np.arange(16.0, dtype=np.float32).reshape(8, 2)

    def loss(params: Params, part: jax.Array, sequences: int) -> tuple[jax.Array, Side]:
        assert part.shape[0] <= rows
        total = jnp.sum(part * params["slope"] ** 2)
        return total, ({"loss": total, "sequences": jnp.float32(sequences)}, part + 0.5)

    gradients, metrics, kept = Gradients(loss, MESH, 2 * rows).of({"slope": jnp.float32(3.0)}, values, 1)
    assert float(gradients["slope"]) == pytest.approx(6.0 * 120.0)
    assert float(metrics["loss"]) == pytest.approx(9.0 * 120.0)
    np.testing.assert_array_equal(np.concatenate(kept)[:8], values + 0.5)


def test_a_forward_pass_sees_every_row_once_in_passes_of_one_size() -> None:
    batch = tiny_batch([0.0] * (FORWARD_ROWS + 3))
    sizes = []

    def first_token(_params: Params, arrays: dict[str, Any]) -> jax.Array:
        sizes.append(arrays["tokens"].shape)
        return arrays["tokens"].astype(jnp.float32)

    np.testing.assert_array_equal(ForwardPasses(first_token, MESH, 1 << 20)({}, batch), batch.tokens)
    assert sizes == [(FORWARD_ROWS, TIME)], "one form for all passes"
    assert set(inputs(batch)) == {"tokens", "positions", "segments", "temperature", "seeds"}


def test_the_last_part_is_filled_up_with_nothing() -> None:
    found = list(parts({"a": np.ones((5, 2), np.float32), "b": None}, 3, MESH))
    assert [part["a"][:, 0].tolist() for part in found] == [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("rows", "tokens", "shards", "vary", "expected"),
    [
        (256, 640, 1, False, 64),
        (100, 640, 1, False, 50),  # two even parts
        (100, 640, 1, True, 64),
        (100, 640, 8, False, 56),
        (3, 640, 8, False, 8),
        (10, 5, 4, False, 4),  # a row is longer than a part: one for each device
    ],
)
def test_parts_are_even_multiples_of_the_devices(
    rows: int, tokens: int, shards: int, vary: bool, expected: int
) -> None:
    assert rows_each(rows, 10, tokens, shards, vary=vary) == expected


def test_long_sequences_come_first_and_short_ones_fill_up() -> None:
    assert share_rows([2, 7, 3, 6, 1], 10) == [[1, 2], [3, 0, 4]]
    assert share_rows([], 10) == []
    with pytest.raises(ValueError, match="11 tokens does not fit into a row of 10"):
        share_rows([11], 10)


def test_a_row_has_no_more_sequences_than_attention_keeps_sums_for() -> None:
    rows = share_rows([1] * (ROW_SEQUENCES_MAX + 1), 1000)
    assert [len(row) for row in rows] == [ROW_SEQUENCES_MAX, 1]


@given(st.lists(st.integers(1, 64), max_size=60))
@settings(deadline=None, max_examples=50)
def test_every_sequence_has_one_place_and_no_row_overflows(lengths: list[int]) -> None:
    rows = share_rows(lengths, 64)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= 64 for row in rows)
    assert 9 * len(rows) <= 11 * max(1, -(-sum(lengths) // 64) * 2) + 6
