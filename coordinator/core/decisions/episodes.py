"""Take an episode through its turns: a lease, a stored turn, the environment's answer, and the next lease or its end.

    upload ─► checks ─► turn stored, acknowledged ─► environment steps ─┬► the slot is leased again, after all segments
                                                                        └► the episode is stored as the slot's rollout

A turn is durable before it is acknowledged (I1), and its attempt stays open until the environment has answered: then it
either fills the slot or is counted as a turn. An environment that fails, or does not answer, is opened again and is
sent the recorded turns; that costs time and no turn. See coordinator/core/leases/episodes.py for the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.rollout_checks import packed_turn
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, AnswerUpload, CloseAttempt, DropTurns, Note, StoreTurn
from coordinator.core.events.episode_events import (
    CloseEpisode,
    EpisodeFailed,
    EpisodeOpened,
    EpisodeStepped,
    StepEpisode,
)
from coordinator.core.events.events import RolloutReceived, TurnStored
from coordinator.core.leases.attempts import Attempt, AttemptKey, Prefix
from coordinator.core.leases.drop_counts import NEXT_TURN, DropReason
from coordinator.core.leases.episodes import Episode, EpisodeEnd, Restart
from coordinator.core.leases.groups import Group
from coordinator.core.leases.partials import bare, tokens_of
from rollcast.wire.ids import EpisodeId, Step, UploadId
from rollcast.wire.limits import SEGMENTS_MAX
from rollcast.wire.rollouts import Rollout, Segment, body_of, observation, with_body

_UPLOADS_WAITING_MAX = 8  # repeated uploads of one turn that wait for it to be stored
_SEGMENTS_MAX = SEGMENTS_MAX // 2  # after which no turn begins: the peer needs room for segments of its own

#: Stores an episode that has ended as the rollout of its slot.
Finish = Callable[[Group, int, Episode, EpisodeEnd], list[Action]]


@dataclass(slots=True)
class _Storing:
    """A turn between StoreTurn and TurnStored."""

    attempt: Attempt
    episode: EpisodeId
    uploads: list[UploadId]


class Episodes:
    """Episodes from the first answer of their environment to their end."""

    def __init__(self, state: CoreState, finish: Finish) -> None:
        self._state = state
        self._finish = finish
        self._storing: dict[AttemptKey, _Storing] = {}

    # ---------------------------------------------------------------- a turn

    def repeated(self, event: RolloutReceived, key: AttemptKey) -> list[Action] | None:
        """Answer an upload whose turn is being stored; None if it is none."""
        storing = self._storing.get(key)
        if storing is None:
            return None
        rollout = event.rollout
        is_same = (event.peer_id, rollout.fencing_token) == (storing.attempt.peer_id, storing.attempt.fencing_token)
        if is_same and len(storing.uploads) < _UPLOADS_WAITING_MAX:
            storing.uploads.append(event.upload_id)
            return []
        reason = "busy" if is_same else "fenced"
        self._state.accounts.uploads_refused[reason] += 1
        return [AnswerUpload(event.upload_id, rollout.lease_id, rollout.sample_index, False, reason)]

    def take(
        self, event: RolloutReceived, attempt: Attempt, episode: Episode, segments: Prefix, now: float
    ) -> list[Action]:
        """Store a turn that passed all checks, and close the other attempt at the slot, which came too late.

        ``segments``: the whole completion so far. The sender had only the new ones in its message, unless the
        environment has said nothing yet.
        """
        state, rollout, known = self._state, event.rollout, len(episode.prefix)
        generated = bare(segments[known:])
        body = body_of(rollout)
        if len(rollout.segments) < len(generated):  # a lost attempt was continued: its tokens belong to this turn
            body = with_body(rollout, [*generated[: -len(rollout.segments)], body]).body
        turn = len(episode.turns)
        before = episode.add(generated, body).observation
        episode.stage, episode.last_peer = "storing", event.peer_id
        episode.begun_at = now if episode.begun_at is None else episode.begun_at
        state.episodes.turns += 1
        state.partials.filled(attempt.group_id, attempt.sample_index)
        losers = state.book.take_turn(attempt, episode)
        self._storing[attempt.key] = _Storing(attempt, episode.episode, [event.upload_id])
        stored = Rollout(
            *(rollout.lease_id, rollout.fencing_token, rollout.group_id, rollout.sample_index, generated),
            *(rollout.finish_reason, rollout.generate_s),
            body=body,
        )
        store = StoreTurn(episode.episode, turn, event.peer_id, before, stored)
        return [store, *state.close_attempts(losers, "late_duplicate", notify_peers=True)]

    def stored(self, event: TurnStored, delivered: Callable[[Attempt], None]) -> list[Action]:
        """Acknowledge a turn that is durable, and have the environment answer it unless the episode is over."""
        storing = self._storing.pop((event.lease_id, event.sample_index))
        delivered(storing.attempt)
        answers: list[Action] = [
            AnswerUpload(upload_id, event.lease_id, event.sample_index, True, "") for upload_id in storing.uploads
        ]
        found = self._find(storing.episode, "storing")
        return answers if found is None else [*answers, *self._step(*found)]

    def _step(self, group: Group, index: int, episode: Episode) -> list[Action]:
        """Send the environment the next turn that it has not answered."""
        number = episode.answered
        is_new = episode.pending is not None and number == len(episode.turns) - 1
        episode.truncated = self._limit(episode) if is_new else None
        episode.stage = "stepping"
        self._state.episodes.asked(episode.episode, self._state.now)
        turn = episode.turns[number]
        return [StepEpisode(episode.episode, number, turn.token_ids, episode.truncated is not None)]

    def _limit(self, episode: Episode) -> EpisodeEnd | None:
        """Return the limit that the episode has reached with its last turn."""
        rules, sampling = self._state.settings.episodes, self._state.sampling_now
        if tokens_of(segment for turn in episode.turns for segment in turn.segments) >= sampling.max_new_tokens:
            return "tokens"
        segments = sum(len(turn.segments) for turn in episode.turns)
        if len(episode.turns) >= rules.turns_max or segments > _SEGMENTS_MAX:
            return "turns"
        return "time" if self._is_over_time(episode) else None

    def _is_over_time(self, episode: Episode) -> bool:
        begun_at = episode.begun_at
        return begun_at is not None and self._state.now - begun_at >= self._state.settings.episodes.seconds_max

    # ---------------------------------------------------------------- the environment

    def opened(self, event: EpisodeOpened, now: float) -> list[Action]:
        """Begin with the first turn, or send a new environment the turns that an earlier one answered."""
        found = self._find(event.episode, "opening")
        if found is None:
            return []
        group, index, episode = found
        problem = self._malformed(event.prompt_tokens, ())
        if problem:
            return self._failed(group, index, episode, problem, False)
        said = observation("user", event.prompt_tokens) if event.prompt_tokens else None
        self._answered(episode)
        if not episode.turns:
            return self._go_on(group, episode, said, now)
        if said != episode.turns[0].observation:
            return begin_anew(self._state, group, index, "changed")
        return self._step(group, index, episode)

    def stepped(self, event: EpisodeStepped, now: float) -> list[Action]:
        """Go on with the next turn, end the episode, or go on with sending recorded turns."""
        found = self._find(event.episode, "stepping")
        if found is None or event.turn != found[2].answered:
            return []
        group, index, episode = found
        tokens = () if event.done else event.observation_tokens
        problem = "its reward is not a number" if not math.isfinite(event.reward) else ""
        problem = problem or self._malformed(tokens, episode.prefix)
        if problem:
            return self._failed(group, index, episode, problem, False)
        said = observation(event.observation_role, tokens) if tokens else None
        self._answered(episode)
        episode.reward += event.reward
        episode.answered += 1
        if episode.answered < len(episode.turns):
            if event.done or said != episode.turns[episode.answered].observation:
                return begin_anew(self._state, group, index, "changed")
            return self._step(group, index, episode)
        end = self._end(event, episode, said)
        if end is None:
            return self._go_on(group, episode, said, now)
        if episode.pending is None:  # it went on after this turn before
            return begin_anew(self._state, group, index, "changed")
        return self._finish(group, index, episode, end) + issue(self._state, now)

    def _end(self, event: EpisodeStepped, episode: Episode, said: Segment | None) -> EpisodeEnd | None:
        if event.done and episode.truncated is None:
            return "done"
        if episode.truncated is not None:
            return episode.truncated
        used = tokens_of(segment for turn in episode.turns for segment in turn.segments)
        added = 0 if said is None else said.token_count
        if used + added >= self._state.sampling_now.max_new_tokens:
            return "tokens"
        return "time" if episode.pending is not None and self._is_over_time(episode) else None

    def _go_on(self, group: Group, episode: Episode, said: Segment | None, now: float) -> list[Action]:
        """Have the next turn generated. The last one is counted as a turn now: its answer is known."""
        state, actions = self._state, list[Action]()
        if episode.pending is not None:
            attempt = state.book.end_turn(episode)
            state.accounts.turns += 1
            actions.append(CloseAttempt(attempt.lease_id, attempt.sample_index, NEXT_TURN))
        episode.observed(said)
        episode.stage, episode.ready_at = "ready", now
        state.book.episode_changed(group)
        state.members.changed(state.members.shares.take_set_aside())  # there is work that was not there before
        return actions + issue(state, now)

    def failed(self, event: EpisodeFailed) -> list[Action]:
        """Open the environment of an episode again, or drop its group if it failed too often, or for good."""
        found = self._find(event.episode)
        if found is None or found[2].stage not in ("opening", "stepping"):
            return []
        return self._failed(*found, event.reason, event.retryable)

    def _failed(self, group: Group, index: int, episode: Episode, reason: str, retryable: bool) -> list[Action]:
        state = self._state
        state.episodes.failures += 1
        episode.environment_failed()
        note = Note("environment_failed", f"problem {group.prompt.problem_id}", reason)
        if retryable and episode.failures <= state.settings.episodes.failures_max:
            closed = CloseEpisode(episode.episode, "failed")
            state.episodes.closed(episode.episode)
            return [note, closed, *state.open_episode(group, index, episode)]
        reasons: list[DropReason] = ["environment_failed"] * len(group.fillings())
        return [note, *state.drop_group(group, reasons, "environment_failed"), *issue(state, state.now)]

    def tick(self, now: float) -> list[Action]:
        """Treat environments that do not answer as failed."""
        answer_s, actions = self._state.settings.episodes.answer_s, list[Action]()
        late = []
        for episode, since in self._state.episodes.unanswered.items():
            if now - since < answer_s:
                break
            late.append(episode)
        for episode in late:
            actions += self.failed(EpisodeFailed(episode, f"it did not answer for {answer_s:g} s", True))
        return actions

    def _answered(self, episode: Episode) -> None:
        since = self._state.episodes.unanswered.pop(episode.episode)
        self._state.forecast.environment_answered(self._state.now - since)
        episode.environment_answered()

    def _malformed(self, tokens: tuple[int, ...], prefix: Prefix) -> str:
        """Return why an observation cannot be one; empty if it can. Environments are ours, and still have bugs."""
        vocabulary = range(self._state.settings.vocabulary_size)
        if tokens and not (min(tokens) in vocabulary and max(tokens) in vocabulary):
            return "it answered tokens that the vocabulary lacks"
        room = self._state.sampling_now.max_new_tokens - tokens_of(prefix)
        if not prefix and tokens and len(tokens) >= room:
            return f"its prompt has {len(tokens)} tokens, where fewer than {room} are allowed"
        return ""

    def _find(self, episode: EpisodeId, stage: str = "") -> tuple[Group, int, Episode] | None:
        place = self._state.episodes.place(episode)
        if place is None:
            return None
        group = self._state.book.group(place[0])
        found = group.slots[place[1]].episode
        return None if found is None or (stage and found.stage != stage) else (group, place[1], found)

    def validate(self) -> None:
        """Raise AssertionError when a turn that is being stored is not pending, and not over either."""
        for key, storing in self._storing.items():
            over = self._state.episodes.place(storing.episode) is None
            assert over or self._state.book.pending(key) is not None, "a turn being stored"


def prefix_of_lease(attempt: Attempt, episode: Episode | None) -> Prefix:
    """Return the segments that a lease of this attempt began with, also if an earlier coordinator issued it."""
    if attempt.prefix is not None:
        return attempt.prefix
    return () if episode is None else episode.prefix


def turn_so_far(attempt: Attempt, episode: Episode | None, rollout: Rollout) -> bytes:
    """Return the packed token ids of an uploaded rollout since the last answer of an environment."""
    given = prefix_of_lease(attempt, episode) if rollout.prefix_digest else ()
    return packed_turn((*given, *rollout.segments))


def begin_anew(state: CoreState, group: Group, index: int, reason: Restart) -> list[Action]:
    """Give up the turns of a slot's episode, and begin again with a new environment."""
    slot = group.slots[index]
    episode = slot.episode
    if episode is None:
        raise ValueError(f"slot {index} of group {group.group_id} has no episode")
    state.episodes.restarted[reason] += 1
    dropped: DropReason = "revoked" if reason == "changed" else reason
    actions = state.close_attempts(list(slot.live), dropped, notify_peers=True)
    actions += state.close_episode(group, index, dropped)
    state.partials.filled(group.group_id, index)
    if episode.turns:
        actions.append(DropTurns(group.group_id, index))
    return [*actions, *state.open_episode(group, index, episode.begun_anew(episode.episode))]


def begin_anew_if(state: CoreState, group: Group, reason: Restart, is_over: Callable[[Episode], bool]) -> list[Action]:
    """Begin those episodes of a group anew for which this holds."""
    actions: list[Action] = []
    for index, slot in enumerate(group.slots):
        if slot.episode is not None and is_over(slot.episode):
            actions += begin_anew(state, group, index, reason)
    return actions


def drop_stale_turns(state: CoreState, step: Step, age_max: int) -> list[Action]:
    """Begin every episode anew whose oldest assistant turn is too old for this step's batch."""

    def is_over(episode: Episode) -> bool:
        return episode.oldest_version is not None and step - episode.oldest_version > age_max

    if not len(state.episodes):
        return []
    return [action for group in state.book for action in begin_anew_if(state, group, "stale", is_over)]


def started(state: CoreState) -> list[Action]:
    """Open the environments of all slots that had an episode, or were to have one, before a restart.

    A crash may have come between a turn and the end of the other attempt at it, which came too late.
    """
    actions: list[Action] = []
    for group in state.book:
        for index, slot in enumerate(group.slots):
            if slot.episode is not None and slot.episode.pending is not None:
                actions += state.close_attempts(list(slot.live), "late_duplicate", notify_peers=True)
            if slot.filling is None:
                actions += state.open_episode(group, index, slot.episode)
    return actions
