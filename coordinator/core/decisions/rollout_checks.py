"""Whether what a peer says it drew can be what it claims. Bounds of every field were checked at the border.

Whatever passes here may be stored and trained on, so nothing may pass that the learner cannot compute with.
"""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.leases.groups import Prefix
from coordinator.core.leases.partials import bare, tokens_of
from rollcast.wire.ids import PeerId
from rollcast.wire.rollouts import PartialRollout, Rollout, Segment


def malformed_rollout(
    state: CoreState, peer_id: PeerId, rollout: Rollout, prefix: Prefix, text_end: int | None = None
) -> str:
    """Why this rollout cannot be what it claims, or empty. It must begin with what its slot was given, unchanged.

    text_end: see RolloutReceived; whoever drew the token behind it is to blame, so not where the prefix has it.
    """
    if not rollout.segments:
        return "uploaded a rollout without segments"
    if prefix and bare(rollout.segments[: len(prefix)]) != prefix:
        return "uploaded a rollout that does not begin with what it was to continue"
    for segment in rollout.segments[len(prefix) :]:
        problem = _malformed_segment(state, peer_id, segment)
        if problem:
            return problem
    tokens = rollout.completion_token_ids
    if not 0 < len(tokens) <= state.settings.sampling.max_new_tokens:
        return f"uploaded {len(tokens)} generated tokens"
    if any(stop in tokens[:-1] for stop in state.settings.sampling.stop_token_ids):
        return "uploaded a rollout that goes on after its end"
    if text_end is not None and tokens_of(prefix) < text_end < len(tokens):
        return "uploaded a rollout that goes on after a stop string"
    if not any(1 in segment.loss_mask for segment in rollout.segments):
        return "uploaded a rollout without a token to train on"
    return ""


def sent_past_its_end(prefix: Prefix, text_end: int | None) -> PeerId | None:
    """Who sent, as a part of a rollout that goes on, tokens that complete a stop string; None: nobody did."""
    if text_end is None or text_end > tokens_of(prefix):
        return None
    position = 0
    for segment in prefix:
        position += len(segment.token_ids)
        if text_end <= position:
            return segment.peer_id
    return None


def malformed_partial(state: CoreState, peer_id: PeerId, partial: PartialRollout) -> str:
    """Why this cannot be a part of a rollout that goes on, or empty."""
    for segment in partial.segments:
        problem = _malformed_segment(state, peer_id, segment)
        if problem:
            return problem
    return unfinished(state, partial.segments, partial.position)


def unfinished(state: CoreState, segments: Prefix, position: int = 0) -> str:
    """Why these tokens, after ``position`` others, leave nothing to draw; empty if they do."""
    tokens = position + tokens_of(segments)
    if tokens >= state.settings.sampling.max_new_tokens:
        return f"sent {tokens} tokens of a rollout as a part of it"
    if any(not {*segment.token_ids}.isdisjoint(state.settings.sampling.stop_token_ids) for segment in segments):
        return "sent a part of a rollout that has its end in it"
    return ""


def _malformed_segment(state: CoreState, peer_id: PeerId, segment: Segment) -> str:
    if segment.role != "assistant":
        return f"uploaded a segment of role {segment.role}, which nobody asked for"
    if segment.peer_id != peer_id:
        return "uploaded a segment that another peer made"
    if not state.is_published(segment.epoch, segment.version):
        return f"claims version {segment.version} of epoch {segment.epoch}, which was not published"
    if max(segment.token_ids, default=0) >= state.settings.vocabulary_size:
        return f"uploaded token {max(segment.token_ids)} of a vocabulary of {state.settings.vocabulary_size}"
    return ""
