"""Take an episode through its turns: a lease, a stored turn, the environment's answer, and the next lease or its end.

    upload ─► checks ─► turn stored, acknowledged ─► environment steps ─┬► the slot is leased again, after all segments
                                                                        └► the episode is stored as the slot's rollout

A turn is durable before it is acknowledged (I1), and its attempt stays open until the environment has answered: then it
either fills the slot or is counted as a turn. An environment that fails, or does not answer, is opened again and is
sent the recorded turns; that costs time and no turn. See coordinator/core/leases/episodes.py for the data.

In a game of several agents the environment says whose slot is leased next. The last turn of an agent stays pending
until it acts again or the game ends, which it does for all agents in one transaction. The order of the turns is not
recorded: the environment, which is sent the recorded turns again, names the agents in the same order as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, AnswerUpload, CloseAttempt, DropTurns, Note, StoreTurn, together
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
from coordinator.core.leases.episodes import Episode, EpisodeEnd, Game, Restart
from coordinator.core.leases.groups import Group
from coordinator.core.leases.partials import bare
from rollcast.wire.ids import EpisodeId, Step, UploadId
from rollcast.wire.limits import SEGMENTS_MAX
from rollcast.wire.rollout_messages import body_of, with_body
from rollcast.wire.rollouts import Rollout, Segment, observation, packed_turn

_UPLOADS_WAITING_MAX = 8  # repeated uploads of one turn that wait for it to be stored
_SEGMENTS_MAX = SEGMENTS_MAX // 2  # after which no turn begins: the peer needs room for segments of its own

#: Stores the episodes of a game that has ended as the rollouts of their slots, from this sample index on.
Finish = Callable[[Group, int, Game, EpisodeEnd], list[Action]]


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
        game, episode.last_peer = episode.game, event.peer_id
        game.stage = "storing"
        if game.begun_at is None:
            game.begun_at, game.issued_at = now, attempt.issued_at if attempt.load else None
        state.episodes.turns += 1
        state.partials.filled(attempt.group_id, attempt.sample_index)
        losers = state.book.take_turn(attempt, episode)
        self._storing[attempt.key] = _Storing(attempt, game.episode, [event.upload_id])
        stored = Rollout(
            *(rollout.lease_id, rollout.fencing_token, rollout.group_id, rollout.sample_index, generated),
            *(rollout.finish_reason, rollout.generate_s),
            body=body,
        )
        store = StoreTurn(game.episode, turn, event.peer_id, before, stored)
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

    def _step(self, group: Group, first: int, game: Game) -> list[Action]:
        """Send the environment the next turn that it has not answered, which is one of the agent that acts."""
        episode, number = game.acting, game.answered
        is_last = number == game.turn_count - 1 and not _is_leased(group, first)
        is_new = episode.pending is not None and is_last
        game.truncated = self._limit(game) if is_new else None
        game.stage = "stepping"
        self._state.episodes.asked(game.episode, self._state.now)
        turn = episode.turns[episode.answered]
        return [StepEpisode(game.episode, number, turn.token_ids, game.truncated is not None)]

    def _limit(self, game: Game) -> EpisodeEnd | None:
        """Return the limit that the game has reached with its last turn."""
        rules, sampling, agents = self._state.settings.episodes, self._state.sampling_now, len(game.players)
        segments = sum(len(turn.segments) for turn in game.acting.turns)
        if game.turn_count >= rules.turns_max * agents:
            return "turns"
        if not game.all_acted:  # it would be of no use
            return None
        if game.acting.tokens >= sampling.max_new_tokens:
            return "tokens"
        if segments > _SEGMENTS_MAX:
            return "turns"
        return "time" if self._is_over_time(game) else None

    def _is_over_time(self, game: Game) -> bool:
        begun_at = game.begun_at
        return begun_at is not None and self._state.now - begun_at >= self._state.settings.episodes.seconds_max

    # ---------------------------------------------------------------- the environment

    def opened(self, event: EpisodeOpened, now: float) -> list[Action]:
        """Begin with the first turn, or send a new environment the turns that an earlier one answered."""
        found = self._find(event.episode, "opening")
        if found is None:
            return []
        group, first, game = found
        problem = self._malformed(event.prompt_tokens, event.speaker, game)
        if problem:
            return self._failed(group, first, game, problem, False)
        said = observation("user", event.prompt_tokens) if event.prompt_tokens else None
        self._answered(game)
        replayed = self._replay(group, first, game, event.speaker, said)
        return self._go_on(group, first, game, said, now) if replayed is None else replayed

    def stepped(self, event: EpisodeStepped, now: float) -> list[Action]:
        """Go on with the next turn, end the game, or go on with sending recorded turns."""
        found = self._find(event.episode, "stepping")
        if found is None or event.turn != found[2].answered:
            return []
        group, first, game = found
        tokens = () if event.done else event.observation_tokens
        rewards = event.rewards_of(len(game.players))
        problem = "" if len(rewards) == len(game.players) else f"it gave {len(rewards)} rewards"
        problem = problem or ("" if all(map(math.isfinite, rewards)) else "its reward is not a number")
        problem = problem or ("" if event.done else self._malformed(tokens, event.speaker, game))
        if problem:
            return self._failed(group, first, game, problem, False)
        said = observation(event.observation_role, tokens) if tokens else None
        self._answered(game)
        game.acting.answered += 1
        for episode, reward in zip(game.players, rewards, strict=True):
            episode.reward += reward
        if event.done and game.answered < game.turn_count:
            return begin_anew(self._state, group, first, "changed")
        replayed = None if event.done else self._replay(group, first, game, event.speaker, said)
        if replayed is not None:
            return replayed
        end = self._end(event, game, said)
        return self._go_on(group, first, game, said, now) if end is None else self._ended(group, first, game, end)

    def _replay(self, group: Group, first: int, game: Game, speaker: int, said: Segment | None) -> list[Action] | None:
        """Let this agent act: send its next recorded turn; None if there is no turn that was not answered."""
        game.speaker = speaker
        episode = game.acting
        if episode.answered < len(episode.turns):
            if said != episode.turns[episode.answered].observation:
                return begin_anew(self._state, group, first, "changed")
            return self._step(group, first, game)
        if game.answered < game.turn_count or _is_leased(group, first, besides=episode):  # another agent acted before
            return begin_anew(self._state, group, first, "changed")
        return None

    def _end(self, event: EpisodeStepped, game: Game, said: Segment | None) -> EpisodeEnd | None:
        if event.done and game.truncated is None:
            return "done"
        if game.truncated is not None:
            return game.truncated
        added = 0 if said is None else said.token_count
        if game.acting.turns and game.acting.tokens + added >= self._state.sampling_now.max_new_tokens:
            return "tokens"
        return "time" if game.may_end and self._is_over_time(game) else None

    def _ended(self, group: Group, first: int, game: Game, end: EpisodeEnd) -> list[Action]:
        if _is_leased(group, first) or any(one.turns and one.pending is None for one in game.players):
            return begin_anew(self._state, group, first, "changed")  # it went on after this turn before
        if not game.all_acted:
            idle = next(number for number, one in enumerate(game.players) if not one.turns)
            return self._failed(group, first, game, f"the game ended before its agent {idle} had acted ({end})", False)
        return self._finish(group, first, game, end) + issue(self._state, self._state.now)

    def _go_on(self, group: Group, first: int, game: Game, said: Segment | None, now: float) -> list[Action]:
        """Have the next turn generated. The agent's last one is counted as a turn now: its answer is known."""
        state, actions, episode = self._state, list[Action](), game.acting
        if episode.pending is not None:
            attempt = state.book.end_turn(episode)
            state.accounts.turns += 1
            actions.append(CloseAttempt(attempt.lease_id, attempt.sample_index, NEXT_TURN))
        episode.observed(said)
        game.stage, game.ready_at = "ready", now
        state.book.episode_changed(group)
        state.members.reconsider(state.members.shares.take_set_aside())  # there is work that was not there before
        return actions + issue(state, now)

    def failed(self, event: EpisodeFailed) -> list[Action]:
        """Open the environment of an episode again, or drop its group if it failed too often, or for good."""
        found = self._find(event.episode)
        if found is None or found[2].stage not in ("opening", "stepping"):
            return []
        return self._failed(*found, event.reason, event.retryable)

    def _failed(self, group: Group, first: int, game: Game, reason: str, retryable: bool) -> list[Action]:
        state = self._state
        state.episodes.failures += 1
        game.environment_failed()
        note = Note("environment_failed", f"problem {group.prompt.problem_id}", reason)
        if retryable and game.failures <= state.settings.episodes.failures_max:
            closed = CloseEpisode(game.episode, "failed")
            state.episodes.closed(game.episode)
            return [note, closed, *state.open_game(group, first, game)]
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

    def _answered(self, game: Game) -> None:
        since = self._state.episodes.unanswered.pop(game.episode)
        self._state.forecast.environment_answered(self._state.now - since)
        game.environment_answered()

    def _malformed(self, tokens: tuple[int, ...], speaker: int, game: Game) -> str:
        """Return why an observation cannot be one; empty if it can. Environments are ours, and still have bugs."""
        vocabulary = range(self._state.settings.vocabulary_size)
        if speaker not in range(len(game.players)):
            return f"it names the agent {speaker} of {len(game.players)}"
        if tokens and not (min(tokens) in vocabulary and max(tokens) in vocabulary):
            return "it answered tokens that the vocabulary lacks"
        room = self._state.sampling_now.max_new_tokens
        if not game.players[speaker].turns and len(tokens) >= room:
            return f"its prompt has {len(tokens)} tokens, where fewer than {room} are allowed"
        return ""

    def _find(self, episode: EpisodeId, stage: str = "") -> tuple[Group, int, Game] | None:
        place = self._state.episodes.place(episode)
        if place is None:
            return None
        group = self._state.book.group(place[0])
        found = group.slots[place[1]].episode
        return None if found is None or (stage and found.game.stage != stage) else (group, place[1], found.game)

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


def _is_leased(group: Group, first: int, besides: Episode | None = None) -> bool:
    """Whether a turn of a game is being generated, by another agent than this one."""
    slots = (group.slots[index] for index in group.game_slots(first))
    return any(slot.live for slot in slots if slot.episode is not besides)


def begin_anew(state: CoreState, group: Group, first: int, reason: Restart) -> list[Action]:
    """Give up the turns of a game, all agents' at once, and begin again with a new environment."""
    episode = group.slots[first].episode
    if episode is None:
        raise ValueError(f"slot {first} of group {group.group_id} has no episode")
    game, slots = episode.game, group.game_slots(first)
    state.episodes.restarted[reason] += 1
    dropped: DropReason = "revoked" if reason == "changed" else reason
    live = [attempt for index in slots for attempt in group.slots[index].live]
    actions = state.close_attempts(live, dropped, notify_peers=True)
    actions += state.close_game(group, first, dropped)
    for index, one in zip(slots, game.players, strict=True):
        state.partials.filled(group.group_id, index)
        if one.turns:
            actions.append(DropTurns(group.group_id, index))
    return [*together(actions), *state.open_game(group, first, game.begun_anew())]


def begin_anew_if(state: CoreState, group: Group, reason: Restart, is_over: Callable[[Game], bool]) -> list[Action]:
    """Begin those games of a group anew for which this holds."""
    over = [first for first, game in group.games() if is_over(game)]
    return [action for first in over for action in begin_anew(state, group, first, reason)]


def drop_stale_turns(state: CoreState, step: Step, age_max: int) -> list[Action]:
    """Begin every game anew whose oldest assistant turn is too old for this step's batch."""

    def is_over(game: Game) -> bool:
        oldest = [one.oldest_version for one in game.players if one.oldest_version is not None]
        return bool(oldest) and step - min(oldest) > age_max

    if not len(state.episodes):
        return []
    return [action for group in state.book for action in begin_anew_if(state, group, "stale", is_over)]


def started(state: CoreState) -> list[Action]:
    """Open the environments of all slots that had an episode, or were to have one, before a restart.

    A crash may have come between a turn and the end of the other attempt at it, which came too late.
    """
    actions: list[Action] = []
    for group in state.book:
        for slot in group.slots:
            if slot.episode is not None and slot.episode.pending is not None:
                actions += state.close_attempts(list(slot.live), "late_duplicate", notify_peers=True)
        for first in group.firsts:
            slot = group.slots[first]
            if slot.filling is None:
                actions += state.open_game(group, first, None if slot.episode is None else slot.episode.game)
    return actions
