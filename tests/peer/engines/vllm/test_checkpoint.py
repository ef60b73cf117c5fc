"""Test what vLLM is told about a version, and how its files are made."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from peer.engines.base import VersionState
from peer.engines.vllm.checkpoint import ServerShape, read_model, server_shape, stage
from rollcast.policy.config import LoraConfig
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.state_memory import StateMemory
from tests.peer.engines.vllm.versions import MODEL, zeros


def shape_of(tokens_max: int = 100, concurrent_rollouts: int = 4, cache_tokens: int = 0) -> ServerShape:
    return server_shape(
        MODEL,
        tokens_max,
        concurrent_rollouts=concurrent_rollouts,
        tensor_parallel=0,
        memory_share=None,
        cache_tokens=cache_tokens,
    )


def test_the_cache_holds_all_rollouts_in_whole_blocks_or_as_many_tokens_as_set() -> None:
    token_bytes = 2 * 2 * 1 * 32 * 4  # keys and values, layers, heads, head size, float32
    assert shape_of().cache_bytes == 0
    assert shape_of().cache_bytes_least == (4 * 128 + 128) * token_bytes
    assert shape_of(cache_tokens=1000).cache_bytes == 1000 * token_bytes
    assert shape_of(cache_tokens=1).cache_bytes == (128 + 128) * token_bytes


def test_a_server_serves_shorter_sequences_too_and_nothing_else() -> None:
    assert shape_of(100).serves(shape_of(50))
    assert not shape_of(50).serves(shape_of(100))
    assert not shape_of(100).serves(shape_of(50, concurrent_rollouts=5))


def test_a_folder_has_the_models_description(tmp_path: Path) -> None:
    settings = shape_of(40_000).settings(tmp_path / "model")
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert written["architectures"] == ["Qwen3ForCausalLM"]
    assert written["max_position_embeddings"] == settings["tokens_max"] == 40_000
    assert "model" not in settings


def test_a_version_is_staged_with_the_hubs_names(tmp_path: Path) -> None:
    record, state = zeros(3)
    checkpoint = stage(VersionState(record, memoryview(state)), tmp_path, record.state_hash)
    assert checkpoint.state.read_bytes() == state
    table = {name: one for one in json.loads(checkpoint.table.read_text()) for name in one["names"]}
    query = table["model.layers.1.self_attn.q_proj.weight"]
    assert (query["shape"], query["transposed"], query["dtype"]) == ([32, 64], True, "float32")
    assert not table["model.embed_tokens.weight"]["transposed"]
    assert checkpoint.salt.startswith("3-")
    checkpoint.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_store_is_linked_and_survives_there_being_removed(tmp_path: Path) -> None:
    record, state = zeros(0)
    (tmp_path / "stored").write_bytes(state)
    version = VersionState(record, memoryview(state), tmp_path / "stored")
    checkpoint = stage(version, tmp_path / "versions", record.state_hash)
    assert checkpoint.state.samefile(tmp_path / "stored")
    (tmp_path / "stored").unlink()
    assert checkpoint.state.read_bytes() == state


def test_a_state_in_memory_is_named_and_held(tmp_path: Path) -> None:
    record, state = zeros(0)
    memory = StateMemory(len(state))
    memory.view[:] = state
    version = VersionState(record, memory.view, Path(f"/proc/{os.getpid()}/fd/{memory.descriptor}"), in_memory=True)
    checkpoint = stage(version, tmp_path / "versions", record.state_hash)
    assert checkpoint.state.read_bytes() == state
    assert checkpoint.state.is_symlink()
    assert checkpoint.held is version.state
    checkpoint.discard()
    assert list((tmp_path / "versions").iterdir()) == []
    memory.close()


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"precision": "fp8"}, "cannot run a model in fp8"),
        ({"qk_norm": False, "attention_bias": True}, "heads of this size"),
        ({"experts": 3, "experts_per_token": 2, "expert_width": 8}, "cannot run a model with experts"),
        ({"lora": LoraConfig(targets=("attention.key",), base="nvfp4")}, "base in NVFP4"),
        ({"precision": "bfloat16"}, "do not match its model"),
    ],
)
def test_what_vllm_cannot_run_is_refused(changed: dict[str, object], what: str) -> None:
    record = replace(zeros(0)[0], model_json=MODEL.model_copy(update=changed).model_dump_json())
    with pytest.raises(MalformedMessage, match=what) as refused:
        read_model(record)
    assert refused.value.fix
