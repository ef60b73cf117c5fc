"""Play episodes in a pool of workers, some for each environment (protocol: coordinator/environments/worker.py).

A game lives in one worker. When that worker dies or hangs, it is replaced, and each of its games is played again in
another one: opened with the same seed, and given its recorded turns, which must be answered as before. A turn that
takes ATTEMPTS_MAX workers with it has failed; other games do not pay for it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import structlog

from coordinator.environments.answers import EnvironmentFailed, parse_reply, parse_start
from coordinator.environments.games import Reply, Start, Turn
from coordinator.environments.process import EnvironmentProcess, EnvironmentSpec, link_packages
from coordinator.workers.line_process import WorkerDied, WorkerHung
from rollcast.runtime.errors import TaskError, WaitTimedOut
from rollcast.runtime.waits import backoff_delays_s, deadline
from rollcast.wire.ids import EpisodeId

ATTEMPTS_MAX = 2  # workers that one request may end
STARTS_MAX = 5  # starts in a row that fail, after which the environment counts as broken
RESTART_FIRST_DELAY_S = 0.05
RESTART_MOST_DELAY_S = 5.0
CLOSE_TIMEOUT_S = 15.0  # of the games of a pool that is closed; afterwards their workers are told to end

_log = structlog.get_logger()


@dataclass(slots=True)
class _Episode:
    environment: str
    seed: int
    alone: bool
    start: Start | None = None
    turns: list[tuple[Turn, Reply]] = field(default_factory=list)
    lane: _Lane | None = None
    life: int = 0  # of the lane's worker that holds the game
    asked: asyncio.Lock = field(default_factory=asyncio.Lock)  # a game is not closed while it works


class _Lane:
    """One place of a pool: a worker, its successors, and the requests that wait for it."""

    def __init__(self, process: EnvironmentProcess) -> None:
        self.process = process
        self.episodes = 0
        self.free = asyncio.Semaphore(1)  # as many as games work at once; set by the first start
        self._starting = asyncio.Lock()
        self._begun = asyncio.Event()  # requests of a restarted coordinator may come before the first worker runs

    async def start(self) -> None:
        """Start the first worker."""
        await self.process.start()
        self.free = asyncio.Semaphore(self.process.games_at_once)
        self._begun.set()

    async def begun(self) -> None:
        """Wait for the first worker; if it does not start, the pool's own start ends the run."""
        await self._begun.wait()

    async def ensure_started(self, random: Random) -> None:
        """Start another worker if this one has died.

        Raises:
            TaskError: none starts.
        """
        async with self._starting:
            delays = backoff_delays_s(random, first_s=RESTART_FIRST_DELAY_S, most_s=RESTART_MOST_DELAY_S)
            for attempt in range(1, STARTS_MAX + 1):
                if self.process.alive:
                    return
                await asyncio.sleep(next(delays))
                try:
                    await self.process.start()
                except TaskError as error:
                    _log.warning("environment did not start", attempt=attempt, error=str(error))
                    if attempt == STARTS_MAX:
                        raise


class EnvironmentPool:
    """The workers of a run's environments.

    Args:
        specs: the environments by name.
        processes: workers of each environment.
        episodes_max: episodes open at once; more are refused.
    """

    def __init__(self, specs: Mapping[str, EnvironmentSpec], processes: int, episodes_max: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rollcast-imports-")
        imports = Path(self._folder.name)
        link_packages(imports)
        self._lanes = {
            name: [_Lane(EnvironmentProcess(spec, imports)) for _ in range(processes)] for name, spec in specs.items()
        }
        self._episodes_max = episodes_max
        self._episodes: dict[EpisodeId, _Episode] = {}
        self._random = Random()
        self.replayed = 0  # episodes that were played again, since the start

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the running workers."""
        return [lane.process.pid for lane in self._all() if lane.process.pid is not None]

    def __len__(self) -> int:
        """Return the number of open episodes."""
        return len(self._episodes)

    async def start(self) -> None:
        """Start every worker.

        Raises:
            TaskError: an environment cannot be loaded.
        """
        starts = await asyncio.gather(*(lane.start() for lane in self._all()), return_exceptions=True)
        for problem in starts:
            if isinstance(problem, BaseException):
                await self._kill_all()
                raise problem

    async def open(self, episode_id: EpisodeId, environment: str, seed: int, *, alone: bool = False) -> Start:
        """Begin an episode. ``alone``: if its game has several agents, the first one plays, and a teacher the others.

        Raises:
            EnvironmentFailed: it does not begin, or too many episodes are open.
            TaskError: the environment's workers no longer start.
        """
        if environment not in self._lanes:
            raise EnvironmentFailed(f"there is no environment {environment!r}", retryable=False)
        if len(self._episodes) >= self._episodes_max:
            raise EnvironmentFailed(f"{self._episodes_max} episodes are open", retryable=True)
        episode = self._episodes[episode_id] = _Episode(environment, seed, alone)
        try:
            await self._request(episode_id, episode, None)
        except EnvironmentFailed:
            await self.close_episode(episode_id)
            raise
        assert episode.start is not None
        return episode.start

    async def step(self, episode_id: EpisodeId, turn: Turn) -> Reply:
        """Send a turn of the policy to its game and return the answer.

        Raises:
            EnvironmentFailed: the game gives none; it is closed.
            TaskError: the environment's workers no longer start.
        """
        episode = self._episodes.get(episode_id)
        if episode is None:
            raise EnvironmentFailed("the episode is not open", retryable=True)
        try:
            reply = await self._request(episode_id, episode, turn)
        except EnvironmentFailed:
            await self.close_episode(episode_id)
            raise
        assert reply is not None
        episode.turns.append((turn, reply))
        return reply

    async def demonstrate(self, episode_id: EpisodeId) -> str | None:
        """Return what the environment's teacher would say now in an open episode; None if it has no teacher.

        Raises:
            EnvironmentFailed: the teacher raises, or its worker does not answer.
        """
        episode = self._episodes[episode_id]
        lane = self._place(episode)
        async with lane.free:
            try:
                said = (await lane.process.ask("demonstrate", episode_id))["text"]
            except (WorkerDied, WorkerHung) as death:
                await self._bury(lane, death)
                raise EnvironmentFailed(f"the teacher's worker died or hung: {death}", retryable=True) from death
        return None if said is None else str(said)

    async def close_episode(self, episode_id: EpisodeId) -> None:
        """Free the resources of an episode; an episode that is not open is ignored."""
        episode = self._episodes.pop(episode_id, None)
        if episode is None or episode.lane is None:
            return
        lane = episode.lane
        lane.episodes -= 1
        async with episode.asked, lane.free:
            if not lane.process.alive or lane.process.life != episode.life:
                return
            try:
                await lane.process.ask("close", episode_id)
            except EnvironmentFailed as failure:
                _log.warning("environment did not close", why=failure.reason)
            except (WorkerDied, WorkerHung) as death:
                await self._bury(lane, death)

    async def close(self) -> None:
        """Close every game, then end every worker, which frees what its games share."""
        try:
            async with deadline(CLOSE_TIMEOUT_S, "the environments to close"):
                await asyncio.gather(*(self.close_episode(one) for one in list(self._episodes)))
        except WaitTimedOut as error:
            _log.warning("environments are stopped", why=str(error))
        await asyncio.gather(*(lane.process.stop() for lane in self._all()))
        self._folder.cleanup()

    def _all(self) -> list[_Lane]:
        return [lane for lanes in self._lanes.values() for lane in lanes]

    async def _kill_all(self) -> None:
        await asyncio.gather(*(lane.process.kill() for lane in self._all()))

    async def _request(self, episode_id: EpisodeId, episode: _Episode, turn: Turn | None) -> Reply | None:
        """Open the episode, and step it if there is a turn; retry in another worker if this one dies or hangs."""
        lane = self._place(episode)
        await lane.begun()
        reason = ""
        for _ in range(ATTEMPTS_MAX):
            async with episode.asked, lane.free:
                await lane.ensure_started(self._random)
                try:
                    return await self._play(lane, episode_id, episode, turn)
                except (WorkerDied, WorkerHung) as death:
                    reason = f"{death}: {lane.process.stderr_end[-300:]}".removesuffix(": ")
                    await self._bury(lane, death)
        raise EnvironmentFailed(f"{ATTEMPTS_MAX} workers died or hung at this turn: {reason}", retryable=False)

    async def _play(self, lane: _Lane, episode_id: EpisodeId, episode: _Episode, turn: Turn | None) -> Reply | None:
        """Play what the lane's worker has not seen of the episode, then the turn."""
        process = lane.process
        if episode.life != process.life:
            episode.life = process.life  # from here on there is a game to close, also if it does not begin
            start = parse_start(await process.ask("open", episode_id, seed=episode.seed, alone=episode.alone))
            self.replayed += episode.start is not None
            episode.start = episode.start or start
            self._compare(episode.start, start)
            for earlier, reply in episode.turns:
                self._compare(reply, await self._step(process, episode_id, episode, earlier))
        return None if turn is None else await self._step(process, episode_id, episode, turn)

    async def _step(self, process: EnvironmentProcess, episode_id: EpisodeId, episode: _Episode, turn: Turn) -> Reply:
        agents = () if episode.start is None else episode.start.agents
        return parse_reply(await process.ask("step", episode_id, **asdict(turn)), agents)

    def _compare(self, before: Start | Reply, again: Start | Reply) -> None:
        """Require that a replayed game answers as before: the policy has seen those answers.

        Raises:
            EnvironmentFailed: it does not.
        """
        if before != again:
            raise EnvironmentFailed(
                "the game was played again after its worker had died, and answered something else: "
                "an environment has to follow from its seed",
                retryable=True,
            )

    def _place(self, episode: _Episode) -> _Lane:
        """Return the episode's lane; a new one goes to the lane with the fewest episodes."""
        if episode.lane is None:
            episode.lane = min(self._lanes[episode.environment], key=lambda lane: lane.episodes)
            episode.lane.episodes += 1
        return episode.lane

    async def _bury(self, lane: _Lane, death: WorkerDied | WorkerHung) -> None:
        """End a worker that died, or one that hangs and may still close the games that it has."""
        await (lane.process.stop() if isinstance(death, WorkerHung) else lane.process.kill())
        _log.warning("environment replaced", why=str(death), last_words=lane.process.stderr_end)
