from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.games import Reply, Start, Turn
from coordinator.environments.pool import EnvironmentPool
from coordinator.environments.process import EnvironmentProcess, EnvironmentSpec
from coordinator.workers.line_process import WorkerDied
from rollcast.runtime.errors import TaskError
from rollcast.wire.ids import EpisodeId

GAMES = Path(__file__).with_name("scripted_game.py")
CALL = {"name": "add", "arguments": {"numbers": [1, 2]}}


def spec(name: str = "ScriptedGame", timeout_s: float = 60.0, **parameters: Any) -> EnvironmentSpec:
    return EnvironmentSpec("gym", {"path": f"{GAMES}:{name}", "parameters": parameters}, timeout_s)


def turn(text: str, *calls: Mapping[str, Any]) -> Turn:
    return Turn(text, text, "", calls, last=False)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[EnvironmentPool]:
    """A pool of one worker, so that a test knows which games share it."""
    pool = EnvironmentPool({"scripted": spec(folder=str(tmp_path))}, 1, 8)
    await pool.start()
    yield pool
    await pool.close()


def closed(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[1] for path in folder.glob("closed-*"))


async def test_an_episode_from_its_seed_to_its_end(pool: EnvironmentPool, tmp_path: Path) -> None:
    episode, other = EpisodeId(1), EpisodeId(2)
    assert await pool.open(episode, "scripted", 7) == Start(({"role": "user", "content": "game 7"},), ())
    await pool.open(other, "scripted", 8)
    assert await pool.step(episode, turn("a")) == Reply(({"role": "user", "content": "7: a"},), 0.5, False)
    assert (await pool.step(other, turn("print"))).messages[0]["content"] == "8: print"
    assert await pool.step(episode, turn("end")) == Reply(({"role": "user", "content": "7: a end"},), 0.5, True)
    await pool.close_episode(episode)
    await pool.close_episode(episode)
    assert closed(tmp_path) == ["7"]
    await pool.close()
    assert closed(tmp_path) == ["7", "8"]
    assert not pool.pids


async def test_tools_get_the_calls_and_answer_as_tools() -> None:
    pool, episode = EnvironmentPool({"tools": spec("AsyncGame")}, 1, 8), EpisodeId(1)
    await pool.start()
    start = await pool.open(episode, "tools", 3)
    assert [one["role"] for one in start.messages] == ["system", "user"]
    assert start.tools[0]["function"]["name"] == "add"
    assert await pool.step(episode, turn("I add", CALL)) == Reply(({"role": "tool", "content": "3"},), 0.0, False)
    assert await pool.step(episode, turn("3")) == Reply((), 1.0, True)
    await pool.close()


async def test_a_worker_that_dies_costs_a_retry_and_no_episode(pool: EnvironmentPool) -> None:
    """The game that ended its worker is played again, and so are the others that it had."""
    episode, other = EpisodeId(1), EpisodeId(2)
    await asyncio.gather(pool.open(episode, "scripted", 7), pool.open(other, "scripted", 8))
    before = await pool.step(other, turn("a"))
    assert (await pool.step(episode, turn("die once"))).messages[0]["content"] == "7: die once"
    assert before.messages[0]["content"] == "8: a"
    assert (await pool.step(other, turn("b"))).messages[0]["content"] == "8: a b"
    assert pool.replayed == 2


async def test_a_game_that_always_ends_its_worker_has_failed(pool: EnvironmentPool) -> None:
    episode, other = EpisodeId(1), EpisodeId(2)
    await asyncio.gather(pool.open(episode, "scripted", 7), pool.open(other, "scripted", 8))
    with pytest.raises(EnvironmentFailed, match="2 workers died or hung at this turn") as failure:
        await pool.step(episode, turn("die"))
    assert not failure.value.retryable
    assert len(pool) == 1
    assert (await pool.step(other, turn("a"))).messages[0]["content"] == "8: a"


async def test_a_game_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.environments.process.HANG_GRACE_S", 0.0)
    pool = EnvironmentPool({"scripted": spec(timeout_s=2.0, folder=str(tmp_path))}, 1, 8)
    await pool.start()
    episode = EpisodeId(1)
    await pool.open(episode, "scripted", 7)
    assert (await pool.step(episode, turn("hang once"))).messages[0]["content"] == "7: hang once"
    await pool.close()


async def test_games_beside_one_that_hangs_are_closed_before_their_worker_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hanging game itself is interrupted, and closed too."""
    monkeypatch.setattr("coordinator.environments.process.HANG_GRACE_S", 0.0)
    pool = EnvironmentPool({"scripted": spec(timeout_s=2.0, folder=str(tmp_path))}, 1, 8)
    await pool.start()
    for seed in (7, 8, 9):
        await pool.open(EpisodeId(seed), "scripted", seed)
    with pytest.raises(EnvironmentFailed, match="2 workers died or hung"):
        await pool.step(EpisodeId(7), turn("hang"))
    # The first worker had all three games, the second one that which was played again.
    assert closed(tmp_path) == ["7", "7", "8", "9"]
    assert (await pool.step(EpisodeId(8), turn("a"))).messages[0]["content"] == "8: a"
    await pool.close()
    assert closed(tmp_path) == ["7", "7", "8", "8", "9"]


async def test_a_killed_coordinator_leaves_no_game_open_though_one_hangs(tmp_path: Path) -> None:
    """The end of its stdin is all that the worker notices of it."""
    process = EnvironmentProcess(spec(folder=str(tmp_path)), tmp_path)
    await process.start()
    for seed in (7, 8):
        await process.ask("open", seed, seed=seed, alone=False)
    hanging = asyncio.create_task(process.ask("step", 7, **asdict(turn("hang"))))
    while not (tmp_path / "hangs").exists():  # noqa: ASYNC110  # no notification exists for a file
        await asyncio.sleep(0.01)
    await process.stop()
    with pytest.raises(WorkerDied):
        await hanging
    assert closed(tmp_path) == ["7", "8"]


async def test_what_games_share_is_freed_when_the_pool_is_closed(tmp_path: Path) -> None:
    pool = EnvironmentPool({"scripted": spec("SharingGame", folder=str(tmp_path))}, 1, 8)
    await pool.start()
    await pool.open(EpisodeId(1), "scripted", 7)
    await pool.close()
    assert (tmp_path / "left").exists()


async def test_a_replayed_game_must_answer_as_before(pool: EnvironmentPool) -> None:
    episode, other = EpisodeId(1), EpisodeId(2)
    await asyncio.gather(pool.open(episode, "scripted", 7), pool.open(other, "scripted", 8))
    await pool.step(episode, turn("forget"))
    await pool.step(other, turn("die once"))
    with pytest.raises(EnvironmentFailed, match="follow from its seed") as failure:
        await pool.step(episode, turn("a"))
    assert failure.value.retryable


UNUSABLE = {
    "raise": ("ValueError: the policy wanted it", True),
    "exit": ("SystemExit: 3", True),
    "three": (r"instead of \(observation, reward, done\)", True),
    "nan": ("not a finite number", True),
    "long": ("more than 1048576 characters", False),
}


async def test_an_answer_that_cannot_be_used_is_a_failure(pool: EnvironmentPool, tmp_path: Path) -> None:
    """It is not a reward of 0; the game is closed, and the worker goes on."""
    pids = pool.pids
    for seed, (said, (why, retryable)) in enumerate(UNUSABLE.items()):
        await pool.open(EpisodeId(seed), "scripted", seed)
        with pytest.raises(EnvironmentFailed, match=why) as failure:
            await pool.step(EpisodeId(seed), turn(said))
        assert failure.value.retryable == retryable
        with pytest.raises(EnvironmentFailed, match="not open"):
            await pool.step(EpisodeId(seed), turn("a"))
    assert closed(tmp_path) == ["0", "1", "2", "3", "4"]
    assert pool.pids == pids


async def test_a_game_that_does_not_begin_is_closed(pool: EnvironmentPool, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="there is no such game"):
        await pool.open(EpisodeId(1), "scripted", 404)
    assert closed(tmp_path) == ["404"]


class SlowProcess:
    """A worker of several games at once, which opens a game when ``opens`` is set."""

    games_at_once, alive, life, stderr_end = 2, True, 1, ""

    def __init__(self, _spec: EnvironmentSpec, _imports: Path) -> None:
        self.opens = asyncio.Event()
        self.asked: list[str] = []

    async def start(self) -> None:
        """Do nothing."""

    async def kill(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    async def ask(self, do: str, _episode: int, **_values: Any) -> Mapping[str, Any]:
        self.asked.append(do)
        if do == "open":
            await self.opens.wait()
        return {"messages": [{"role": "user", "content": "begin"}], "tools": []}


async def test_a_game_is_closed_only_after_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has many at once; a group that is dropped closes those that are just beginning."""
    monkeypatch.setattr("coordinator.environments.pool.EnvironmentProcess", SlowProcess)
    pool, episode = EnvironmentPool({"slow": spec()}, 1, 8), EpisodeId(1)
    await pool.start()
    process = pool._lanes["slow"][0].process
    assert isinstance(process, SlowProcess)
    opening = asyncio.create_task(pool.open(episode, "slow", 7))
    while not process.asked:  # noqa: ASYNC110 - the process is asked in a task
        await asyncio.sleep(0)
    closing = asyncio.create_task(pool.close_episode(episode))
    while len(pool):  # noqa: ASYNC110 - the same
        await asyncio.sleep(0)
    process.opens.set()
    await asyncio.gather(opening, closing)
    assert process.asked == ["open", "close"]
    await pool.close()


async def test_what_is_not_there_fails(pool: EnvironmentPool) -> None:
    with pytest.raises(EnvironmentFailed, match="no environment 'chess'"):
        await pool.open(EpisodeId(1), "chess", 7)
    await asyncio.gather(*(pool.open(EpisodeId(number), "scripted", 1) for number in range(8)))
    with pytest.raises(EnvironmentFailed, match="8 episodes are open") as failure:
        await pool.open(EpisodeId(9), "scripted", 1)
    assert failure.value.retryable


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (f"{GAMES}:NoGame", "it has no reset and step"),
        (f"{GAMES}:Unplayable", "it has no step"),
        (f"{GAMES}:Chess", "AsyncGame, Haggle"),
        ("/nowhere.py:Game", "is read as FILE.py:NAME"),
        ("chess", "the entry points of rollcast.environments are none"),
    ],
)
async def test_a_path_that_names_no_environment_is_explained(path: str, why: str) -> None:
    pool = EnvironmentPool({"chess": EnvironmentSpec("gym", {"path": path, "parameters": {}}, 9.0)}, 1, 8)
    with pytest.raises(TaskError) as error:
        await pool.start()
    assert why in str(error.value)
    await pool.close()


async def test_episodes_of_a_restarted_coordinator_wait_for_the_first_worker(tmp_path: Path) -> None:
    pool = EnvironmentPool({"scripted": spec(folder=str(tmp_path))}, 1, 8)
    opening = asyncio.create_task(pool.open(EpisodeId(1), "scripted", 7))
    await asyncio.sleep(0)
    await pool.start()
    assert (await opening).messages[0]["content"] == "game 7"
    await pool.close()


async def test_a_game_of_several_agents_is_played_again_in_their_order(tmp_path: Path) -> None:
    pool, episode, alone = (
        EnvironmentPool({"haggle": spec("Haggle", folder=str(tmp_path))}, 1, 8),
        *map(EpisodeId, "12"),
    )
    await pool.start()
    assert (await pool.open(episode, "haggle", 7)).speaker == "seller"
    assert (await pool.open(alone, "haggle", 7, alone=True)).speaker == "seller"
    assert (await pool.step(episode, turn("a"))).speaker == "buyer"
    reply = await pool.step(episode, turn("die once"))
    assert (reply.speaker, reply.messages[0]["content"]) == ("seller", "die once")
    assert pool.replayed == 1
    assert (await pool.step(alone, turn("a"))).speaker == "seller"  # its other agent has played, too
    await pool.close()
