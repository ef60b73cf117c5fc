"""Use an environment as a task: its problems are the games that follow from their seeds.

Reading problems needs a worker too, because an environment's code runs nowhere else. It is one worker of its own, which
is asked from the thread of the task.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from blake3 import blake3

from coordinator.config.environments import GymTask, VerifiersTask
from coordinator.environments.answers import EnvironmentFailed, parse_reply, parse_start
from coordinator.environments.games import Reply, Start, Turn
from coordinator.environments.process import EnvironmentProcess, EnvironmentSpec, link_packages
from coordinator.tasks.checks.task import Demonstration, Problem, Score
from coordinator.tasks.wording import PIECES_MAX, fixed_pieces, other_characters
from coordinator.workers.line_process import WorkerDied, WorkerHung
from rollcast.runtime.errors import TaskError

T = TypeVar("T")

WORDING_SAMPLES = 64
DEMONSTRATED_TURNS_MAX = 64  # a teacher who has not finished by then is not followed further
#: What an environment may answer: the small tokenizer has all of it, whatever the sampled games show.
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


def environment_name(config: GymTask | VerifiersTask) -> str:
    """Return a name that is the same for the same games: what people call the environment, and a hash of its settings.

    It is kept with a run's problems, so deadlines and interpreters, which may change at a restart, are no part of it.
    """
    what = (config.path, config.parameters if isinstance(config, GymTask) else config.env)
    label = Path(config.path).name if config.path else str(what[1].get("taskset", {}).get("id", "taskset"))
    return f"{label}-{blake3(json.dumps([config.kind, *what], sort_keys=True).encode()).hexdigest()[:6]}"


def environment_spec(config: GymTask | VerifiersTask) -> EnvironmentSpec:
    """Return how workers run an environment.

    Raises:
        TaskError: a variable that it is to be passed is not set.
    """
    missing = [name for name in config.pass_variables if name not in os.environ]
    if missing:
        raise TaskError(
            f"the environment variable {missing[0]} is not set",
            cause="task.pass_variables names it",
            fix="set it for the coordinator, or remove it",
        )
    variables = {name: os.environ[name] for name in config.pass_variables}
    if isinstance(config, GymTask):
        settings: Mapping[str, Any] = {"path": config.path, "parameters": config.parameters}
        return EnvironmentSpec("gym", settings, config.step_timeout_s, variables=variables)
    settings = {"env": config.env, "path": config.path, "tasks_max": config.tasks_max}
    return EnvironmentSpec("verifiers", settings, config.step_timeout_s, config.python, variables)


class EnvironmentTask:
    """The problems of an environment; see coordinator.tasks.checks.task.TaskAdapter.

    Args:
        seed: the task's seed; seeds of games follow from it.
    """

    starts_processes = False  # verifiers never score its problems

    def __init__(self, config: GymTask | VerifiersTask, seed: int) -> None:
        self.name = config.kind
        self._config = config
        self._seed = seed
        self._start = lru_cache(maxsize=1024)(self._begin)

    @cached_property
    def problem_count(self) -> int | None:
        """Return the number of different games; None if it is unlimited."""
        return self._ask(self._count)

    def wording(self) -> tuple[str, ...]:
        """Return what the first messages of games have in common."""
        starts = [self._start(self._game_seed(index)) for index in range(self._samples)]
        # What agents are shown is tokenised apart from the rules that all of them read.
        texts = ([_text(one.messages) for one in starts], [_text(one.shown) for one in starts])
        return tuple(dict.fromkeys(piece for part in texts for piece in fixed_pieces(part)))[:PIECES_MAX]

    def characters(self) -> str:
        """Return the printable characters of ASCII, and others that the first messages of games have."""
        texts = [self.problem(index).prompt for index in range(self._samples)]
        return "".join(sorted({*other_characters(self.wording(), texts), *PRINTABLE}))

    def problem(self, index: int) -> Problem:
        """Return the game of this index; its answer is empty, because its reward is the environment's.

        Raises:
            TaskError: the environment does not begin.
        """
        seed = self._game_seed(index)
        start = self._start(seed)
        data: dict[str, Any] = {
            "environment": environment_name(self._config),
            "seed": seed,
            "messages": start.view,
            "tools": list(start.tools),
        }
        if start.agents:
            data |= {"agents": list(start.agents), "rules": list(start.messages)}
        return Problem(f"{self.name}:{index}", _text(start.view), "", data)

    def warm_up(self) -> None:
        """Do nothing: verifiers never score these problems."""

    def verify(self, problem: Problem, completion_text: str) -> Score:
        """Raise TaskError: the reward of a game comes from its environment, not from a check."""
        raise TaskError(f"{problem.problem_id} is a game, which has no check")

    def demonstration(self, problem: Problem, *, flawed: bool, random: Random) -> Demonstration | None:
        """Return a random turn of the environment's teacher in this game; None if it has no teacher.

        The teacher is the same whether or not a flawed one is asked for.
        """
        shown = self._ask(lambda: self._demonstrate(problem.data["seed"]))
        return random.choice(shown) if shown else None

    @property
    def _samples(self) -> int:
        return min(WORDING_SAMPLES, self.problem_count or WORDING_SAMPLES)

    def _game_seed(self, index: int) -> int:
        """Return the seed of a game: a task's number, or 31 bits, which every library accepts."""
        if self.problem_count is not None:
            return index % self.problem_count
        digest = blake3(f"rollcast/game/{self._seed}/{index}".encode()).digest()
        return int.from_bytes(digest[:4], "little") >> 1

    def _begin(self, seed: int) -> Start:
        return self._ask(lambda: self._open_and_close(seed))

    async def _count(self) -> int | None:
        return self._worker.process.problem_count

    async def _open_and_close(self, seed: int) -> Start:
        process = self._worker.process
        try:
            return parse_start(await process.ask("open", 0, seed=seed, alone=True))
        finally:
            await process.ask("close", 0)

    async def _demonstrate(self, seed: int) -> list[Demonstration]:
        """Play a game with its teacher; return each turn behind all that its agent said and was shown before."""
        process, found = self._worker.process, list[Demonstration]()
        try:
            start = parse_start(await process.ask("open", 0, seed=seed, alone=False))
            book = _Shown(start)
            while len(found) < DEMONSTRATED_TURNS_MAX:
                text = (await process.ask("demonstrate", 0))["text"]
                if not isinstance(text, str):
                    break
                found.append(book.said(text))
                turn = Turn(text, text, "", (), last=False)
                reply = parse_reply(await process.ask("step", 0, **asdict(turn)), start.agents)
                if reply.done:
                    break
                book.shown(reply)
        finally:
            await process.ask("close", 0)
        return found

    @cached_property
    def _worker(self) -> _WorkerThread:
        return _WorkerThread(environment_spec(self._config))

    def _ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            try:
                return self._worker.run(work)
            except (WorkerDied, WorkerHung):
                return self._worker.run(work)
        except (EnvironmentFailed, WorkerDied, WorkerHung) as error:
            raise TaskError(
                f"the environment {self.name} cannot be played", cause=str(error)[-1000:], fix="see the cause"
            ) from error


class _Shown:
    """Records what each agent of a game said and was shown; the only agent of a game has the name ""."""

    def __init__(self, start: Start) -> None:
        self._first: dict[str, tuple[Mapping[str, Any], ...]] = {start.speaker: tuple(start.shown)}
        self._turns: dict[str, list[tuple[str, tuple[Mapping[str, Any], ...]]]] = {}
        self._speaker = start.speaker
        self._unanswered: dict[str, str] = {}  # the last turn of agents that have not been shown anything since

    def said(self, text: str) -> Demonstration:
        """Return a turn of the agent that acts, as a demonstration."""
        turns = self._turns.setdefault(self._speaker, [])
        self._unanswered[self._speaker] = text
        return Demonstration(text, tuple(turns), self._first[self._speaker])

    def shown(self, reply: Reply) -> None:
        """Note what the agent that acts next is shown."""
        self._speaker, messages = reply.speaker, tuple(reply.messages)
        if self._speaker in self._unanswered:
            self._turns[self._speaker].append((self._unanswered.pop(self._speaker), messages))
        else:
            self._first[self._speaker] = messages


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(one["content"]) for one in messages)


class _WorkerThread:
    """A worker and the thread whose loop talks to it, so that callers may block; both end with this object."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rollcast-imports-")
        link_packages(Path(self._folder.name))
        self.process = EnvironmentProcess(spec, Path(self._folder.name))
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="environment task", daemon=True)
        thread.start()
        weakref.finalize(self, _end, self.process, self._loop, thread, self._folder)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what ``work`` returns; every request in it has a deadline of its own.

        Raises:
            WorkerDied, WorkerHung: the worker has to be replaced, which the next call does.
        """
        return asyncio.run_coroutine_threadsafe(self._run(work), self._loop).result()

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if not self.process.alive:
            await self.process.start()
        try:
            return await work()
        except (WorkerDied, WorkerHung):
            await self.process.stop()
            raise


def _end(
    process: EnvironmentProcess,
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    folder: tempfile.TemporaryDirectory[str],
) -> None:
    asyncio.run_coroutine_threadsafe(process.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    folder.cleanup()
