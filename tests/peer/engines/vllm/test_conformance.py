"""Test that the vllm engine passes the conformance suite, and samples the jax engine's tokens, with a real vLLM.

Needs vLLM's environment: `make test-vllm`, or ROLLCAST_VLLM_PYTHON with the path of its interpreter. vLLM is started
once for all tests, which costs half a minute of a processor.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from peer.engines.base import CompletionSlice, Engine, GenerateRequest, VersionState
from peer.engines.jax_engine import JaxEngine
from peer.engines.vllm.engine import VllmEngine, VllmSettings
from peer.engines.vllm.environment import VllmPython, Workspace, find_vllm
from peer.engines.vllm.supervisor import Supervisor, server_command
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Version
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash
from tests.peer.engines.engine_conformance import (
    EngineConformance,
    RefusesNonsense,
    complete,
    generate,
    joined,
    requests,
)
from tests.peer.engines.test_jax_engine import jax_version

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

# vLLM's attention on a processor needs heads of a multiple of 32.
MODEL = ModelConfig(
    vocabulary_size=24, layers=2, width=32, query_heads=2, key_value_heads=1, head_size=32, feed_forward_width=32
)
SETTINGS = VllmSettings(concurrent_rollouts=4)


class SharedEngine(VllmEngine):
    """An engine whose vLLM stays for the next test."""

    async def close(self) -> None:
        if self._generation is not None:
            self._generation.suspend()


@pytest.fixture(scope="module")
def python() -> VllmPython:
    path = os.environ.get("ROLLCAST_VLLM_PYTHON")
    return find_vllm(None if path is None else Path(path))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path_factory.mktemp("vllm"))
    yield workspace
    workspace.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def supervisor(python: VllmPython, workspace: Workspace) -> AsyncIterator[Supervisor]:
    command, environment = server_command(python.path, workspace)
    supervisor = Supervisor(command, workspace, environment)
    yield supervisor
    await supervisor.close()


class TestVllmEngine(EngineConformance, RefusesNonsense):
    samples_ahead = True

    def make_engine(self) -> Engine:
        raise NotImplementedError("the fixture makes it")

    def make_version(self, version: int) -> tuple[VersionRecord, bytes]:
        return jax_version(version, MODEL)

    @pytest_asyncio.fixture(loop_scope="module")
    async def engine(self, python: VllmPython, workspace: Workspace, supervisor: Supervisor) -> AsyncIterator[Engine]:
        engine = SharedEngine(SETTINGS, python, workspace, supervisor)
        yield engine
        await engine.close()

    async def test_it_samples_the_tokens_of_the_jax_engine(self, engine: Engine) -> None:
        other = JaxEngine(concurrent_rollouts=4)
        asked = [
            GenerateRequest((5, 6, 7 + index % 3), 2**63 + index, Sampling(0.7, 16, (1,)), (4,) * (index % 2))
            for index in range(16)
        ]
        record, state = self.make_version(0)
        for one in (engine, other):
            await one.load(VersionState(record, memoryview(state)))
            await one.activate(record.version)
        ours, theirs = await generate(engine, asked), await generate(other, asked)
        await other.close()
        assert [item.token_ids for item in ours] == [item.token_ids for item in theirs]
        for one_completion, two in zip(ours, theirs, strict=True):
            assert one_completion.logprobs == pytest.approx(two.logprobs, abs=1e-5)

    async def test_what_differs_is_written_in_place_and_read_back(self, engine: Engine) -> None:
        record, state = self.make_version(0)
        asked = [GenerateRequest((5, 6, 7 + index), index, Sampling(1.0, 8, (1,))) for index in range(4)]
        await put(engine, record, state)
        await generate(engine, asked)
        changed = np.frombuffer(state, "<f4").copy()
        for spec in record.tensors:  # one element of each tensor
            changed[spec.offset_bytes // 4 + spec.size_bytes // 8] += 0.5
        newer = replace(record, version=Version(1), state_hash=state_hash(changed.tobytes()))
        await put(engine, newer, changed.tobytes())
        ours = await generate(engine, asked)
        swap = engine.last_swap
        assert swap is not None
        assert (swap.version, swap.kind, swap.read_back) == (1, "delta", True)
        assert swap.moved_bytes == 8 * len(record.tensors)
        other = JaxEngine(concurrent_rollouts=4)
        await put(other, newer, changed.tobytes())
        theirs = await generate(other, asked)
        await other.close()
        assert [item.token_ids for item in ours] == [item.token_ids for item in theirs]

    async def test_rollouts_in_progress_keep_their_keys_and_values(self, engine: Engine) -> None:
        long = [replace(one, sampling=Sampling(1.0, 240, ())) for one in requests(4)]
        for version in (0, 2, 4):
            await self.put(engine, version)
            before = await generate(engine, long)
            generation = engine.begin(long)
            made: list[list[CompletionSlice]] = [[] for _ in long]
            for new in await generation.next_slice(2):
                made[new.request].append(new)
            await self.put(engine, version + 1)
            generation.renew("keep")
            for pieces, more in zip(made, await complete(generation, 4), strict=True):
                pieces += more
            for pieces, old in zip(made, before, strict=True):
                assert [piece.version for piece in pieces] == sorted(piece.version for piece in pieces)
                of_old = [token for piece in pieces if piece.version == version for token in piece.token_ids]
                assert tuple(of_old) == old.token_ids[: len(of_old)]
                assert len(joined(pieces).token_ids) == 240
            if all(pieces[-1].version == version + 1 for pieces in made):
                assert [joined(pieces).token_ids for pieces in made] != [one.token_ids for one in before]
                return  # otherwise this process was so slow that vLLM was done before the weights were exchanged


async def put(engine: Engine, record: VersionRecord, state: bytes) -> None:
    await engine.load(VersionState(record, memoryview(state)))
    await engine.activate(record.version)
