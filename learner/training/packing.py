"""Lay out a batch's rollouts as fixed-shape arrays: rows of prompt and completion, padded on the right.

A row holds one rollout, or several where packing is on. Pure: the same rollouts always give the same rows, which an
exact resume depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from learner.objective.advantages import advantages, shaped_rewards
from learner.objective.aggregates import token_weights
from learner.objective.config import ObjectiveConfig
from learner.objective.selection import counts
from rollcast.policy.kernels.cudnn import ROW_SEQUENCES_MAX
from rollcast.policy.noise import seed_words
from rollcast.wire.limits import AGENTS_MAX
from rollcast.wire.rollouts import Segment
from rollcast.wire.routes import RouteShape
from rollcast.wire.token_ids import id_array


def share_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the indices of the sequences of each row, by first fit in order of decreasing length.

    First-fit decreasing needs at most 11/9 of the smallest possible number of rows, plus 6/9 (Dosa 2007). A row has at
    most ROW_SEQUENCES_MAX sequences, because an attention kernel keeps sums for each.

    Raises:
        ValueError: a sequence is longer than ``capacity``.
    """
    if any(length > capacity for length in lengths):
        raise ValueError(f"a sequence of {max(lengths)} tokens does not fit into a row of {capacity}")
    rows: list[list[int]] = []
    left: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        fitting = (
            row for row, room in enumerate(left) if room >= lengths[index] and len(rows[row]) < ROW_SEQUENCES_MAX
        )
        place = next(fitting, None)
        if place is None:
            rows.append([])
            left.append(capacity)
            place = len(rows) - 1
        rows[place].append(index)
        left[place] -= lengths[index]
    return rows


# Version of tokens that no policy made: prompts, tools, padding.
NO_VERSION = -1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One scored rollout of a batch, not yet laid out."""

    rollout_id: int
    group_id: int
    prompt_token_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    temperature: float
    reward: float
    seed: int = 0  # 64 bits, the seed that its tokens were sampled with
    role: int = 0  # of its agent in a game of several; below AGENTS_MAX

    @property
    def compared_with(self) -> int:
        """Return what rollouts have in common whose rewards are compared: the prompt group, and the agent's role.

        The difference between two agents of a game is that of their roles, and not of what they said.
        """
        return self.group_id * AGENTS_MAX + self.role

    @property
    def tokens(self) -> int:
        """Return the length of prompt and completion together, in tokens."""
        return len(self.prompt_token_ids) + sum(segment.token_count for segment in self.segments)

    def spans(self, start: int = 0) -> Iterator[tuple[Segment, slice]]:
        """Yield each segment with its columns in a row where the rollout begins at column ``start``."""
        start += len(self.prompt_token_ids)
        for segment in self.segments:
            end = start + segment.token_count
            yield segment, slice(start, end)
            start = end


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The rows of a batch; arrays are [rows, time], except seeds and routes."""

    tokens: Array  # i32, right-padded with 0
    positions: Array  # i32, index in the sequence
    segments: Array  # i32, 0 on padding, 1 .. for the sequences of a row
    loss_mask: Array  # bool, tokens that are trained on
    token_versions: Array  # i64, version that generated the token, NO_VERSION where none did
    temperature: Array  # f32, 0 on padding
    advantages: Array  # f32, advantage of the token's sequence; 0 with a critic, which computes it per token
    rewards: Array  # f32, the sequence's reward at its last trained token, 0 elsewhere
    weights: Array  # f32, weight of the token in the mean over the batch
    seeds: Array  # u32 [rows, time, 2], the words of the seed of the token's sequence
    routes: Array | None = None
    """With router replay: the experts that the engine chose when it read each token, u8 or u16
    [rows, time, layers, experts per token], or its dtype's maximum where it recorded none; 0 in rows of padding. None:
    the model routes all tokens."""
    route_versions: Array | None = (
        None  # i64, version under which a token's route was recorded, NO_VERSION where none was
    )
    sequences_per_row: int = 1  # upper bound of segments
    places: tuple[tuple[int, slice], ...] = ()  # row and columns of each rollout of the whole batch, in its order

    def routes_share(self) -> float:
        """Return the share of trained tokens whose route is known."""
        if self.routes is None:
            return 0.0
        known = self.routes[:, :-1, 0, 0] != np.iinfo(self.routes.dtype).max
        trained = int(np.count_nonzero(self.loss_mask))
        return int(np.count_nonzero(known & self.loss_mask[:, 1:])) / max(1, trained)

    def select(self, rows: Array | slice) -> PackedBatch:
        """Return some rows, by index, as a batch of their own; weights stay those of the whole batch."""
        arrays: dict[str, Any] = {name: leaf[rows] for name, leaf in self._leaves() if isinstance(leaf, np.ndarray)}
        return replace(self, **arrays)

    def prefixes(self, wanted: Array, version: int) -> PackedBatch:
        """Return each rollout as far as its last wanted token, laid out anew in rows of the same length.

        Rollouts without such a token are left out, with an empty place. Because attention is causal, a forward pass
        scores the tokens as it does in the whole rollout. Rollouts share rows where they do in this batch. Only what
        the forward pass reads is laid out.

        Args:
            wanted: bool [rows, time]; this must be the whole batch, in its own layout.
            version: the version of the forward pass. Only routes that were recorded under it are kept: if an engine
                that continued with it read the tokens before again, it chose other experts for them.
        """
        time = self.tokens.shape[1]
        lengths = [int(np.max(np.flatnonzero(wanted[place]), initial=-1)) + 1 for place in self.places]
        kept = [index for index, length in enumerate(lengths) if length]
        members = _members([lengths[index] for index in kept], time, shared=self.sequences_per_row > 1)
        batch = _empty(len(members), time, _sequences_per_row(members))
        places: list[tuple[int, slice]] = [(0, slice(0, 0))] * len(lengths)
        for line, own in enumerate(members):
            start = 0
            for number, index in enumerate(kept[one] for one in own):
                row, span = self.places[index]
                source = (row, slice(span.start, span.start + lengths[index]))
                places[index] = (line, slice(start, start + lengths[index]))
                for name in ("tokens", "positions", "temperature", "seeds"):
                    getattr(batch, name)[places[index]] = getattr(self, name)[source]
                batch.segments[places[index]] = number + 1
                start += lengths[index]
        routes = None if self.routes is None else self._routes_of(version, len(members), places)
        return replace(batch, places=tuple(places), routes=routes)

    def _routes_of(self, version: int, rows: int, places: Sequence[tuple[int, slice]]) -> Array:
        """Return the routes that were recorded under a version, with rollouts at these places of other rows."""
        assert self.routes is not None
        assert self.route_versions is not None
        no_route = np.iinfo(self.routes.dtype).max
        result = np.full((rows, *self.routes.shape[1:]), no_route, self.routes.dtype)
        for (row, span), place in zip(self.places, places, strict=True):
            source = (row, slice(span.start, span.start + place[1].stop - place[1].start))
            recorded = self.route_versions[source] == version
            result[place] = np.where(recorded[:, None, None], self.routes[source], no_route)
        return result

    def _leaves(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


def pack(
    rows: Sequence[TrainingRow],
    *,
    time: int,
    objective: ObjectiveConfig,
    completion_tokens_max: int,
    shared: bool = False,
    routes: RouteShape | None = None,
) -> PackedBatch:
    """Lay out a batch in rows of ``time`` tokens, with rewards, advantages and weights as the objective defines them.

    Args:
        completion_tokens_max: length of the longest possible completion.
        shared: whether several rollouts share a row where they fit.
        routes: the shape of a token's route, with router replay; None: routes are left out.

    Raises:
        ValueError: a rollout is longer than ``time``, or a loss mask does not match its tokens.
    """
    batch = lay_out(rows, time=time, shared=shared, routes=routes)
    lengths = np.array([batch.loss_mask[place].sum() for place in batch.places], np.int64)
    scored = score(rows, lengths, objective, completion_tokens_max)
    values = zip(batch.places, scored.advantages, scored.rewards, scored.weights, strict=True)
    for place, advantage, reward, weight in values:
        mask = batch.loss_mask[place]
        batch.advantages[place] = advantage * mask
        batch.rewards[place] = reward * (mask & (np.cumsum(mask) == mask.sum()))
        batch.weights[place] = weight * mask
    return batch


def lay_out(
    rows: Sequence[TrainingRow], *, time: int, shared: bool = False, routes: RouteShape | None = None
) -> PackedBatch:
    """Lay out rollouts in rows of ``time`` tokens, without rewards, advantages and weights; see `pack`.

    Raises:
        ValueError: see `pack`.
    """
    for row in rows:
        if row.tokens > time:
            raise ValueError(f"rollout {row.rollout_id} has {row.tokens} tokens, more than {time}")
    members = _members([row.tokens for row in rows], time, shared=shared)
    batch = _empty(len(members), time, _sequences_per_row(members))
    places: list[tuple[int, slice]] = [(0, slice(0))] * len(rows)
    for line, own in enumerate(members):
        start = 0
        for number, index in enumerate(own):
            end = start + rows[index].tokens
            places[index] = (line, slice(start, end))
            _lay_out(rows[index], number + 1, batch, places[index])
            start = end
    batch = replace(batch, places=tuple(places))
    return batch if routes is None else _with_routes(batch, rows, routes)


def _members(lengths: Sequence[int], time: int, *, shared: bool) -> list[list[int]]:
    """Return the indices of the sequences of each row."""
    return share_rows(lengths, time) if shared else [[index] for index in range(len(lengths))]


def _sequences_per_row(members: Sequence[Sequence[int]]) -> int:
    """Return an upper bound of a row's sequences: a power of two, so that few different shapes are compiled."""
    most = max((len(own) for own in members), default=1)
    return 1 << (most - 1).bit_length()


def _empty(rows: int, time: int, sequences_per_row: int) -> PackedBatch:
    shape = (rows, time)
    return PackedBatch(
        tokens=np.zeros(shape, np.int32),
        positions=np.zeros(shape, np.int32),
        segments=np.zeros(shape, np.int32),
        loss_mask=np.zeros(shape, bool),
        token_versions=np.full(shape, NO_VERSION, np.int64),
        temperature=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
        rewards=np.zeros(shape, np.float32),
        weights=np.zeros(shape, np.float32),
        seeds=np.zeros((*shape, 2), np.uint32),
        sequences_per_row=sequences_per_row,
    )


def _lay_out(row: TrainingRow, number: int, batch: PackedBatch, place: tuple[int, slice]) -> None:
    """Write one rollout as sequence ``number`` of its row."""
    line, span = place
    tokens, loss_mask, versions = (leaf[line, span] for leaf in (batch.tokens, batch.loss_mask, batch.token_versions))
    tokens[: len(row.prompt_token_ids)] = row.prompt_token_ids
    _pack_segments(row, tokens, loss_mask, versions)
    batch.positions[place] = np.arange(row.tokens)
    batch.segments[place] = number
    batch.temperature[place] = row.temperature
    batch.seeds[place] = seed_words(row.seed)


def _with_routes(batch: PackedBatch, rows: Sequence[TrainingRow], shape: RouteShape) -> PackedBatch:
    """Return a batch with the routes of its rollouts.

    The route of a generated token belongs to the token before it, which the engine read to predict it. The routes of a
    context count for the tokens that have no other.
    """
    routes = np.full((*batch.tokens.shape, shape.layers, shape.experts_per_token), shape.no_route, shape.dtype)
    versions = np.full(batch.tokens.shape, NO_VERSION, np.int64)
    for row, (line, span) in zip(rows, batch.places, strict=True):
        for segment, columns in row.spans(span.start - 1):
            if segment.context_routes:
                missing = span.start + np.flatnonzero(versions[line, span.start : columns.start] == NO_VERSION)
                routes[line, missing] = shape.from_bytes(segment.context_routes)[missing - span.start]
                versions[line, missing] = segment.version
            if segment.routes:
                routes[line, columns] = shape.from_bytes(segment.routes)
                versions[line, columns] = segment.version
    return replace(batch, routes=routes, route_versions=versions)


@dataclass(frozen=True, slots=True)
class Scored:
    """Rewards, advantages and weights of a batch's rollouts; f64 [rollouts] each."""

    rewards: Array  # shaped (overlong penalty applied)
    advantages: Array
    weights: Array  # weight of each trained token of the rollout


def score(
    rows: Sequence[TrainingRow], lengths: Array, objective: ObjectiveConfig, completion_tokens_max: int
) -> Scored:
    """Score rollouts by the objective; ``lengths`` is the number of trained tokens of each, i64 [rollouts]."""
    raw = np.array([row.reward for row in rows], np.float64)
    groups = np.array([row.compared_with for row in rows], np.int64)
    rewards = shaped_rewards(raw, lengths, completion_tokens_max, objective.overlong_share)
    values = advantages(objective, rewards, groups)
    times = counts(objective, values, groups, [row.rollout_id for row in rows])
    return Scored(rewards, values, token_weights(objective, lengths, values, groups, completion_tokens_max, times))


def _pack_segments(row: TrainingRow, tokens: Array, loss_mask: Array, versions: Array) -> None:
    for segment, span in row.spans():
        if len(segment.loss_mask) != segment.token_count:
            raise ValueError(f"rollout {row.rollout_id}: loss mask and tokens of a segment differ in length")
        tokens[span] = id_array(segment.packed_ids)
        trained = np.frombuffer(segment.loss_mask, np.uint8).astype(bool)
        loss_mask[span] = trained
        versions[span] = np.where(trained, segment.version, NO_VERSION)


@dataclass(frozen=True, slots=True)
class Example:
    """A supervised example: token ids, and which of them are trained on."""

    token_ids: Array  # i32 [tokens]
    trained: Array  # bool [tokens]

    @classmethod
    def of(cls, prompt: Sequence[int], answer: Sequence[int]) -> Example:
        """Return an example whose answer is trained on, and whose prompt is not."""
        tokens = np.array([*prompt, *answer], np.int32)
        return cls(tokens, np.arange(len(tokens)) >= len(prompt))

    def __len__(self) -> int:
        return len(self.token_ids)


def pack_examples(rows: Sequence[Sequence[Example]], *, time: int, sequences_per_row: int = 1) -> PackedBatch:
    """Lay out supervised examples, given by the row that they share, as a batch whose loss is their cross-entropy.

    Every advantage is 1 and weights are equal, so the objective's gradient term is the mean log-probability of the
    tokens that are trained on. Their versions are NO_VERSION: no policy made them.

    Args:
        sequences_per_row: a power of two that no row's number of examples exceeds.

    Raises:
        ValueError: the examples of a row are longer than ``time``.
    """
    batch = _empty(len(rows), time, sequences_per_row)
    for line, examples in enumerate(rows):
        start = 0
        for number, example in enumerate(examples, 1):
            end = start + len(example)
            if end > time:
                raise ValueError(f"the examples of a row have {end} tokens, more than its {time}")
            place = (line, slice(start, end))
            batch.tokens[place], batch.loss_mask[place] = example.token_ids, example.trained
            batch.positions[place] = np.arange(len(example))
            batch.segments[place] = number
            batch.temperature[place] = 1.0
            start = end
    batch.advantages[:] = batch.loss_mask
    batch.weights[:] = batch.loss_mask / max(batch.loss_mask.sum(), 1)
    return batch
