from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.policy.hub.load import load_params
from rollcast.policy.hub.save import save_model
from rollcast.runtime.errors import ModelError
from rollcast.wire.text.model_folder import ModelFolder
from tests.policy.hub.hub_files import FAMILIES, model_folder, random_params
from tests.policy.tiny import TINY

PARAMS = random_params(TINY)


def test_the_index_names_every_tensor_and_its_file(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", TINY, PARAMS, file_bytes_max=3000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    places = {name: placed.path.name for name, placed in ModelFolder(folder).tensors().items()}
    assert index["weight_map"] == places
    assert index["metadata"]["total_size"] == sum(4 * value.size for value in PARAMS.values())
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    assert all(path.stat().st_size < 3000 + 4096 for path in files)


def test_a_bfloat16_export_is_what_rounding_gives(tmp_path: Path) -> None:
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
