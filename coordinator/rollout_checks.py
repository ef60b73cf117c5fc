"""Whether what a peer says it drew can be what it claims. Bounds of every field were checked at the border.

Whatever passes here may be stored and trained on, so nothing may pass that the learner cannot compute with.
"""

from __future__ import annotations

from coordinator.groups import Prefix
from coordinator.partials import bare, tokens_of
from coordinator.state import CoreState
from rollcast.wire.ids import PeerId
from rollcast.wire.rollouts import PartialRollout, Rollout, Segment


def malformed_rollout(state: CoreState, peer_id: PeerId, rollout: Rollout, prefix: Prefix) -> str:
    """Why this rollout cannot be what it claims, or empty. It must begin with what its slot was given, unchanged."""
    if not rollout.segments:
        return "uploaded a rollout without segments"
    if prefix and bare(rollout.segments[: len(prefix)]) != prefix:
        return "uploaded a rollout that does not begin with what it was to continue"
    for segment in rollout.segments[len(prefix) :]:
        problem = _malformed_segment(state, peer_id, segment)
        if problem:
            return problem
    tokens = len(rollout.completion_token_ids)
    if not 0 < tokens <= state.settings.sampling.max_new_tokens:
        return f"uploaded {tokens} generated tokens"
    if not any(1 in segment.loss_mask for segment in rollout.segments):
        return "uploaded a rollout without a token to train on"
    return ""


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
