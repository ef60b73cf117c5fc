"""Test the vllm engine's processes with a server that has no vLLM: crashes, hangs, lies, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from peer.engines.base import CompletionSlice, GenerateRequest, VersionState
from peer.engines.vllm import generation, supervisor
from peer.engines.vllm.engine import VllmEngine, VllmSettings
from peer.engines.vllm.environment import VllmPython, Workspace
from peer.engines.vllm.process import LOG_LINE_LENGTH_MAX, LOG_LINES_BURST, LogLines
from peer.engines.vllm.supervisor import RESTARTS_MAX, RESTARTS_WINDOW_S, Restarts, Supervisor
from rollcast.runtime.errors import ModelError, ProcessFailed
from rollcast.wire.ids import Epoch, Version
from rollcast.wire.rollouts import Sampling
from tests.peer.engines.vllm.versions import zeros

ROOT = Path(__file__).parents[4]
SAMPLING = Sampling(temperature=1.0, max_new_tokens=6, stop_token_ids=(4,))


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_DELAY_FIRST_S", 0.0)


@asynccontextmanager
async def engine_of(mode: str, folder: Path) -> AsyncIterator[VllmEngine]:
    """Yield an engine with version 0 active on a fake server."""
    workspace = Workspace(folder / "workspace")
    command = [sys.executable, "-m", "tests.peer.engines.vllm.fake_server", mode, str(folder), str(workspace.lock)]
    server = Supervisor(command, workspace, {**os.environ, "PYTHONPATH": str(ROOT)})
    engine = VllmEngine(VllmSettings(4), VllmPython(Path(sys.executable), "0"), workspace, server)
    try:
        yield engine
    finally:
        await engine.close()
    assert not workspace.folder.exists()


async def put(engine: VllmEngine, version: int = 0) -> None:
    record, state = zeros(version)
    await engine.load(VersionState(record, memoryview(state)))
    await engine.activate(record.version)


async def completed(engine: VllmEngine, prompts: int, tokens_max: int = 100) -> list[list[CompletionSlice]]:
    requests = [GenerateRequest((5,) * (1 + index), index, SAMPLING) for index in range(prompts)]
    going, made = engine.begin(requests), [[] for _ in requests]
    while not all(pieces and pieces[-1].finish_reason for pieces in made):
        for new in await going.next_slice(tokens_max):
            made[new.request].append(new)
    return made


def expected(prompt_tokens: int) -> tuple[int, ...]:
    tokens = [2 + position % 5 for position in range(prompt_tokens, prompt_tokens + SAMPLING.max_new_tokens)]
    return tuple(tokens[: tokens.index(4) + 1])


def is_right(made: list[list[CompletionSlice]]) -> bool:
    return all(
        tuple(token for piece in pieces for token in piece.token_ids) == expected(1 + index)
        for index, pieces in enumerate(made)
    )


@pytest.mark.parametrize("mode", ["good", "dies-once"])
async def test_completions_survive_a_crash_of_the_server(mode: str, tmp_path: Path) -> None:
    async with engine_of(mode, tmp_path) as engine:
        await put(engine)
        assert is_right(await completed(engine, 3))
        assert is_right(await completed(engine, 3, tokens_max=1))
        assert engine.supervisor.life == (1 if mode == "good" else 2)
        assert {"good": "vllm 0, 1 of 1 x none"}.get(mode, engine.hardware) == engine.hardware


async def test_no_token_of_weights_that_are_not_the_versions_is_returned(tmp_path: Path) -> None:
    async with engine_of("wrong-once", tmp_path) as engine:
        for version, life in ((0, 1), (1, 2)):
            await put(engine, version)
            assert is_right(await completed(engine, 3))
            assert engine.supervisor.life == life
            assert engine.last_swap is not None
            assert (engine.last_swap.kind, engine.last_swap.read_back) == ("keyframe", True)


async def test_vllm_does_not_go_on_for_long_without_a_next_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "IDLE_S", 0.0)
    async with engine_of("good", tmp_path) as engine:
        await put(engine)
        going = engine.begin([GenerateRequest((5,), 0, SAMPLING)])
        (first,) = await going.next_slice(1)
        await asyncio.sleep(0)
        aborted: list[int] = []
        monkeypatch.setattr(engine.supervisor, "abort", aborted.extend)
        await asyncio.sleep(0.001)
        assert len(aborted) == 1
        (rest,) = await going.next_slice(100)
        assert first.token_ids + rest.token_ids == expected(1)


async def test_a_server_that_sends_no_tokens_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "SILENCE_TIMEOUT_S", 0.05)
    async with engine_of("hangs-once", tmp_path) as engine:
        await put(engine)
        hanging = engine.begin([GenerateRequest((5,), 0, SAMPLING)])
        (new,) = await hanging.next_slice(100)
        assert (new.token_ids, engine.supervisor.life) == (expected(1), 2)


@pytest.mark.parametrize(
    ("mode", "cause"),
    [("dies", "exit status 3"), ("garbage", "broke the protocol"), ("lies", "not of the vocabulary")],
)
async def test_a_server_that_fails_again_and_again_ends_the_peer_with_the_cause(
    mode: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RESTARTS_MAX", 1)
    async with engine_of(mode, tmp_path) as engine:
        await put(engine)
        with pytest.raises(ProcessFailed, match="vLLM failed") as failed:
            await completed(engine, 3)
        assert cause in failed.value.cause


async def test_a_server_that_does_not_start_is_not_started_again(tmp_path: Path) -> None:
    async with engine_of("refuses", tmp_path) as engine:
        with pytest.raises(ProcessFailed, match="failed to start") as failed:
            await put(engine)
        assert "no room" in failed.value.cause
        assert engine.supervisor.life == 1


async def test_a_model_that_vllm_cannot_run_ends_the_peer_with_a_status_that_no_restart_mends(tmp_path: Path) -> None:
    async with engine_of("unfit", tmp_path) as engine:
        with pytest.raises(ModelError, match="vLLM cannot run the model") as refused:
            await put(engine)
        assert (refused.value.cause, engine.supervisor.life) == ("no such heads", 1)


async def test_no_process_is_left_when_the_engine_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.engines.vllm.process.CLOSE_S", 0.2)
    async with engine_of("leaves-child", tmp_path) as engine:
        await put(engine)
    for name in ("life-0", "child"):
        assert await asyncio.to_thread(ends, int((tmp_path / name).read_text()))


def ends(pid: int) -> bool:
    """Wait until a process has ended; one that its parent has not waited for yet is a zombie."""
    until_s = time.monotonic() + 10.0
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def test_a_process_that_watches_the_peer_ends_with_it(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    watch = (
        "import sys, pathlib\n"
        "from peer.engines.vllm.server.lifetime import end_with_peer\n"
        "end_with_peer(pathlib.Path(sys.argv[1]))\n"
        "print('watching', flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", watch, str(workspace.lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"watching\n"
        assert child.poll() is None
        workspace.close()
        assert child.wait(30.0) == -signal.SIGKILL


async def test_files_of_versions_are_kept_only_while_they_may_be_needed(tmp_path: Path) -> None:
    async with engine_of("good", tmp_path) as engine:
        held: Callable[[], int] = lambda: len(list(tmp_path.glob("workspace/*/versions/*")))  # noqa: E731
        await put(engine, 0)
        going = engine.begin([GenerateRequest((5, 6, 7), 0, SAMPLING)])
        await put(engine, 1)
        assert held() == 2
        going.renew()
        (new,) = await going.next_slice(100)
        assert (new.version, held()) == (1, 1)


def test_a_slice_has_tokens_of_one_version() -> None:
    row = generation.Row(0, GenerateRequest((5,), 0, SAMPLING), None, [])
    row.receive([7, 8], [-1.0, -2.0], (Epoch(0), Version(1)))
    row.receive([9, 4], [-3.0, -4.0], (Epoch(0), Version(2)))
    taken = [row.take(100) for _ in range(3)]
    assert taken == [
        CompletionSlice(0, Epoch(0), Version(1), (7, 8), (-1.0, -2.0), None),
        CompletionSlice(0, Epoch(0), Version(2), (9, 4), (-3.0, -4.0), "stop"),
        None,
    ]


async def test_what_was_sampled_before_a_swap_is_kept_and_stays_the_older_versions(tmp_path: Path) -> None:
    async with engine_of("good", tmp_path) as engine:
        await put(engine, 0)
        going = engine.begin([GenerateRequest((5, 6, 7), 0, SAMPLING)])
        (first,) = await going.next_slice(1)
        await put(engine, 1)
        going.renew("keep")
        (second,) = await going.next_slice(100)
        assert (first.version, second.version) == (0, 0), "tokens that were sampled before the swap stay the older ones"
        assert first.token_ids + second.token_ids == expected(3)


def test_restarts_are_bounded_within_their_window() -> None:
    restarts = Restarts()
    delays = [restarts.delay_s(float(now)) for now in range(RESTARTS_MAX + 1)]
    assert delays[-1] is None
    assert restarts.delay_s(RESTARTS_WINDOW_S + RESTARTS_MAX) is not None


def test_the_log_of_a_server_is_bounded() -> None:
    lines = LogLines()
    logged = lines.receive(b"".join(b"%d %s\n" % (index, b"x" * 1000) for index in range(200)), 0.0)
    assert len(logged) == LOG_LINES_BURST
    assert max(map(len, logged)) == LOG_LINE_LENGTH_MAX
    assert lines.tail[-1].startswith("199 ")
    assert lines.receive(b"half", 10.0) == []
    (after,) = lines.receive(b" line\n", 20.0)
    assert after == f"({200 - LOG_LINES_BURST} lines dropped) half line"
