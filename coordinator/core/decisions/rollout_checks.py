"""Check what a peer generated: whether it can be what it claims to be.

Nothing that decides how a rollout is trained is taken from its sender. The loss mask follows from the segments' role,
and how a rollout ends follows from its tokens and from its lease: with a stop token or stop string, or at the longest
length that was leased. A rollout that claims something else is malformed, because an honest engine cannot make it.

In an episode (coordinator/core/leases/episodes.py) each turn is checked like that on its own. What the environment
answered before is the coordinator's own and part of the prefix: a peer sends the prefix's digest, and assistant
segments only.
"""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.leases.attempts import Attempt, Prefix
from coordinator.core.leases.partials import bare
from rollcast.wire.ids import PeerId
from rollcast.wire.rollouts import (
    PartialRollout,
    Rollout,
    Segment,
    last_turn,
    packed_turn,
    prefix_digest,
    tokens_of,
    turn_start,
)
from rollcast.wire.token_ids import ID_BYTES, holds_any, id_count, last_id


def malformed_rollout(
    state: CoreState,
    peer_id: PeerId,
    rollout: Rollout,
    prefix: Prefix,
    text_end: int | None = None,
    longest: frozenset[int] = frozenset(),
) -> str:
    """Return why this rollout cannot be what it claims, empty if it can; it must begin with its attempt's prefix.

    longest: the lengths in tokens that its lease may have allowed as the longest; empty: that of the run.
    text_end: see RolloutReceived; it counts from the last answer of an environment, if there is one. The peer that
    generated the token behind it is to blame, so not this one where the prefix has it.
    """
    if not rollout.segments:
        return "uploaded a rollout without segments"
    if prefix and bare(rollout.segments[: len(prefix)]) != prefix:
        return "uploaded a rollout that does not begin with the prefix of its lease"
    for segment in rollout.segments[len(prefix) :]:
        problem = _malformed_segment(state, peer_id, segment)
        if problem:
            return problem
    start = turn_start(prefix)
    turn = packed_turn(rollout.segments)
    tokens = id_count(turn)
    before = tokens_of(prefix[:start])
    longest = frozenset(one - before for one in longest or {state.settings.sampling.max_new_tokens})
    limit = max(longest)
    if not 0 < tokens <= limit:
        return f"uploaded {tokens} generated tokens, where 1 to {limit} are allowed"
    if holds_any(turn[:-ID_BYTES], state.settings.sampling.stop_token_ids):
        return "uploaded a rollout with tokens after its stop token"
    if text_end is not None and tokens_of(prefix[start:]) < text_end < tokens:
        return "uploaded a rollout with tokens after a stop string"
    return _wrong_end(state, rollout, turn, text_end, longest)


def whole_of(rollout: Rollout, prefix: Prefix) -> Prefix | None:
    """Return the completion with its prefix, whose digest the peer sent; None if it is of another prefix.

    A peer leaves the prefix out exactly if an environment has answered in it: that is not the peer's to repeat.
    """
    if all(segment.is_generated for segment in prefix):
        return None if rollout.prefix_digest else rollout.segments
    if rollout.prefix_digest != prefix_digest(prefix):
        return None
    return (*prefix, *rollout.segments)


def _wrong_end(state: CoreState, rollout: Rollout, turn: bytes, text_end: int | None, longest: frozenset[int]) -> str:
    """Return why a rollout of these tokens does not end as it claims; empty if it does.

    A peer that decides where its rollouts end decides which of their tokens are trained on, and how they are scored.
    """
    sampling, tokens = state.settings.sampling, id_count(turn)
    stops = last_id(turn) in sampling.stop_token_ids or text_end == tokens
    if rollout.finish_reason == "stop" and not stops:
        return "uploaded a rollout that claims to have stopped, without a stop token or stop string at its end"
    if rollout.finish_reason == "length" and tokens not in longest:
        return f"uploaded {tokens} generated tokens as the longest length, which is {max(longest)}"
    return ""


def version_chosen(own: Prefix, attempt: Attempt) -> str:
    """Return why the versions of what a peer generated cannot be an honest one's; empty if they can.

    An honest peer's active version only rises. One that keeps the S + 1 versions which are young enough could generate
    with each of them, and choose among the answers. So it may use none older than one that it used before the lease,
    and go back to none within a rollout.
    """
    oldest = attempt.oldest_own_version
    for segment in own:
        if segment.version < oldest:
            return f"generated with version {segment.version} although it had used version {oldest} already"
        oldest = segment.version
    return ""


def sent_past_its_end(prefix: Prefix, text_end: int | None) -> PeerId | None:
    """Return the peer that sent, as a partial rollout, tokens that complete a stop string; None if there is none."""
    if text_end is None:
        return None
    turn = last_turn(prefix)
    if text_end > tokens_of(turn):
        return None
    position = 0
    for segment in turn:
        position += segment.token_count
        if text_end <= position:
            return segment.peer_id
    return None


def longest_of(state: CoreState, attempt: Attempt) -> frozenset[int]:
    """Return the lengths that an attempt's lease may have allowed as the longest: several after a restart."""
    return frozenset({attempt.new_tokens_max}) if attempt.new_tokens_max else state.settings.longest_lengths


def malformed_partial(
    state: CoreState, peer_id: PeerId, partial: PartialRollout, longest: frozenset[int] = frozenset()
) -> str:
    """Return why this cannot be a partial rollout, which continues; empty if it can."""
    for segment in partial.segments:
        problem = _malformed_segment(state, peer_id, segment)
        if problem:
            return problem
    return unfinished(state, partial.segments, partial.position, longest)


def unfinished(state: CoreState, segments: Prefix, position: int = 0, longest: frozenset[int] = frozenset()) -> str:
    """Return why these tokens, after ``position`` others, leave nothing to generate; empty if they do."""
    tokens = position + tokens_of(segments)
    if tokens >= max(longest, default=state.settings.sampling.max_new_tokens):
        return f"sent a partial rollout of {tokens} tokens, which is a whole one"
    if any(holds_any(segment.packed_ids, state.settings.sampling.stop_token_ids) for segment in segments):
        return "sent a partial rollout that contains a stop token"
    return ""


def _is_of_cell(state: CoreState, uploader: PeerId, author: PeerId) -> bool:
    """Whether the uploader is a cell, and the author may be a member of it: none of the run's own members is."""
    members = state.members
    return members.is_cell(uploader) and members.get(author) is None


def _malformed_segment(state: CoreState, peer_id: PeerId, segment: Segment) -> str:
    if segment.role != "assistant":
        return f"uploaded a segment of role {segment.role} instead of assistant"
    if segment.peer_id != peer_id and not _is_of_cell(state, peer_id, segment.peer_id):
        return "uploaded a segment generated by another peer"
    if segment.loss_mask != b"\1" * segment.token_count:
        return "uploaded a loss mask that leaves out tokens that the policy generated"
    if not state.announced.is_published(segment.epoch, segment.version):
        return f"claims version {segment.version} of epoch {segment.epoch}, which was not published"
    if segment.largest_id >= state.settings.vocabulary_size:
        return f"uploaded token {segment.largest_id}, beyond a vocabulary of {state.settings.vocabulary_size}"
    return ""
