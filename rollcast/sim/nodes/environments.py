"""Simulate the coordinator's pool of environments: it takes time to answer, and some environments hang or die."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from coordinator.core.events.episode_events import (
    EpisodeAction,
    EpisodeFailed,
    EpisodeOpened,
    EpisodeStepped,
    OpenEpisode,
    StepEpisode,
)
from coordinator.core.events.events import Event
from rollcast.sim.environment import answer, opening, rewards, speaker
from rollcast.sim.kernel.process import Process
from rollcast.sim.settings import FleetSettings
from rollcast.wire.ids import EpisodeId

_SPREAD = 0.5  # sigma of the logarithm of an answer's time


class Environments:
    """The environments of one life of the coordinator's process."""

    def __init__(self, settings: FleetSettings, process: Process, random: Random) -> None:
        self._settings = settings
        self._process = process
        self._random = random
        self._seeds: dict[EpisodeId, int] = {}

    def clear(self) -> None:
        """Discard every environment: the process ended."""
        self._seeds.clear()

    def carry_out(self, action: EpisodeAction, apply: Callable[[Event], None]) -> None:
        """Open, step or close an environment; ``apply`` receives the answer, if there ever is one."""
        match action:
            case OpenEpisode():
                self._seeds[action.episode] = action.seed
                first = speaker(action.seed, 0, self._settings.agents)
                self._later(EpisodeOpened(action.episode, opening(action.seed), first), apply)
            case StepEpisode():
                seed = self._seeds[action.episode]
                turn, agents = action.turn, self._settings.agents
                said, reward, done = answer(seed, turn, action.tokens, self._settings.turns_most, agents)
                role = "tool" if turn % 2 else "user"
                done |= action.truncated
                following, given = speaker(seed, turn + 1, agents), rewards(seed, turn, action.tokens, agents)
                stepped = EpisodeStepped(action.episode, turn, said, role, reward, done, following, given)  # type: ignore[arg-type]
                self._later(stepped, apply)
            case _:
                self._seeds.pop(action.episode, None)

    def _later(self, event: EpisodeOpened | EpisodeStepped, apply: Callable[[Event], None]) -> None:
        settings, random = self._settings, self._random
        seconds = settings.environment_s * random.lognormvariate(0.0, _SPREAD)
        if random.random() >= settings.environment_faults:
            self._process.later(seconds, apply, event)
        elif random.random() < 0.5:  # it dies; otherwise it hangs, and nothing is ever heard of it
            self._process.later(seconds, apply, EpisodeFailed(event.episode, "it died", True))
