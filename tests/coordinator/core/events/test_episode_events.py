from __future__ import annotations

from coordinator.core.events.episode_events import EpisodeOpened, OpenEpisode, StepEpisode
from coordinator.core.events.events import Prompt
from rollcast.wire.ids import EpisodeId


def test_a_prompt_without_an_environment_has_one_turn() -> None:
    assert Prompt("addition/0", (3,), "{}").environment == ""
    assert Prompt("guess/0", (3,), "{}", environment="guess").environment == "guess"


def test_an_episode_says_by_default_no_more_than_it_must() -> None:
    episode = EpisodeId(1)
    assert EpisodeOpened(episode).prompt_tokens == ()
    assert not StepEpisode(episode, 0, (5,)).truncated
    assert OpenEpisode(episode, "guess", "guess/0", 7) == OpenEpisode(episode, "guess", "guess/0", 7)
