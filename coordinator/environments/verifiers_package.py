"""Play any environment of the package `verifiers` (0.4).

An environment of the package runs by itself and asks a model over HTTP. The model is this worker: a request is held
until the policy's turn arrives, so that between two requests the environment does its work, and the messages that a
request has beyond those of the one before are the reply to a turn. The episode's end has its reward.

This module runs in the worker's interpreter, which may lack our packages: see worker.py.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from coordinator.environments.games import Message, Reply, Start, Turn
from rollcast.runtime.errors import TaskError

SUPPORTED = "0.4."
GAMES_AT_ONCE = 32  # work within one process at the same time: they wait for tools and other programs
BODY_BYTES_MAX = 16 << 20
TRACE_HEADER = "X-Session-ID"  # the id of the rollout that a request belongs to (verifiers/v1/clients/client.py)


class VerifiersGames:
    """The tasks of one environment of the package, by number.

    Args:
        env: what the package takes as `[env]`: the taskset, the agents with their harness and runtime.
        path: a file with the taskset, whose module is then the taskset's id; empty: an installed one.
        tasks_max: most tasks to take of a taskset, which may be endless.

    Raises:
        TaskError: the package is missing or of another release, or the environment cannot be built.
    """

    games_at_once = GAMES_AT_ONCE

    def __init__(self, env: Mapping[str, Any], path: str, tasks_max: int) -> None:
        _check_release()
        if path:
            sys.path.insert(0, str(Path(path).resolve().parent))
            env = {**env, "taskset": {"id": Path(path).stem, **env.get("taskset", {})}}
        try:
            self._environment = _load(env)
            self._tasks = list(itertools.islice(self._environment.taskset, tasks_max))
        except Exception as error:
            raise TaskError(
                "an environment of the package verifiers cannot be built",
                cause=f"{type(error).__name__}: {error}"[:500],
                fix="correct task.env and task.path; see the cause",
            ) from error
        if not self._tasks:
            raise TaskError("the taskset is empty", fix="correct task.env")
        self.problem_count: int | None = len(self._tasks)
        self._model = Model()
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._opened = False

    def new(self) -> VerifiersGame:
        """Return a game that has not begun."""
        return VerifiersGame(self)

    def task(self, number: int) -> Any:
        """Return the task of this number."""
        return self._tasks[number % len(self._tasks)]

    async def run(self, task: Any, game: VerifiersGame) -> Any:
        """Run the task to its end, with the game as the model; return the package's episode."""
        import verifiers.v1 as vf

        await self._open()
        client = vf.EvalClientConfig(base_url=self._model.url, api_key_var="ROLLCAST_NO_KEY")
        context = vf.ModelContext(model="policy", client=client)
        try:
            return await self._environment.run_episode(task, context, on_trace=lambda trace: self._minted(trace, game))
        finally:
            self._model.forget(game)

    async def close(self) -> None:
        """Free what the games share: the endpoint, and the package's own servers."""
        await self._stack.aclose()

    def _minted(self, trace: Any, game: VerifiersGame) -> None:
        game.traces.append(trace)
        self._model.games[trace.id] = game

    async def _open(self) -> None:
        async with self._opening:
            if not self._opened:
                await self._stack.enter_async_context(self._model)
                await self._stack.enter_async_context(self._environment.serving())
                self._opened = True


class VerifiersGame:
    """One episode: a queue of its requests to the model, each of which waits for the policy's turn."""

    def __init__(self, games: VerifiersGames) -> None:
        self._games = games
        self._run: asyncio.Task[Any] | None = None
        self._requests: asyncio.Queue[_Request] = asyncio.Queue()
        self._request: _Request | None = None  # waits for the policy's turn
        self._known: Sequence[Message] = ()  # messages before the policy's next turn
        self._task_data: Any = None
        self._turns = 0
        self.traces: list[Any] = []

    async def reset(self, seed: int) -> Start:
        """Begin the task of this number, up to its first request.

        Raises:
            RuntimeError: the environment ended before it asked the policy.
        """
        task = self._games.task(seed)
        self._task_data = task.data
        self._run = asyncio.create_task(self._games.run(task, self))
        request = await self._next()
        if request is None:
            raise RuntimeError(f"the environment asked for nothing: {_errors(self._run.result())}")
        self._known = request.messages
        return Start(request.messages, request.tools)

    async def step(self, turn: Turn) -> Reply:
        """Answer the request with the policy's turn, and return what the environment makes of it."""
        assert self._run is not None
        assert self._request is not None
        self._turns += 1
        self._request.answer.set_result(_completion(turn))
        request = await self._next()
        if request is not None and turn.last:
            self.traces[0].stop("max_turns")  # the package scores what there is
            request.answer.set_exception(RolloutStopped())
            request = await self._next()
        if request is None:
            return Reply((), _reward(self._run.result()), done=True)
        before = len(self._known) + 1  # the turn itself
        _check_history(self._known, request.messages)
        self._known = request.messages
        return Reply(request.messages[before:], 0.0, done=False)

    async def demonstrate(self) -> str | None:
        """Return this turn's entry of the task data's field ``teacher``, a list of texts; None if it has none."""
        teacher = getattr(self._task_data, "teacher", ())
        return str(teacher[self._turns]) if self._turns < len(teacher) else None

    async def close(self) -> None:
        """Cancel the episode; the package frees its runtime and tools."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)

    async def ask(self, request: _Request) -> None:
        """Take a request of the environment, which waits for the policy's turn."""
        await self._requests.put(request)

    async def _next(self) -> _Request | None:
        """Wait for the next request; None if the episode has ended."""
        assert self._run is not None
        getting = asyncio.ensure_future(self._requests.get())
        await asyncio.wait({getting, self._run}, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            self._request = getting.result()
            return self._request
        getting.cancel()
        return None


class RolloutStopped(Exception):
    """Raised where the environment asks for a turn after the episode reached a limit."""


class _Request:
    """A request to the model, in the form of OpenAI's chat completions."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.messages = [_message(one) for one in body["messages"]]
        self.tools = list(body.get("tools") or ())
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()


class Model:
    """An endpoint of OpenAI's chat completions on loopback, behind which the policy is."""

    def __init__(self) -> None:
        self.games: dict[str, VerifiersGame] = {}  # by the id of their rollout
        self.url = ""
        self._runner: Any = None

    async def __aenter__(self) -> Model:
        from aiohttp import web

        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def forget(self, game: VerifiersGame) -> None:
        """Discard the rollouts of a game."""
        for trace in game.traces:
            self.games.pop(trace.id, None)

    async def _complete(self, http: Any) -> Any:
        from aiohttp import web

        # A rollout's id is random and known to this process alone, so it also shows who may ask.
        game = self.games.get(http.headers.get(TRACE_HEADER, ""))
        if game is None:
            return web.json_response({"error": {"message": "unknown rollout"}}, status=404)
        if len(game.traces) > 1:
            reason = "several agents of one episode ask the policy, of which one can be trained"
            return web.json_response({"error": {"message": reason}}, status=400)
        request = _Request(await http.json())
        await game.ask(request)
        try:
            return web.json_response(await request.answer)
        except RolloutStopped:
            return web.json_response({"error": {"message": "the episode has reached its limit"}}, status=400)


def _load(env: Mapping[str, Any]) -> Any:
    import verifiers.v1 as vf

    from coordinator.environments import inline_harness

    sys.modules[inline_harness.NAME] = inline_harness  # the package imports a harness by its id
    config = vf.resolve_env_config(dict(env))
    agents = {name: value for name, value in config if isinstance(value, vf.AgentConfig)}
    changed: dict[str, Any] = {**env}
    for name in agents:
        given = dict(env.get(name, {}))
        given.setdefault("harness", {"id": inline_harness.NAME})
        given.setdefault("runtime", {"type": "subprocess"})
        changed[name] = given
    return vf.load_environment(vf.resolve_env_config(changed))


def _check_release() -> None:
    try:
        release = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        release = "none"
    if not release.startswith(SUPPORTED):
        raise TaskError(
            f"the package verifiers {SUPPORTED}x is needed, {release} is installed for {sys.executable}",
            fix="pip install 'verifiers==0.4.*' in a virtual environment, and name its interpreter in task.python",
        )


def _message(message: Mapping[str, Any]) -> Message:
    """Return a message with its text in one piece."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(one.get("text", "")) for one in content if isinstance(one, dict))
    known = ("role", "name", "tool_calls", "tool_call_id")
    return {"content": content or "", **{name: message[name] for name in known if message.get(name) is not None}}


def _check_history(before: Sequence[Message], after: Sequence[Message]) -> None:
    """Require that a request goes on where the last one ended, because what the policy has seen cannot be changed.

    Raises:
        RuntimeError: the environment has rewritten earlier messages.
    """
    grows = len(after) > len(before) + 1 and after[len(before)]["role"] == "assistant"
    if not grows or any(a["content"] != b["content"] for a, b in zip(before, after, strict=False)):
        raise RuntimeError("the environment rewrote the conversation's earlier messages, which cannot be trained on")


def _completion(turn: Turn) -> dict[str, Any]:
    """Return a turn in the form of OpenAI's chat completions."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])},
            }
            for number, one in enumerate(turn.calls)
        ]
    reason = "length" if turn.last else "tool_calls" if turn.calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {
        "id": "rollcast",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "policy",
        "choices": [choice],
        "usage": usage,
    }


def _reward(episode: Any) -> float:
    """Return the reward of the episode's one trace.

    Raises:
        RuntimeError: the episode failed, which is not a reward of 0.
    """
    if not episode.ok or len(episode.traces) != 1:
        raise RuntimeError(f"the episode failed: {_errors(episode)}")
    return float(episode.traces[0].reward)


def _errors(episode: Any) -> str:
    found = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    return "; ".join(f"{one.type}: {one.message}" for one in found)[:1000] or "no error was recorded"
