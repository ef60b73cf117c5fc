"""Keep episodes: slots whose problem has an environment, which answers each assistant turn.

A game has one agent, or several, each of which has a slot and an episode of its own; the environment says which one
acts next. The turns of a game come one after the other, whoever acts.

    opening ──► ready ──► storing ──► stepping ──► ready ... until it ends
                 (leased)  (a turn)    (the environment answers)

An episode is made of turns. A turn is what the environment answered before it, then the tokens that the policy
generated: those of one lease, or of several if a lost attempt was continued. A lease of a later turn begins with all
segments before it as its prefix. Nothing that a peer sends can change them: it sends the new tokens and a digest of the
prefix. When the episode ends, all of it becomes one rollout.

All turns have the seed of their slot. Noise is keyed by the seed and by the position in prompt and completion, where
observations count too, so no two tokens of an episode share noise, and an audit replays the episode like any rollout.

After a restart, or a failure of the environment, a new environment is reset with the same seed and is sent the recorded
turns again (``answered`` counts them). If one then answers anything else, the episode begins anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from coordinator.core.leases.attempts import Attempt, Prefix
from rollcast.wire.ids import EpisodeId, GroupId, PeerId, Version
from rollcast.wire.rollouts import Segment, packed_of
from rollcast.wire.token_ids import unpack_ids

Stage = Literal["opening", "ready", "storing", "stepping"]

EpisodeEnd = Literal[
    "done",  # the environment ended it
    "turns",  # truncated: it had as many turns as it may have
    "tokens",  # truncated: no token is left of the longest completion
    "time",  # truncated: it took longer than it may
]

Restart = Literal[
    "stale",  # its oldest turn is older than the staleness limit allows
    "rolled_back",  # a turn was made with a version that an epoch orphaned
    "audit_failed",  # an audit convicted the peer of one of its turns
    "changed",  # the environment answered recorded turns otherwise than before
]


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn. ``observation``: what the environment answered before it; None: nothing.

    ``body`` is the rollcast.v1.Rollout in which it was uploaded, with evidence that ``generated`` lacks.
    """

    observation: Segment | None
    generated: Prefix
    body: bytes = field(repr=False)

    @property
    def segments(self) -> Prefix:
        """The observation before it, and what was generated."""
        return self.generated if self.observation is None else (self.observation, *self.generated)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The generated tokens."""
        return unpack_ids(packed_of(self.generated))


@dataclass(slots=True)
class Game:
    """What an environment plays: the episodes of all its agents, of which one acts at a time.

    Most games have one agent. Each agent has a slot of its own, one after the other, and so a trajectory of its own.
    Times are the core's clock in seconds.
    """

    episode: EpisodeId  # of this opening of its environment
    players: list[Episode] = field(default_factory=list)  # one for each agent
    speaker: int = 0  # the agent that acts, or acted last
    stage: Stage = "opening"
    truncated: EpisodeEnd | None = None  # the limit that the last turn reached
    failures: int = 0  # of its environment since it last got beyond the question at which one failed
    failed_at: int = -1  # the latest question at which one failed; see ``question``
    begun_at: float | None = None  # when its first turn was received; None before
    issued_at: float | None = None  # when that turn's lease was issued; None before, and if that is not known
    ready_at: float = 0.0

    @classmethod
    def of(cls, episode: EpisodeId, agents: int) -> Game:
        """Return a game with so many agents, none of which has acted."""
        game = cls(episode)
        game.players = [Episode(game) for _ in range(agents)]
        return game

    @property
    def acting(self) -> Episode:
        """The episode of the agent that acts, or acted last."""
        return self.players[self.speaker]

    @property
    def turn_count(self) -> int:
        """Number of turns of all agents."""
        return sum(len(one.turns) for one in self.players)

    @property
    def answered(self) -> int:
        """Turns of all agents that this opening of the environment has answered."""
        return sum(one.answered for one in self.players)

    @property
    def all_acted(self) -> bool:
        """Whether every agent has had a turn: otherwise there is nothing to train it on."""
        return all(one.turns for one in self.players)

    @property
    def may_end(self) -> bool:
        """Whether the last turn of every agent still waits for the end of the game."""
        return all(one.pending is not None for one in self.players)

    @property
    def question(self) -> int:
        """What its environment is asked: the turn that it has to answer, or -1 to begin."""
        return -1 if self.stage == "opening" else self.answered

    def environment_failed(self) -> None:
        """Count a failure of its environment."""
        self.failures += 1
        self.failed_at = max(self.failed_at, self.question)

    def environment_answered(self) -> None:
        """Count no earlier failure any more if this question is one at which no environment has failed, or a later one.

        Recorded turns that are answered again are no progress: an environment that fails at the same turn each time
        would be opened again without end.
        """
        if self.question >= self.failed_at:
            self.failures = 0

    def begun_anew(self) -> Game:
        """Return a game in place of this one, without its turns; how often its environment failed counts on."""
        game = Game.of(self.episode, len(self.players))
        game.failures, game.failed_at = self.failures, self.failed_at
        return game

    def reopen(self, episode: EpisodeId) -> None:
        """Begin with a new environment, which answers the recorded turns again."""
        self.episode, self.stage, self.truncated = episode, "opening", None
        for one in self.players:
            one.answered, one.reward = 0, 0.0


@dataclass(slots=True)
class Episode:
    """One agent's side of a game that goes on: what it said and was shown."""

    game: Game = field(repr=False)
    turns: list[Turn] = field(default_factory=list)
    observation: Segment | None = None  # answered after the last turn, or before the first one
    prefix: Prefix = ()  # with which the next turn begins
    answered: int = 0  # turns that this opening of the environment has answered
    reward: float = 0.0  # sum over the turns of the game
    pending: Attempt | None = None  # made the last turn: it fills the slot, or ends when the agent acts again
    last_peer: PeerId | None = None  # made the last turn, and may have it in its cache

    @property
    def may_be_leased(self) -> bool:
        """Whether the next turn may be generated: the agent acts now."""
        return self.game.stage == "ready" and self.game.acting is self

    @property
    def is_replayed(self) -> bool:
        """Whether the environment has still to answer turns that were answered before, or is opened for the first time.

        Then a peer's next turn has to wait.
        """
        return self.game.stage != "ready"

    @property
    def oldest_version(self) -> Version | None:
        """Version of the oldest assistant segment; None before the first turn."""
        return min((segment.version for turn in self.turns for segment in turn.generated), default=None)

    @property
    def newest_version(self) -> Version | None:
        """Version of the newest assistant segment; None before the first turn."""
        return max((segment.version for turn in self.turns for segment in turn.generated), default=None)

    @property
    def tokens(self) -> int:
        """Tokens of all turns, with what the environment answered between them."""
        return sum(segment.token_count for turn in self.turns for segment in turn.segments)

    def observed(self, observation: Segment | None) -> None:
        """Append what the environment answered: the next turn begins with everything so far."""
        self.observation = observation
        own = () if observation is None else (observation,)
        self.prefix = (*(segment for turn in self.turns for segment in turn.segments), *own)

    def add(self, generated: Prefix, body: bytes) -> Turn:
        """Append an assistant turn after the last observation."""
        turn = Turn(self.observation, generated, body)
        self.turns.append(turn)
        self.observation = None
        self.prefix += generated
        return turn


class EpisodeBook:
    """Finds the episodes that go on by their ids, and counts what became of them since the start."""

    def __init__(self, ids_before: int) -> None:
        self._last = ids_before
        self._places: dict[EpisodeId, tuple[GroupId, int]] = {}
        self.unanswered: dict[EpisodeId, float] = {}
        """Since when an environment has been asked, in order of the questions."""
        self.ended: Counter[EpisodeEnd] = Counter()
        self.restarted: Counter[Restart] = Counter()
        self.failures = 0  # of environments
        self.turns = 0  # stored

    def __len__(self) -> int:
        """Return the number of games that go on."""
        return len(self._places)

    def new_id(self, group_id: GroupId, sample_index: int) -> EpisodeId:
        """Return the id of a new opening of the environment of this slot, the first one of its game."""
        self._last += 1
        episode = EpisodeId(self._last)
        self._places[episode] = (group_id, sample_index)
        return episode

    def place(self, episode: EpisodeId) -> tuple[GroupId, int] | None:
        """Return the group of a game and its first sample index; None if this opening is over."""
        return self._places.get(episode)

    def asked(self, episode: EpisodeId, now: float) -> None:
        """Note that the environment has to answer from now on."""
        self.unanswered[episode] = now

    def closed(self, episode: EpisodeId) -> None:
        """Discard an opening that is over."""
        self._places.pop(episode, None)
        self.unanswered.pop(episode, None)

    def validate(self, going_on: Sequence[tuple[Game, tuple[GroupId, int]]]) -> None:
        """Raise AssertionError unless exactly these games go on, at these places."""
        assert {one.episode: place for one, place in going_on} == self._places, "episodes"
        asked = {one.episode for one, _ in going_on if one.stage in ("opening", "stepping")}
        assert asked == self.unanswered.keys(), "episodes whose environment was asked"
        for game, _ in going_on:
            is_ready = game.stage == "ready"
            for one in game.players:
                assert one.game is game, "an episode is of another game"
                assert one.answered <= len(one.turns), "an environment answered turns that do not exist"
                assert not is_ready or one.answered == len(one.turns), "an episode goes on before it was answered"
            assert not is_ready or game.acting.pending is None, "an answered turn is pending"
