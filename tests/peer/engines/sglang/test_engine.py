"""Test the engine on a server that speaks SGLang's routes, and the suite of all engines on it."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from structlog.testing import capture_logs

from peer.engines.base import Engine, VersionState, WarmUp
from peer.engines.sglang.config import SglangConfig
from peer.engines.sglang.engine import SglangEngine
from peer.engines.sglang.version_folders import label_of
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.config import model_config
from rollcast.policy.hub.load import load_params
from rollcast.policy.snapshot import views
from rollcast.runtime.errors import MalformedMessage, ModelError, Unreachable
from rollcast.wire.versions.records import VersionRecord
from tests.peer.engines.engine_conformance import SAMPLING, EngineConformance, RefusesNonsense, generate, requests
from tests.peer.engines.sglang.fake_server import VOCABULARY, FakeServer, fake_server
from tests.peer.engines.test_jax_engine import jax_version

MODEL = ModelConfig(
    vocabulary_size=VOCABULARY,
    layers=1,
    width=8,
    query_heads=2,
    key_value_heads=1,
    head_size=8,
    feed_forward_width=8,
    precision="bfloat16",
)


@functools.cache
def small_version(version: int) -> tuple[VersionRecord, bytes]:
    return jax_version(version, MODEL)


@pytest.fixture
async def served() -> AsyncIterator[tuple[FakeServer, str]]:
    async with fake_server() as served:
        yield served


@pytest.fixture
def fake(served: tuple[FakeServer, str]) -> FakeServer:
    return served[0]


@pytest.fixture
async def engine(served: tuple[FakeServer, str], tmp_path: Path) -> AsyncIterator[SglangEngine]:
    engine = SglangEngine(SglangConfig(url=served[1]), tmp_path / "sglang", concurrent_rollouts=4)
    yield engine
    await engine.close()


async def put(engine: Engine, version: int) -> None:
    record, state = small_version(version)
    await engine.load(VersionState(record, memoryview(state)))
    await engine.activate(record.version)


class TestSglangEngine(EngineConformance, RefusesNonsense):
    """The suite, on a server whose tokens are functions of the seed: as a real one's are in deterministic mode."""

    knows_its_logprobs = False

    def make_engine(self) -> Engine:
        raise NotImplementedError  # the fixture needs the server's address

    def make_version(self, version: int) -> tuple[VersionRecord, bytes]:
        return small_version(version)

    @pytest.fixture
    async def engine(self, served: tuple[FakeServer, str], tmp_path: Path) -> AsyncIterator[Engine]:
        engine = SglangEngine(SglangConfig(url=served[1]), tmp_path, concurrent_rollouts=4)
        yield engine
        await engine.close()


async def test_a_version_is_written_as_the_hub_has_models(engine: SglangEngine, tmp_path: Path) -> None:
    record, state = small_version(0)
    await put(engine, 0)
    folder = tmp_path / "sglang" / label_of(record)
    read = load_params(model_config(folder, precision="bfloat16"), folder)
    for name, value in views(MODEL, record.tensors, state).items():
        assert (jax.device_get(read[name]) == value).all(), name


async def test_weights_are_swapped_while_nothing_is_generated(engine: SglangEngine, fake: FakeServer) -> None:
    await put(engine, 0)
    await generate(engine, requests(2), 2)
    assert [path for path, _ in fake.requests][:6] == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/flush_cache",
        "/model_info",
        "/continue_generation",
        "/generate",
    ]
    assert [path for path, _ in fake.requests].count("/pause_generation") == 1
    assert fake.version == label_of(small_version(0)[0])


async def test_the_server_samples_from_the_whole_distribution_with_a_seed_for_each(
    engine: SglangEngine, fake: FakeServer
) -> None:
    await put(engine, 0)
    await generate(engine, requests(2, first_seed=2**64 - 2), 2)
    body = next(values for path, values in fake.requests if path == "/generate")
    assert body["return_logprob"] is True
    assert [len(ids) for ids in body["input_ids"]] == [3, 3]
    first, second = body["sampling_params"]
    assert (first["temperature"], first["max_new_tokens"], first["stop_token_ids"]) == (1.0, 2, [1])
    assert (first["top_p"], first["top_k"], first["min_p"], first["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)
    assert first["sampling_seed"] != second["sampling_seed"]
    assert all(0 <= one["sampling_seed"] < 2**63 for one in (first, second))


async def test_a_server_that_lost_its_weights_gets_them_again(engine: SglangEngine, fake: FakeServer) -> None:
    await put(engine, 0)
    whole = await generate(engine, requests(4))
    generation = engine.begin(requests(4))
    tokens = {new.request: new.token_ids for new in await generation.next_slice(2)}
    fake.restart()
    for new in await generation.next_slice(100):
        tokens[new.request] += new.token_ids
    assert [tokens[index] for index in range(4)] == [item.token_ids for item in whole]


async def test_a_server_that_keeps_losing_them_is_an_error(engine: SglangEngine, fake: FakeServer) -> None:
    await put(engine, 0)
    fake.answers = [[{"meta_info": {"weight_version": "other"}}]] * 3
    with pytest.raises(Unreachable, match="does not keep the weights of version 0") as caught:
        await generate(engine, requests(1))
    assert "'other'" in caught.value.cause


async def test_an_aborted_slice_is_generated_again(engine: SglangEngine, fake: FakeServer) -> None:
    await put(engine, 0)
    (whole,) = await generate(engine, requests(1))
    aborted = {"weight_version": fake.version, "finish_reason": {"type": "abort", "message": "by hand"}}
    fake.answers = [[{"meta_info": aborted}]]
    (again,) = await generate(engine, requests(1))
    assert again == whole


async def test_weights_that_the_server_cannot_load_are_an_error(
    engine: SglangEngine, fake: FakeServer, tmp_path: Path
) -> None:
    await put(engine, 0)
    (tmp_path / "sglang" / label_of(small_version(0)[0]) / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot load the weights") as caught:
        await generate(engine, requests(1))
    assert "Failed to get weights iterator" in caught.value.cause
    assert fake.paused, "it must not generate with weights that may be a part of both versions"


async def test_folders_of_versions_that_are_not_needed_are_removed(engine: SglangEngine, tmp_path: Path) -> None:
    folder = tmp_path / "sglang"
    (folder / "version-7-0123456789abcdef").mkdir(parents=True)  # of a process that was killed
    (folder / "mine").mkdir()
    for version in range(4):
        await put(engine, version)
        await generate(engine, requests(1))
    labels = {label_of(small_version(version)[0]) for version in (2, 3)}
    assert {found.name for found in folder.iterdir()} == labels | {"mine"}
    await engine.close()
    assert [found.name for found in folder.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("change", "cause"),
    [({"precision": "fp8"}, "round in fp8"), ({"lora": {"rank": 2, "targets": ["attention.query"]}}, "adapters")],
)
async def test_what_a_server_cannot_run_is_refused(engine: SglangEngine, change: dict[str, object], cause: str) -> None:
    record, state = small_version(0)
    model = ModelConfig.model_validate(MODEL.model_dump() | change)
    other = replace(record, model_json=model.model_dump_json())
    with pytest.raises(MalformedMessage, match="cannot run") as caught:
        await engine.load(VersionState(other, memoryview(state)))
    assert cause in caught.value.cause


async def test_it_reports_that_its_seeds_reproduce_nothing(engine: SglangEngine) -> None:
    assert "random numbers of its own" in engine.hardware
    assert "which no seed of ours reproduces" in engine.computation(MODEL)
    assert "not read back" in engine.computation(MODEL)
    with capture_logs() as logs:
        engine.expect(WarmUp(16, SAMPLING, router_replay=True))
    assert "without them" in json.dumps(logs)
