"""Test Hugging Face's models, read and written."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollcast.policy.hub.config import model_config
from rollcast.policy.hub.load import load_params
from rollcast.policy.hub.names import hf_names, is_transposed
from rollcast.policy.hub.save import save_model
from rollcast.runtime.errors import ModelError
from rollcast.wire.text.model_folder import ModelFolder
from tests.policy.hub.hub_files import FAMILIES, change_json, model_folder, random_params, write_weights
from tests.policy.tiny import TINY

PARAMS = random_params(TINY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model", TINY, PARAMS)


def stored() -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights by the Hub's names."""
    arrays = {name: np.asarray(value) for name, value in PARAMS.items()}
    return {
        hf_names(name, value.shape)[0]: value.T.copy() if is_transposed(name) else value
        for name, value in arrays.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("file_bytes_max", [10**9, 2000])
def test_a_saved_model_is_loaded_bit_for_bit(tmp_path: Path, family: str, file_bytes_max: int) -> None:
    config, params = FAMILIES[family], random_params(FAMILIES[family])
    folder = model_folder(tmp_path / "model", config, params, file_bytes_max=file_bytes_max)
    assert (folder / "model.safetensors.index.json").exists() == (file_bytes_max == 2000)
    assert model_config(folder) == config
    loaded = load_params(config, folder)
    assert list(loaded) == sorted(params)
    assert all(np.array_equal(loaded[name], params[name]) and loaded[name].dtype == np.float32 for name in params)


def test_half_precision_is_widened(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", TINY, PARAMS, dtype="bfloat16")
    loaded = load_params(TINY, folder)
    np.testing.assert_allclose(loaded["embedding"], PARAMS["embedding"], rtol=2**-8)
    write_weights(folder / "model.safetensors", {name: value.astype(np.float16) for name, value in stored().items()})
    np.testing.assert_allclose(load_params(TINY, folder)["embedding"], PARAMS["embedding"], rtol=2**-10, atol=1e-6)


def test_tensors_come_one_at_a_time(tmp_path: Path) -> None:
    config = TINY.model_copy(update={"vocabulary_size": 4096, "layers": 4, "width": 128, "feed_forward_width": 1024})
    folder = model_folder(tmp_path / "model", config, random_params(config), dtype="bfloat16")
    largest = 4 * 4096 * 128

    def drop(name: str, value: np.ndarray[Any, Any]) -> str:
        assert value.flags.c_contiguous
        return f"{name} on its device"

    tracemalloc.start()
    try:
        placed = load_params(config, folder, drop)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert placed["embedding"] == "embedding on its device"
    assert peak_bytes < 1.5 * largest


def test_derived_tensors_in_a_file_are_ignored(folder: Path) -> None:
    more = {
        "lm_head.weight": stored()["model.embed_tokens.weight"],
        "model.rotary_emb.inv_freq": np.ones(4, np.float32),
    }
    write_weights(folder / "model.safetensors", stored() | more)
    assert "head.kernel" not in load_params(TINY, folder)


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("changed", "message", "cause"),
    [
        ({NORM: None}, "lacks 1 of 24 tensors", NORM),
        ({"model.layers.0.mlp.lora_A.weight": np.ones(2, np.float32)}, "has 1 tensors that", "lora_A"),
        ({NORM: np.ones(17, np.float32)}, r"'model.norm.weight' .* has shape \[17\]", r"it has \[16\]"),
        ({NORM: np.ones(16, np.int8)}, "is int8", "quantised"),
        ({NORM: np.full(16, np.nan, np.float32)}, "not finite", "damaged"),
    ],
)
def test_a_wrong_tensor_is_named(folder: Path, changed: dict[str, Any], message: str, cause: str) -> None:
    tensors = {name: value for name, value in (stored() | changed).items() if value is not None}
    write_weights(folder / "model.safetensors", tensors)
    with pytest.raises(ModelError, match=message) as caught:
        load_params(TINY, folder)
    assert cause.replace("\\", "") in caught.value.cause
    assert caught.value.fix


def test_an_untied_model_needs_its_head(folder: Path) -> None:
    change_json(folder / "config.json", tie_word_embeddings=False)
    with pytest.raises(ModelError, match="lacks 1") as caught:
        load_params(model_config(folder), folder)
    assert "lm_head.weight" in caught.value.cause


def test_weights_of_another_size_are_refused(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    change_json(folder / "config.json", intermediate_size=values["intermediate_size"] * 2)
    with pytest.raises(ModelError, match="has shape"):
        load_params(model_config(folder), folder)


def test_the_index_names_every_tensor_and_its_file(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", TINY, PARAMS, file_bytes_max=3000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    places = {name: placed.path.name for name, placed in ModelFolder(folder).tensors().items()}
    assert index["weight_map"] == places
    assert index["metadata"]["total_size"] == sum(4 * value.size for value in PARAMS.values())
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    assert all(path.stat().st_size < 3000 + 4096 for path in files)


def test_a_bfloat16_export_equals_rounded_weights(tmp_path: Path) -> None:
    first = load_params(TINY, model_folder(tmp_path / "a", TINY, PARAMS, dtype="bfloat16"))
    again = load_params(TINY, model_folder(tmp_path / "b", TINY, first, dtype="bfloat16"))
    assert all((first[name] == again[name]).all() for name in first)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_missing_and_misshaped_parameters_are_refused(tmp_path: Path) -> None:
    without = {name: value for name, value in PARAMS.items() if name != "embedding"}
    with pytest.raises(ModelError, match="parameters are not those"):
        save_model(TINY, without, tmp_path)
    with pytest.raises(ModelError, match="'embedding' has shape"):
        save_model(TINY, PARAMS | {"embedding": PARAMS["embedding"][1:]}, tmp_path)
    with pytest.raises(ModelError, match="cannot write"):
        save_model(TINY, PARAMS, tmp_path / "absent")


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_it_and_gives_the_same_logits(tmp_path: Path, family: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.policy.test_model import TOKENS, forward, row

    config = FAMILIES[family]
    params = random_params(config)
    folder = model_folder(tmp_path / "model", config, params, file_bytes_max=4000)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.model_type == family
    with torch.no_grad():
        theirs = model(torch.tensor([TOKENS])).logits.numpy()
    ours = forward(config, params, *row(TOKENS))
    assert abs(theirs - ours).max() <= 1e-5
