"""The actions and events of episodes: several turns between a policy and an environment, which make one rollout.

A problem whose prompt names an environment has one episode for each slot of its group. The core decides, and the shell
carries its actions out with a pool of trusted environments. The protocol of one episode:

    OpenEpisode ──► EpisodeOpened        the environment was reset with the seed
    StepEpisode ──► EpisodeStepped ...   once for each assistant turn, in order; the next turn only if not ``done``
    CloseEpisode                         its resources are freed; there is no answer

Instead of either answer there may be EpisodeFailed. At most one action of an episode is unanswered at any time. Each
opening has an id of its own, also where a slot's episode is opened again, so an answer for an id that is not open any
more is out of date and is ignored, and so are answers after a CloseEpisode.

After a restart of the coordinator, an episode is opened again with the same seed, and its stored turns are sent as
StepEpisode again. The environment has to answer as before: the core compares the tokens, and an episode whose
environment answers something else begins anew, and is counted.

Tokens go in and out, and nothing is tokenised twice: an answer has the tokens to append and never repeats earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollcast.wire.ids import EpisodeId

ObservationRole = Literal["tool", "user"]


@dataclass(frozen=True, slots=True)
class OpenEpisode:
    """Reset an environment for a problem; answered by EpisodeOpened or EpisodeFailed.

    ``environment`` and ``problem_id`` are those of the problem's prompt. ``seed`` is the same for every slot of the
    group and after a restart (63 bits), so that all episodes of the group have the same task.
    """

    episode: EpisodeId
    environment: str
    problem_id: str
    seed: int


@dataclass(frozen=True, slots=True)
class StepEpisode:
    """Send the environment an assistant turn of the agent that acts; answered by EpisodeStepped or EpisodeFailed.

    ``tokens`` are those that the policy generated in this turn, with the stop token, if it ended with one. ``turn``
    counts from 0, over all agents. ``truncated``: no further turn follows, because the episode reached a limit: the
    environment still gives its reward, and is done.
    """

    episode: EpisodeId
    turn: int
    tokens: tuple[int, ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class CloseEpisode:
    """Free the environment of an episode, whether or not an action of it is unanswered.

    ``reason``: "done", a limit, or why its rollout is not wanted any more.
    """

    episode: EpisodeId
    reason: str


@dataclass(frozen=True, slots=True)
class EpisodeOpened:
    """The environment of an episode was reset.

    ``prompt_tokens`` are appended to the prompt of the group, as a user segment, before the first assistant turn. They
    are empty where the prompt already has everything that the policy is told. ``speaker`` is the index of the agent
    that acts first, in a game of several.
    """

    episode: EpisodeId
    prompt_tokens: tuple[int, ...] = ()
    speaker: int = 0


@dataclass(frozen=True, slots=True)
class EpisodeStepped:
    """The environment answered an assistant turn.

    ``observation_tokens`` are appended to the episode before its next assistant turn, as one segment of this role: the
    rendered observation with everything that the chat template puts between two assistant turns, up to where the next
    one begins. They are ignored if ``done``. ``reward`` is that of this step: an episode's reward is the sum over its
    turns, and has to be finite.

    In a game of several agents ``speaker`` is the index of the one that acts next, and is shown the observation:
    appended to its own episode, which others do not see. ``rewards`` are those of all agents then, by index.
    """

    episode: EpisodeId
    turn: int
    observation_tokens: tuple[int, ...]
    observation_role: ObservationRole
    reward: float
    done: bool
    speaker: int = 0
    rewards: tuple[float, ...] = ()

    def rewards_of(self, agents: int) -> tuple[float, ...]:
        """Return the reward of each of so many agents."""
        return self.rewards if agents > 1 else (self.reward,)


@dataclass(frozen=True, slots=True)
class EpisodeFailed:
    """An environment hung, died or raised an exception: that is not a reward of 0, and nothing is trained.

    ``retryable``: whether a new environment may succeed. Then the episode is opened again and continues after its
    recorded turns, a limited number of times; otherwise, and after that, its group is dropped.
    """

    episode: EpisodeId
    reason: str
    retryable: bool


EpisodeAction = OpenEpisode | StepEpisode | CloseEpisode
EpisodeEvent = EpisodeOpened | EpisodeStepped | EpisodeFailed
