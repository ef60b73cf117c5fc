"""Play episodes of an environment for `rollcast tasks try`: a person, a file or a teacher takes the policy's turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

if TYPE_CHECKING:
    from coordinator.config.config import CoordinatorConfig
    from coordinator.environments.pool import EnvironmentPool
    from coordinator.prompts.stored_rollouts import StoredRollout
    from coordinator.tasks.checks.task import Problem
    from rollcast.wire.ids import EpisodeId

#: Returns the next turn of the policy; None: the teacher's.
Say = Callable[[], str | None]
#: Shows a message: its role and text.
Show = Callable[[str, str], None]


def is_played(problems: Sequence[Problem]) -> bool:
    """Return whether the problems have an environment."""
    return any("environment" in problem.data for problem in problems)


async def play(config: CoordinatorConfig, problems: Sequence[Problem], say: Say, show: Show) -> list[dict[str, Any]]:
    """Play an episode of each problem to its end; return what was said, and the rewards.

    Raises:
        TaskError: the environment cannot be loaded.
    """
    from coordinator.environments.pool import EnvironmentPool
    from coordinator.tasks.build import environments_of
    from rollcast.wire.ids import EpisodeId

    pool = EnvironmentPool(environments_of(config.task, {}), 1, len(problems))
    try:
        await pool.start()
        turns_max = config.environments.turns_max
        return [
            await _episode(pool, EpisodeId(number), problem, turns_max, say, show)
            for number, problem in enumerate(problems, start=1)
        ]
    finally:
        await pool.close()


async def _episode(
    pool: EnvironmentPool, episode: EpisodeId, problem: Problem, turns_max: int, say: Say, show: Show
) -> dict[str, Any]:
    from coordinator.environments.answers import EnvironmentFailed
    from coordinator.environments.player import turn_of

    facts: dict[str, Any] = {"problem_id": problem.problem_id, "prompt": problem.prompt, "turns": [], "reward": 0.0}
    try:
        show("", problem.problem_id)
        start = await pool.open(episode, problem.data["environment"], problem.data["seed"], alone=True)
        for message in start.view:
            show(message["role"], message["content"])
        for number in range(turns_max):
            text = say()
            text = await pool.demonstrate(episode) if text is None else text
            if text is None:
                raise EnvironmentFailed("no answer is left: it has no teacher; give --answers", retryable=False)
            reply = await pool.step(episode, turn_of(text, "hermes", last=number + 1 == turns_max))
            show("policy", text)
            for message in reply.messages:
                show(message["role"], message["content"])
            facts["turns"].append(
                {"said": text, "reply": [one["content"] for one in reply.messages], "reward": reply.reward}
            )
            facts["reward"] += reply.reward
            if reply.done:
                break
        show("reward", f"{facts['reward']:g}")
        await pool.close_episode(episode)
    except EnvironmentFailed as failure:
        facts |= {"failed": "exception", "detail": failure.reason}
        show("failed", failure.reason)
    return facts


def replayed(episodes: Sequence[StoredRollout], show: Show) -> list[dict[str, Any]]:
    """Show episodes of a run with all their turns; return what was said, and the rewards."""
    found = []
    for one in episodes:
        show("", one.problem_id)
        show("user", one.prompt)
        turns: list[dict[str, Any]] = []
        for role, parts in groupby(one.turns, key=lambda turn: turn.role):  # several versions may share a turn
            text = "".join(part.text for part in parts)
            show("policy" if role == "assistant" else role, text)
            if role == "assistant":
                turns.append({"said": text, "reply": []})
            elif turns:
                turns[-1]["reply"].append(text)
        show("reward", f"{one.reward:g}")
        found.append({"problem_id": one.problem_id, "prompt": one.prompt, "turns": turns, "reward": one.reward})
    return found


def shown_on(console: Console) -> Show:
    """Return how a person reads an episode."""

    def show(role: str, text: str) -> None:
        if role:
            console.print(f"[dim]{role:<7}[/dim] {escape(text)}", highlight=False)
        else:
            console.print(Rule(escape(text), align="left"))

    return show


def turns_of(lines: Iterator[str]) -> Say:
    """Return the turns of a file in order, then the teacher's."""
    return lambda: next(lines, None)
