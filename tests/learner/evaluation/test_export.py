from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from learner.checkpoints.checkpoint import Checkpoints, HostState
from learner.config import LearnerConfig
from learner.evaluation.export import export
from learner.publishing.versions import RetainedVersions
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.config import model_config
from rollcast.policy.hub.load import load_params
from rollcast.policy.params import Params, initial_params
from rollcast.policy.snapshot import freeze
from rollcast.runtime.errors import CheckpointError, ModelError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.records import VersionRecord, keyframe_manifest, parse_announcement, sign_version
from rollcast.wire.versions.state_hash import state_hash
from tests.learner.tiny import MODEL
from tests.policy.hub.hub_files import change_json, model_folder

TOKENIZER = Tokenizer(("1+",), "12 34=")
assert TOKENIZER.size == MODEL.vocabulary_size


def checkpoint(run: Path, tokenizer_json: str) -> Params:
    """Save a checkpoint of step 7, and return its policy."""
    host = HostState(
        step=7,
        newest_version=7,
        run_id="run",
        epoch=0,
        seed=1,
        tokenizer_json=tokenizer_json,
        model_json=MODEL.model_dump_json(),
        base_hash="",
        sampling={"temperature": 1.0, "max_new_tokens": 3, "stop_token_ids": [1]},
        prompt_tokens_max=4,
        trained_ranges=[],
        figures={},
    )
    folder = RunFolder(run).checkpoints
    folder.mkdir(parents=True)
    trainer = Trainer(MODEL, LearnerConfig(seed=4))
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.begin(host, trainer.begin_save).commit()
    return {name: np.asarray(value) for name, value in trainer.params().items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Params]:
    folder = tmp_path_factory.mktemp("run")
    return folder, checkpoint(folder, TOKENIZER.to_json())


def test_the_newest_checkpoint_comes_back_bit_for_bit(run: tuple[Path, Params], tmp_path: Path) -> None:
    folder, params = run
    done = export(folder, tmp_path / "out", dtype="float32", file_bytes_max=2000)
    assert (done.step, done.weight_bytes) == (7, sum(4 * value.size for value in params.values()))
    assert model_config(tmp_path / "out") == MODEL
    loaded = load_params(MODEL, tmp_path / "out")
    assert all(np.array_equal(loaded[name], params[name]) for name in params)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_an_export_contains_our_own_tokenizer(run: tuple[Path, Params], tmp_path: Path) -> None:
    export(run[0], tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"], config["dtype"]) == (1, 0, "bfloat16")
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] == "<eos>"


def test_transformers_loads_model_and_tokenizer(run: tuple[Path, Params], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    export(run[0], tmp_path / "out", dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert tokenizer("1+2=")["input_ids"] == TOKENIZER.encode("1+2=")
    assert tokenizer.decode(TOKENIZER.encode("1+2 4")) == "1+2 4"
    assert (tokenizer.eos_token_id, model.config.eos_token_id) == (1, 1)
    np.testing.assert_array_equal(model.model.norm.weight.detach().numpy(), run[1]["final_norm.scale"])


def test_an_export_contains_files_of_the_starting_model(tmp_path: Path) -> None:
    checkpoint(tmp_path / "run", "{}")
    kept = model_folder(RunFolder(tmp_path / "run").model, MODEL, initial_params(MODEL, 0))
    change_json(kept / "config.json", eos_token_id=5, max_window_layers=28)
    (kept / "tokenizer.json").write_text("{}")
    (kept / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    export(tmp_path / "run", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["eos_token_id"], config["max_window_layers"]) == ([5, 6], 28)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "fp8"])
def test_an_exported_version_equals_what_peers_read(tmp_path: Path, precision: str) -> None:
    model = MODEL.model_copy(update={"precision": precision})
    params = initial_params(model, 2)
    publish(tmp_path, model, params, Version(3))
    done = export(tmp_path, tmp_path / "out", version=3, dtype="float32")
    loaded = load_params(model, tmp_path / "out")
    assert done.step == 3
    worst = {"float32": 0.0, "bfloat16": 2**-8, "fp8": 2**-4}[precision]
    kernel = "layers.0.feed_forward.up.kernel"
    difference = np.abs(np.asarray(loaded[kernel]) - np.asarray(params[kernel]))
    assert (difference <= worst * np.abs(np.asarray(params[kernel])) + worst * 1e-2).all()
    assert (difference.max() > 0) == (precision != "float32")


def test_missing_runs_and_versions_are_named(run: tuple[Path, Params], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no versions"):
        export(run[0], tmp_path / "out", version=3)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(ModelError, match="exists already"):
        export(run[0], tmp_path / "full")


def publish(run: Path, model: ModelConfig, params: Params, version: Version) -> None:
    folder = RunFolder(run).versions
    folder.mkdir(parents=True)
    snapshot = freeze(model, params)
    state = bytes(snapshot.state_bytes)
    model_json = model.model_dump_json()
    record = VersionRecord(
        RunId("run"), Epoch(0), version, b"", state_hash(state), len(state), snapshot.tensors, model_json
    )
    manifests = [keyframe_manifest(record, chunk_list(state, 1024), 1024)]
    signed = parse_announcement(sign_version(record, manifests, Identity.generate()))
    RetainedVersions(folder, mapped=0).retain(signed, snapshot, {})
