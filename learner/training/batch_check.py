"""Check a batch before training on it: age, repetition, form. The coordinator ensures these rules already. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

from learner.training.packing import TrainingRow
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.limits import AGENTS_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import segment_from_pb, tokens_from_pb
from rollcast.wire.rollouts import Segment, packed_of
from rollcast.wire.routes import RouteShape
from rollcast.wire.token_ids import unpack_ids

_FIX = "this is a bug of Rollcast, not of your configuration: please report it with the run's logs"


def signal_of(
    rows: Sequence[TrainingRow], completion_tokens_max: int, stop_token_ids: Container[int]
) -> dict[str, float]:
    """Return what a batch's rewards and lengths say about whether there is something to learn from.

    ``flat_groups_share``: of the prompt groups, those in which all rewards are equal, which have no advantage. Each
    role of a game's agents counts as a group of its own.
    ``cut_short_share``: of the rollouts, those whose completion has as many tokens as it may have, and no end.
    """
    rewards: dict[int, set[float]] = {}
    for row in rows:
        rewards.setdefault(row.compared_with, set()).add(row.reward)
    cut = sum(
        row.tokens - len(row.prompt_token_ids) >= completion_tokens_max
        and row.segments[-1].token_ids[-1] not in stop_token_ids
        for row in rows
    )
    return {
        "reward_mean": sum(row.reward for row in rows) / len(rows),
        "flat_groups_share": sum(len(one) == 1 for one in rewards.values()) / len(rewards),
        "cut_short_share": cut / len(rows),
    }


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The rules that every batch of a run follows."""

    staleness_limit: int  # S, in learner steps
    groups_per_step: int
    samples_per_group: int
    vocabulary_size: int
    row_tokens: int  # longest prompt plus longest completion
    routes: RouteShape | None = None  # the shape of a token's route, with router replay

    @property
    def rollouts(self) -> int:
        """Return the number of rollouts in a batch."""
        return self.groups_per_step * self.samples_per_group

    @property
    def routes_bytes_max(self) -> int:
        """Return the most bytes that the routes of a batch have."""
        return 0 if self.routes is None else self.rollouts * self.row_tokens * self.routes.token_bytes


def check_batch(
    rollouts: Sequence[pb.TrainingRollout], step: int, rules: BatchRules, trained: Container[int]
) -> list[TrainingRow]:
    """Check the batch of ``step`` and return its rollouts as rows for packing, in their order.

    Raises:
        MalformedMessage: a rollout is too old, from the future, trained on before, twice in the batch, or malformed; or
            the batch is not made of whole groups.
    """
    rows = rows_of(rollouts, rules)
    for row in rows:
        versions = [segment.version for segment in row.segments if segment.is_generated]
        if row.rollout_id in trained:
            raise _broken(step, f"rollout {row.rollout_id} was trained on before")
        if step - min(versions) > rules.staleness_limit:
            age = step - min(versions)
            raise _broken(step, f"rollout {row.rollout_id} has age {age}, the limit is {rules.staleness_limit}")
        if max(versions) > step:
            raise _broken(step, f"rollout {row.rollout_id} names version {max(versions)}, which does not exist yet")
    if len({row.rollout_id for row in rows}) != len(rows):
        raise _broken(step, "a rollout is in it twice")
    sizes = Counter(row.group_id for row in rows)
    if len(sizes) != rules.groups_per_step or set(sizes.values()) != {rules.samples_per_group}:
        raise _broken(step, f"it is not {rules.groups_per_step} groups of {rules.samples_per_group}")
    return rows


def rows_of(rollouts: Sequence[pb.TrainingRollout], rules: BatchRules) -> list[TrainingRow]:
    """Return rollouts that are no batch as rows for packing, in their order.

    Raises:
        MalformedMessage: a rollout is malformed.
    """
    return [_row(rollout, rules) for rollout in rollouts]


def _row(rollout: pb.TrainingRollout, rules: BatchRules) -> TrainingRow:
    segments = tuple(segment_from_pb(segment, routes=rules.routes) for segment in rollout.segments)
    prompt = tokens_from_pb(rollout.prompt_token_ids)
    tokens = prompt + unpack_ids(packed_of(segments))
    if not segments or not prompt or len(tokens) > rules.row_tokens:
        raise MalformedMessage(
            f"rollout {rollout.rollout_id} has {len(prompt)} prompt tokens, {len(segments)} segments and "
            f"{len(tokens)} tokens, of at most {rules.row_tokens}",
            fix=_FIX,
        )
    if not any(segment.is_generated for segment in segments):
        raise MalformedMessage(f"rollout {rollout.rollout_id} has no token of the policy", fix=_FIX)
    if any(b"\1" in segment.loss_mask for segment in segments if not segment.is_generated):
        raise MalformedMessage(
            f"rollout {rollout.rollout_id} would train on what an environment said",
            cause="the loss mask of a tool or user segment is not 0",
            fix=_FIX,
        )
    if rollout.agents > AGENTS_MAX:
        what = f"rollout {rollout.rollout_id} is of a game of {rollout.agents} agents, of at most {AGENTS_MAX}"
        raise MalformedMessage(what, fix=_FIX)
    _check_context_routes(rollout.rollout_id, segments, len(prompt), rules.routes)
    numbers = (rollout.reward, rollout.sampling.temperature)
    if max(tokens) >= rules.vocabulary_size or not all(map(math.isfinite, numbers)) or numbers[1] <= 0.0:
        raise MalformedMessage(
            f"rollout {rollout.rollout_id} has a token, a reward or a temperature out of range", fix=_FIX
        )
    return TrainingRow(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        prompt_token_ids=prompt,
        segments=segments,
        temperature=rollout.sampling.temperature,
        reward=rollout.reward,
        seed=rollout.seed,
        role=rollout.sample_index % max(rollout.agents, 1),
    )


def _check_context_routes(
    rollout_id: int, segments: Sequence[Segment], prompt_tokens: int, shape: RouteShape | None
) -> None:
    before = prompt_tokens
    for segment in segments:
        expected = 0 if shape is None else (before - 1) * shape.token_bytes
        if len(segment.context_routes) not in (0, expected):
            raise MalformedMessage(f"rollout {rollout_id} has routes for a context of another length", fix=_FIX)
        before += segment.token_count


def _broken(step: int, cause: str) -> MalformedMessage:
    return MalformedMessage(f"the batch of step {step + 1} breaks the run's rules", cause=cause, fix=_FIX)
