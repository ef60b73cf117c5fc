"""Run a worker: play the episodes that the pool asks for, in JSON lines over stdin and stdout.

    -> {"kind": "gym" | "verifiers", "settings": {...}, "timeout_s": 10}
    <- {"ready": true, "games_at_once": 1, "problem_count": null}     or {"refused": {"what", "cause", "fix"}}
    -> {"id": 1, "do": "open", "episode": 7, "seed": 123, "alone": false}
    <- {"id": 1, "messages": [...], "tools": [...], "agents": [], "speaker": "", "shown": []}
    -> {"id": 2, "do": "step", "episode": 7, "text", "content", "reasoning", "calls", "last"}
    <- {"id": 2, "messages": [...], "reward": 0.0, "done": false, "speaker": "", "rewards": {}}
    -> {"id": 3, "do": "demonstrate", "episode": 7}
    <- {"id": 3, "text": "..."}
    -> {"id": 4, "do": "close", "episode": 7}
    <- {"id": 4}

``alone``: a game of several agents is shown to the first of them, see alone.py. Instead of an answer there may be
{"id", "failed": the end of a traceback}. When stdin ends, or at SIGTERM, a game that works is interrupted, every
game is closed, and the process ends after CLOSE_TIMEOUT_S at the latest.

The worker may run in the interpreter of another virtual environment, so that it imports the standard library, what the
environment needs, and from us only modules that import no more than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any

from coordinator.environments.alone import AloneGame
from coordinator.environments.games import CLOSE_TIMEOUT_S, Game, Games, Turn
from coordinator.environments.gym import GymGames
from coordinator.workers.child import Pipe, keep_quiet
from coordinator.workers.tracebacks import USERS_ERRORS, users_traceback
from rollcast.runtime.errors import TaskError

FAILURE_LENGTH_MAX = 2_000  # characters of a traceback: its end says the most


def main() -> int:
    """Serve until stdin ends."""
    pipe = Pipe(dies_with_parent=False)  # games have to be closed, even if the coordinator was killed
    keep_quiet()
    hello = json.loads(sys.stdin.buffer.readline())
    try:
        games = _games(hello["kind"], hello["settings"])
    except TaskError as error:
        pipe.send({"refused": {"what": error.what, "cause": error.cause, "fix": error.fix}})
        return 1
    asyncio.run(_serve(pipe, games, float(hello["timeout_s"])))
    return 0


def _games(kind: str, settings: dict[str, Any]) -> Games:
    if kind == "gym":
        return GymGames(**settings)
    from coordinator.environments.verifiers_package import VerifiersGames  # which needs the package

    return VerifiersGames(**settings)


async def _serve(pipe: Pipe, games: Games, timeout_s: float) -> None:
    loop, requests = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
    worker = Worker(games, timeout_s)

    def put(line: bytes | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(requests.put_nowait, line)

    def heard(line: bytes | None) -> None:
        if line is None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        else:
            put(line)

    def end(_signal: int, frame: FrameType | None) -> None:
        _end_in(CLOSE_TIMEOUT_S)
        put(None)
        _interrupt(frame)

    signal.signal(signal.SIGTERM, end)
    pipe.send({"ready": True, "games_at_once": games.games_at_once, "problem_count": games.problem_count})
    pipe.listen(heard)
    tasks: set[asyncio.Task[None]] = set()
    while (line := await requests.get()) is not None:
        task = asyncio.create_task(_answer(pipe, worker, json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    for task in tasks:
        task.cancel()
    await worker.close()


class Interrupted(BaseException):
    """The process is to end, and a game that never yields must not keep the others from being closed."""


def _interrupt(frame: FrameType | None) -> None:
    """Interrupt the game whose code the main thread runs, if it runs one, unless it closes the game."""
    while frame is not None:
        if frame.f_code is Worker.play.__code__:
            raise Interrupted
        frame = frame.f_back


def _end_in(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


async def _answer(pipe: Pipe, worker: Worker, request: dict[str, Any]) -> None:
    try:
        answer = await worker.handle(request)
    except Interrupted:
        return
    except USERS_ERRORS as error:  # the environment may raise anything
        answer = {"failed": users_traceback(error)[-FAILURE_LENGTH_MAX:]}
    pipe.send({"id": request["id"], **answer})


class Worker:
    """Holds the open games by their episodes, and carries out requests on them.

    Args:
        timeout_s: the longest that one request may take.
    """

    def __init__(self, games: Games, timeout_s: float) -> None:
        self._games = games
        self._timeout_s = timeout_s
        self._open: dict[int, Game] = {}

    async def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request and return its answer; whatever the environment raises is raised."""
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                if request["do"] == "close":
                    await self._close_game(request["episode"])
                    return {}
                return await self.play(request)
        except TimeoutError as error:
            if not limit.expired():  # it is the environment's own
                raise
            raise TimeoutError(f"{request['do']} took longer than {self._timeout_s:g} s") from error

    async def play(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request that runs a game; ``handle`` limits its time."""
        episode = request["episode"]
        match request["do"]:
            case "open":
                game = self._games.new()
                self._open[episode] = game = AloneGame(game) if request["alone"] else game
                start = await game.reset(request["seed"])
                known = {"messages": list(start.messages), "tools": list(start.tools), "agents": list(start.agents)}
                return known | {"speaker": start.speaker, "shown": list(start.shown)}
            case "step":
                given = {name: request[name] for name in ("text", "content", "reasoning", "calls", "last")}
                reply = await self._open[episode].step(Turn(**given))
                answer = {"messages": list(reply.messages), "reward": reply.reward, "done": reply.done}
                return answer | {"speaker": reply.speaker, "rewards": dict(reply.rewards)}
            case "demonstrate":
                return {"text": await self._open[episode].demonstrate()}
        raise ValueError(f"no request is called {request['do']!r}")

    async def _close_game(self, episode: int) -> None:
        if episode in self._open:
            await self._open.pop(episode).close()

    async def close(self) -> None:
        """Close every game, and what they share; errors are written to stderr."""
        for closing in (*(game.close for game in self._open.values()), self._games.close):
            try:
                await closing()
            except USERS_ERRORS:
                traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
