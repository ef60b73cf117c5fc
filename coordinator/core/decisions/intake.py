"""What becomes of an uploaded rollout: refused for a counted reason, or stored, acknowledged, scored.

Whether what a peer says it drew can be what it claims. Bounds of every field were checked at the border.

Whatever passes here may be stored and trained on, so nothing may pass that the learner cannot compute with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, AnswerUpload, Note, Penalise, ScoreRollout, StoreRollout
from coordinator.core.events.events import (
    MalformedRollout,
    PartialReceived,
    RolloutReceived,
    RolloutScored,
    RolloutStored,
)
from coordinator.core.leases.drop_counts import DropReason, RefusalReason
from coordinator.core.leases.groups import Attempt, AttemptKey, Prefix
from coordinator.core.leases.partials import bare, tokens_of
from coordinator.core.staleness.age import age_at
from rollcast.wire.ids import PeerId, RolloutId, UploadId
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


_UPLOADS_WAITING_MAX = 8  # repeated uploads of one rollout that wait for it to be stored


@dataclass(slots=True)
class _Storing:
    """A rollout between StoreRollout and RolloutStored."""

    peer_id: PeerId
    rollout: Rollout
    uploads: list[UploadId]


class Intake:
    """Rollouts on their way into the store. Nothing is acknowledged before it is durable (I1)."""

    def __init__(self, state: CoreState, *, last_rollout: int) -> None:
        self._state = state
        self._storing: dict[RolloutId, _Storing] = {}
        self._storing_by_key: dict[AttemptKey, RolloutId] = {}
        self._scoring_since: dict[RolloutId, float] = {}
        self._last_rollout = last_rollout

    def received(self, event: RolloutReceived, now: float) -> list[Action]:
        """Check an upload, from the cheapest check to the dearest, and store what is good."""
        rollout = event.rollout
        key = (rollout.lease_id, rollout.sample_index)
        storing = self._storing_by_key.get(key)
        if storing is not None:
            return self._repeated_while_storing(event, self._storing[storing])
        attempt = self._state.book.live_attempt(key)
        if attempt is None:
            return self._answer_known(event, key)
        if attempt.peer_id != event.peer_id:
            return self._accuse(event, "uploaded under another peer's lease")
        if attempt.fencing_token != rollout.fencing_token or attempt.group_id != rollout.group_id:
            return self._accuse(event, "uploaded with a wrong fencing token")
        if self._state.book.unscored >= self._state.settings.scoring_queue_max:
            return [self._refuse(event, "busy")]
        if self._state.epochs.is_any_orphan(rollout.segments):
            return self._close(event, attempt, "rolled_back")  # it cannot know yet: not its fault
        if attempt.prefix is None and any(segment.peer_id != event.peer_id for segment in rollout.segments):
            return self._close(event, attempt, "revoked")  # it may go on from what a coordinator before us gave it
        prefix = attempt.prefix or ()
        culprit = sent_past_its_end(prefix, event.text_end)
        if culprit is not None:  # whoever went on from there could not know
            what = "sent a part of a rollout that has a stop string in it"
            return [self._penalise(culprit, what), *self._close(event, attempt, "revoked")]
        malformed = malformed_rollout(self._state, event.peer_id, rollout, prefix, event.text_end)
        if malformed:
            return [self._penalise(event.peer_id, malformed), *self._close(event, attempt, "malformed")]
        if rollout.finish_reason == "interrupted":  # somebody else goes on from there
            if event.text_end is None:
                self._keep_interrupted(attempt, rollout)
            return self._close(event, attempt, "returned")
        if age_at(self._state.batches.next_step, rollout.oldest_version) > self._state.rules.age_max:
            return self._close(event, attempt, "stale")
        return self._store(event, attempt, now)

    def partial(self, event: PartialReceived) -> list[Action]:
        """Keep what a running attempt drew; what is not of a live attempt of the peer's own is out of date."""
        partial = event.partial
        attempt = self._state.book.live_attempt((partial.lease_id, partial.sample_index))
        if attempt is None or attempt.peer_id != event.peer_id or attempt.fencing_token != partial.fencing_token:
            return []
        if self._state.epochs.is_any_orphan(partial.segments):
            return []
        malformed = malformed_partial(self._state, event.peer_id, partial)
        if malformed:
            return [self._penalise(event.peer_id, malformed)]
        self._state.partials.add(attempt, partial.position, bare(partial.segments))
        return []

    def _keep_interrupted(self, attempt: Attempt, rollout: Rollout) -> None:
        given = attempt.prefix or ()
        own = bare(rollout.segments[len(given) :])
        if own and not unfinished(self._state, own, tokens_of(given)):
            self._state.partials.add(attempt, tokens_of(given), own)

    def malformed(self, event: MalformedRollout) -> list[Action]:
        """The attempt that its sender made it for is over, as if it could be read; nobody else's is."""
        answer = AnswerUpload(event.upload_id, event.lease_id, event.sample_index, False, "malformed")
        attempt = self._state.book.live_attempt((event.lease_id, event.sample_index))
        if attempt is None or (attempt.peer_id, attempt.fencing_token) != (event.peer_id, event.fencing_token):
            self._state.accounts.uploads_refused["malformed"] += 1
            return [answer]
        what = f"uploaded what is no rollout: {event.problem}"
        return [self._penalise(event.peer_id, what), self._state.close_attempt(attempt, "malformed"), answer]

    def stored(self, event: RolloutStored, now: float) -> list[Action]:
        """Acknowledge, then have it scored unless its group was dropped meanwhile."""
        storing = self._storing.pop(event.rollout_id)
        rollout = storing.rollout
        del self._storing_by_key[(rollout.lease_id, rollout.sample_index)]
        self._state.accounts.accepted += 1
        standing = self._state.members.standing(storing.peer_id)
        standing.accepted += 1
        standing.returns = 0
        actions: list[Action] = [
            AnswerUpload(upload_id, rollout.lease_id, rollout.sample_index, True, "") for upload_id in storing.uploads
        ]
        group = self._state.book.mark_stored(event.rollout_id)
        if group is not None:
            self._scoring_since[event.rollout_id] = now
            actions.append(ScoreRollout(event.rollout_id, group.prompt.problem_id, rollout.completion_token_ids))
        return actions

    def scored(self, event: RolloutScored, now: float) -> list[Action]:
        """A rollout that could not be scored counts with reward 0, and is written down."""
        since = self._scoring_since.pop(event.rollout_id, None)
        if since is not None:
            self._state.forecast.scored(now - since)
        if not self._state.book.mark_scored(event.rollout_id, event.reward):
            return []
        if event.error or not math.isfinite(event.reward):
            return [Note("unscorable", f"rollout {event.rollout_id}", event.error or "the reward is not a number")]
        return []

    def _store(self, event: RolloutReceived, attempt: Attempt, now: float) -> list[Action]:
        self._state.forecast.answered(attempt, now)
        if attempt.load:  # else it is not known when it was issued
            self._state.generate_s.add(min(event.rollout.generate_s, now - attempt.issued_at))
        self._state.partials.filled(attempt.group_id, attempt.sample_index)
        self._last_rollout += 1
        rollout_id = RolloutId(self._last_rollout)
        losers = self._state.book.fill(attempt, rollout_id, event.rollout.oldest_version, event.rollout.newest_version)
        self._storing[rollout_id] = _Storing(event.peer_id, event.rollout, [event.upload_id])
        self._storing_by_key[attempt.key] = rollout_id
        actions: list[Action] = [StoreRollout(rollout_id, event.peer_id, event.rollout)]
        return actions + self._state.close_attempts(losers, "late_duplicate", tell_peers=True)

    def _repeated_while_storing(self, event: RolloutReceived, storing: _Storing) -> list[Action]:
        if event.peer_id != storing.peer_id or event.rollout.fencing_token != storing.rollout.fencing_token:
            return [self._refuse(event, "fenced")]
        if len(storing.uploads) >= _UPLOADS_WAITING_MAX:
            return [self._refuse(event, "busy")]
        storing.uploads.append(event.upload_id)
        return []

    def _answer_known(self, event: RolloutReceived, key: AttemptKey) -> list[Action]:
        """The attempt is over: the same answer as before, whoever asks again."""
        book = self._state.book
        filling, finished = book.filling_of(key), book.finished(key)
        if filling is not None and filling.attempt.peer_id == event.peer_id:
            return [self._accept(event)]
        if finished is None:  # never issued, or over for too long to be remembered
            return [self._refuse(event, "fenced")]
        if finished.stored and finished.peer_id == event.peer_id:
            return [self._accept(event)]
        if self._state.ended:
            return [self._refuse(event, "run_ended")]
        filled = not finished.stored and book.slot_is_filled(finished.group_id, event.rollout.sample_index)
        return [self._refuse(event, "late_duplicate" if filled else "fenced")]

    def _close(self, event: RolloutReceived, attempt: Attempt, reason: DropReason) -> list[Action]:
        closed = self._state.close_attempt(attempt, reason)
        return [closed, AnswerUpload(event.upload_id, attempt.lease_id, attempt.sample_index, False, reason)]

    def _penalise(self, peer_id: PeerId, what: str) -> Penalise:
        self._state.partials.doubt(peer_id)
        return Penalise(peer_id, what, False)

    def _accuse(self, event: RolloutReceived, what: str) -> list[Action]:
        return [Penalise(event.peer_id, what, False), self._refuse(event, "fenced")]

    def _accept(self, event: RolloutReceived) -> AnswerUpload:
        return AnswerUpload(event.upload_id, event.rollout.lease_id, event.rollout.sample_index, True, "")

    def _refuse(self, event: RolloutReceived, reason: RefusalReason) -> AnswerUpload:
        self._state.accounts.uploads_refused[reason] += 1
        return AnswerUpload(event.upload_id, event.rollout.lease_id, event.rollout.sample_index, False, reason)

    def validate(self) -> None:
        """Raise AssertionError when the two indices disagree."""
        keys = {(one.rollout.lease_id, one.rollout.sample_index): rid for rid, one in self._storing.items()}
        assert keys == self._storing_by_key, "rollouts being stored"
