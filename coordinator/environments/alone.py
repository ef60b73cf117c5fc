"""Show a game of several agents to its first agent alone: the game's own teacher takes the others' turns.

Evaluations, `rollcast tasks try` and people know one conversation. The opponent of an evaluation does not change while
the policy learns, so its reward can be compared over time.

This module runs in the worker's interpreter, which may lack our packages: see worker.py.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.environments.games import Game, Reply, Start, Turn


class AloneGame:
    """A game as its first agent sees it; a game of one agent stays as it is."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._agent = ""
        self._reward = 0.0  # of the agent, and not yet given to it

    async def reset(self, seed: int) -> Start:
        """Begin, up to the agent's first turn.

        Raises:
            ValueError: the game is over before that.
        """
        start = await self._game.reset(seed)
        if not start.agents:
            return start
        self._agent = start.agents[0]
        if start.speaker == self._agent:
            return start
        reply = await self._play_others()
        if reply.done:
            raise ValueError(f"the game is over before {self._agent!r}, the first of its agents, has acted")
        return replace(start, speaker=self._agent, shown=reply.messages)

    async def step(self, turn: Turn) -> Reply:
        """Answer a turn of the agent: what the game shows to it when it is to act again."""
        reply = await self._game.step(turn)
        if not self._agent:
            return reply
        self._take(reply)
        if not (reply.done or turn.last or reply.speaker == self._agent):
            reply = await self._play_others()
        reward, self._reward = self._reward, 0.0
        return Reply(reply.messages, reward, reply.done, self._agent)

    async def demonstrate(self) -> str | None:
        """Return what the teacher would say for the agent."""
        return await self._game.demonstrate()

    async def close(self) -> None:
        """Free the game's resources."""
        await self._game.close()

    async def _play_others(self) -> Reply:
        """Take turns with the teacher until the agent is to act, or the game is over."""
        while True:
            text = await self._game.demonstrate()
            if text is None:
                raise ValueError("the teacher says nothing for another agent")
            reply = await self._game.step(Turn(text, text, "", (), last=False))
            self._take(reply)
            if reply.done or reply.speaker == self._agent:
                return reply

    def _take(self, reply: Reply) -> None:
        self._reward += reply.rewards.get(self._agent, 0.0)
