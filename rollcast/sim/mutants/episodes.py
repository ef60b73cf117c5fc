"""Define the bugs to plant into episodes: their turns, their age, and what their environments say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.decisions import episodes, rollouts
from coordinator.core.decisions.episodes import Episodes
from coordinator.core.events.actions import AnswerUpload
from coordinator.core.events.episode_events import EpisodeStepped
from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.episodes import Episode, Game
from rollcast.sim.mutants.planting import Mutant, Patch
from rollcast.sim.settings import Lengths
from rollcast.sim.store.tables import Tables

#: Settings of the fleet in which bugs of episodes are hunted: every second problem has an environment.
_EPISODES = {"turns_most": 4, "environment_faults": 0.05, "lengths": Lengths(most=64)}


def _acknowledge_turns_at_once(take: Any) -> Any:
    def mutated(self: Episodes, event: Any, attempt: Attempt, *args: Any) -> Any:
        actions = take(self, event, attempt, *args)
        self._storing[attempt.key].uploads.clear()
        return [*actions, AnswerUpload(event.upload_id, attempt.lease_id, attempt.sample_index, True, "")]

    return mutated


def _without_turns(open_groups: Any) -> Any:
    return lambda self: [replace(group, turns={}) for group in open_groups(self)]


def _trained_observation(observation: Any) -> Any:
    def mutated(role: Any, token_ids: tuple[int, ...]) -> Any:
        return replace(observation(role, token_ids), loss_mask=b"\1" * len(token_ids))

    return mutated


def _keep_reward(reopen: Any) -> Any:
    def mutated(self: Game, episode: Any) -> None:
        rewards = [one.reward for one in self.players]
        reopen(self, episode)
        for one, reward in zip(self.players, rewards, strict=True):
            one.reward = reward

    return mutated


def _first_reward_for_all(rewards_of: Any) -> Any:
    def mutated(self: EpisodeStepped, agents: int) -> Any:
        return (rewards_of(self, agents)[0],) * agents

    return mutated


def _one_by_one(_together: Any) -> Any:
    return list


MUTANTS = (
    Mutant(
        "turn-acknowledged-before-commit",
        "I1",
        "a turn is acknowledged when it is passed to the store, not when it is durable",
        (Patch(Episodes, "take", _acknowledge_turns_at_once),),
        _EPISODES,
    ),
    Mutant(
        "turns-forgotten-at-restart",
        "I1",
        "a restarted coordinator restores no turns of episodes that go on",
        (Patch(Tables, "open_groups", _without_turns),),
        _EPISODES,
    ),
    Mutant(
        "observations-trained",
        "episode",
        "the loss mask covers what environments say",
        (Patch(episodes, "observation", _trained_observation),),
        _EPISODES,
    ),
    Mutant(
        "replayed-turns-rewarded-again",
        "episode",
        "an environment that is opened again and sent the recorded turns gives their rewards once more",
        (Patch(Game, "reopen", _keep_reward),),
        _EPISODES,
    ),
    Mutant(
        "age-of-the-newest-turn",
        "I3",
        "the age of an episode is that of its newest turn",
        (Patch(Episode, "oldest_version", lambda _original: Episode.newest_version),),
        _EPISODES,
    ),
    Mutant(
        "agents-stored-one-by-one",
        "episode",
        "the episodes of a game's agents are stored, or given up, in one transaction each",
        (Patch(episodes, "together", _one_by_one), Patch(rollouts, "together", _one_by_one)),
        _EPISODES | {"agents": 2, "samples_per_group": 4},
    ),
    Mutant(
        "agents-rewarded-alike",
        "episode",
        "every agent of a game gets the reward of the first one",
        (Patch(EpisodeStepped, "rewards_of", _first_reward_for_all),),
        _EPISODES | {"agents": 2, "samples_per_group": 4},
    ),
)
