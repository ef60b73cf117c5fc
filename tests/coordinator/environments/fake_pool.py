"""A pool without workers, which answers as a test has written down."""

from __future__ import annotations

from collections import deque

from coordinator.environments.games import Reply, Start, Turn
from rollcast.wire.ids import EpisodeId

QUESTION = {"role": "user", "content": "1+2="}


class FakePool:
    """``replies`` holds what the next steps answer or raise."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self.start_with = Start((QUESTION,), ())
        self.replies = deque(replies)
        self.turns: list[Turn] = []
        self.seeds: list[int] = []
        self.closed: list[EpisodeId] = []

    async def open(self, episode: EpisodeId, environment: str, seed: int, *, alone: bool = False) -> Start:
        self.seeds.append(seed)
        return self.start_with

    async def step(self, episode: EpisodeId, turn: Turn) -> Reply:
        self.turns.append(turn)
        answer = self.replies.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close_episode(self, episode: EpisodeId) -> None:
        self.closed.append(episode)
