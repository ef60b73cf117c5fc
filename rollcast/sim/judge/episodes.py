"""Judge episodes: no turn is lost, and nothing that an environment said is trained.

A turn that was acknowledged must be there after any crash, until its episode is given up for a reason that the
coordinator recorded, or is stored as a rollout (I1). What is stored must be what the environment says to these turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.core.events import actions as act
from coordinator.core.events.episode_events import OpenEpisode
from coordinator.core.events.restored import Restored
from rollcast.sim.engine import STOP_TOKEN, tokens_of
from rollcast.sim.environment import answer, opening, rewards, speaker
from rollcast.sim.settings import FleetSettings
from rollcast.wire.rollouts import packed_of
from rollcast.wire.token_ids import pack_ids, unpack_ids

Key = tuple[int, int]  # lease and sample index
Slot = tuple[int, int]  # group and sample index
Ended = tuple[act.StoreEpisode, Slot, int]  # what is stored of one agent, its slot, and the slot's seed


@dataclass(slots=True)
class Turn:
    """A turn that was passed to the store, by the attempt that made it."""

    key: Key
    tokens: tuple[int, ...]
    durable: bool = False
    acknowledged: bool = False


@dataclass(slots=True)
class _Side:
    """What one agent's episode has to be."""

    seed: int
    turns: int = 0
    expected: list[int] = field(default_factory=list)
    masks: bytearray = field(default_factory=bytearray)
    reward: float = 0.0

    def take(self, said: Sequence[int], tokens: tuple[int, ...]) -> bool:
        """Append a turn after what was said before it; return whether it follows from the seed and its place."""
        start = len(self.expected) + len(said)
        self.expected += [*said, *tokens]
        self.masks += bytes(len(said)) + b"\1" * len(tokens)
        self.turns += 1
        sampled = tokens_of(self.seed, start, len(self.expected))
        return self.seed < 0 or tokens in (tuple(sampled), (*sampled[:-1], STOP_TOKEN))

    def differs(self, action: act.StoreEpisode) -> str:
        """Return how what is stored differs from it; empty if it does not."""
        rollout = action.rollout
        if rollout.packed_completion != pack_ids(self.expected):
            return "its tokens are not those of its turns and its environment"
        if b"".join(segment.loss_mask for segment in rollout.segments) != bytes(self.masks):
            return "its loss mask is not that of the assistant's tokens"
        if any((b"\1" in one.loss_mask) != (one.role == "assistant") for one in rollout.segments):
            return "its loss mask has what an environment said"
        return "" if action.reward == self.reward else f"its reward is {action.reward}, not {self.reward}"


class EpisodeBooks:
    """The turns of episodes that go on, and the seeds of environments."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self.turns: dict[Slot, list[Turn]] = {}
        self.stored = 0  # turns, over the whole run
        self._by_key: dict[Key, Turn] = {}
        self._seeds: dict[str, int] = {}  # of the environment of each problem
        self._ending: dict[int, tuple[Slot, list[Turn]]] = {}  # by rollouts that are not durable yet

    def pending(self, key: Key) -> Turn | None:
        """Return the turn that this attempt made; None if it made none."""
        return self._by_key.get(key)

    def opened(self, action: OpenEpisode) -> str:
        """Note an environment's seed; return what is wrong with it."""
        known = self._seeds.setdefault(action.problem_id, action.seed)
        return "" if known == action.seed else f"the environment of {action.problem_id} has another seed than before"

    def take(self, action: act.StoreTurn) -> str:
        """Note a turn that is being stored; return what is wrong with it."""
        rollout = action.rollout
        slot, key = (int(rollout.group_id), rollout.sample_index), (int(rollout.lease_id), rollout.sample_index)
        turns = self.turns.setdefault(slot, [])
        turn = Turn(key, rollout.completion_token_ids)
        turns.append(turn)
        self._by_key[key] = turn
        self.stored += 1
        return "" if action.turn == len(turns) - 1 else f"turn {action.turn} of the slot {slot} is not the next one"

    def durable(self, key: Key) -> None:
        """Note that the turn of an attempt is durable."""
        if key in self._by_key:
            self._by_key[key].durable = True

    def acknowledge(self, key: Key) -> str:
        """Note that the turn of an attempt was acknowledged; return what is wrong with it."""
        turn = self._by_key.get(key)
        if turn is None:
            return ""
        turn.acknowledged = True
        return (
            "" if turn.durable else f"the turn of lease {key[0]}, sample {key[1]} is acknowledged before it is stored"
        )

    def drop(self, slot: Slot) -> None:
        """Note that a slot's turns were given up."""
        for turn in self.turns.pop(slot, []):
            self._by_key.pop(turn.key, None)

    def drop_group(self, group_id: int) -> None:
        """Note that a group ended with all turns in it."""
        for slot in [slot for slot in self.turns if slot[0] == group_id]:
            self.drop(slot)

    def end(self, ended: Sequence[Ended]) -> str:
        """Note a game whose episodes are stored in place of its turns; return what is wrong with it."""
        turns = [self.turns.get(slot, []) for _, slot, _ in ended]
        problem = self._wrong(ended, turns)
        for (action, slot, _), own in zip(ended, turns, strict=True):
            self._ending[action.rollout_id] = (slot, own)
            self.turns.pop(slot, None)
        return problem

    def ended(self, rollout_id: int) -> bool:
        """Note that a rollout is durable; return whether it is an episode's."""
        ending = self._ending.pop(rollout_id, None)
        for turn in [] if ending is None else ending[1]:
            self._by_key.pop(turn.key, None)
        return ending is not None

    def _wrong(self, ended: Sequence[Ended], turns: Sequence[Sequence[Turn]]) -> str:
        """Return why the episodes are not what their turns and their environment make of them; empty if they are."""
        agents, slots = self._settings.agents, [slot for _, slot, _ in ended]
        if not slots or slots != [(slots[0][0], slots[0][1] + agent) for agent in range(agents)]:
            return f"the slots {slots} are not those of one game"
        environment = self._seeds.get(ended[0][0].problem_id)
        if environment is None or not all(turns) or slots[0][1] % agents:
            return "an episode without an environment, or without a turn"
        sides = [_Side(seed) for _, _, seed in ended]
        said = opening(environment)
        for number in range(sum(map(len, turns))):
            agent = speaker(environment, number, agents)
            if sides[agent].turns == len(turns[agent]):
                return f"another agent acted than the environment named, in turn {number}"
            turn = turns[agent][sides[agent].turns]
            if not sides[agent].take(said, turn.tokens):
                return f"turn {number} does not follow from the seed and its place"
            said, step, _ = answer(environment, number, turn.tokens, self._settings.turns_most, agents)
            given = rewards(environment, number, turn.tokens, agents) if agents > 1 else (step,)
            for side, reward in zip(sides, given, strict=True):
                side.reward += reward
        problems = (side.differs(action) for side, (action, _, _) in zip(sides, ended, strict=True))
        return next(filter(None, problems), "")

    def _torn(self, restored: Restored) -> list[str]:
        """Return the games of several agents of which a crash left only a part."""
        agents, found = self._settings.agents, list[str]()
        groups = [group for group in restored.groups if agents > 1 and group.prompt.environment]
        for group in groups:
            filled = {one.attempt.sample_index for one in group.rollouts}
            environment = self._seeds.get(group.prompt.problem_id, 0)
            for first in range(0, self._settings.samples_per_group, agents):
                slots = range(first, first + agents)
                made = [len(group.turns.get(index, ())) for index in slots]
                order = Counter(speaker(environment, turn, agents) for turn in range(sum(made)))
                ended = filled.intersection(slots)
                if ended and (len(ended) < agents or sum(made)):
                    found.append(f"of the game at slot {first} of group {group.group_id} only a part ended")
                elif [order[agent] for agent in range(agents)] != made:
                    found.append(f"of the game at slot {first} of group {group.group_id} turns are missing: {made}")
        return found

    def restarted(self, restored: Restored) -> list[str]:
        """Compare what was acknowledged with a restarted coordinator's state; return what is lost."""
        found = {
            (int(group.group_id), index): [
                Turn((int(one.lease_id), index), unpack_ids(packed_of(one.generated)), True) for one in turns
            ]
            for group in restored.groups
            for index, turns in group.turns.items()
        }
        durable = {int(one.rollout_id) for group in restored.groups for one in group.rollouts}
        promised = {**self.turns, **{slot: turns for one, (slot, turns) in self._ending.items() if one not in durable}}
        open_groups = {int(group.group_id) for group in restored.groups}
        lost = self._torn(restored)
        lost += [
            f"the acknowledged turn {number} of the slot {slot} is lost"
            for slot, turns in sorted(promised.items())
            if slot[0] in open_groups
            for number, turn in enumerate(turns)
            if turn.acknowledged and [one.tokens for one in found.get(slot, [])][number : number + 1] != [turn.tokens]
        ]
        lost += [
            f"the group {slot[0]} with an acknowledged turn is lost"
            for slot, turns in sorted(promised.items())
            if slot[0] not in open_groups and any(turn.acknowledged for turn in turns)
        ]
        for slot, turns in found.items():
            for before, turn in zip(promised.get(slot, []), turns, strict=False):
                turn.acknowledged = before.acknowledged and before.tokens == turn.tokens
        self.turns, self._ending = found, {}
        self._by_key = {turn.key: turn for turns in found.values() for turn in turns}
        return lost
