from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollcast.runtime.errors import ModelError
from rollcast.wire.text.model_folder import JSON_BYTES_MAX, ModelFolder
from rollcast.wire.versions.safetensors import format_header


def weights(path: Path, *names: str) -> None:
    path.write_bytes(format_header([(name, "float32", (2,)) for name in names]) + bytes(8 * len(names)))


def index(folder: Path, places: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_tensors_of_all_files_of_an_index(tmp_path: Path) -> None:
    weights(tmp_path / "one.safetensors", "a", "b")
    weights(tmp_path / "two.safetensors", "c")
    index(tmp_path, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})
    found = ModelFolder(tmp_path).tensors()
    assert {name: placed.path.name for name, placed in found.items()} == {
        "a": "one.safetensors",
        "b": "one.safetensors",
        "c": "two.safetensors",
    }


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    weights(tmp_path / "model.safetensors", "a")
    assert list(ModelFolder(tmp_path).tensors()) == ["a"]


@pytest.mark.parametrize("place", ["../one.safetensors", "/etc/passwd", "sub/one.safetensors", ".hidden", ""])
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, place: str) -> None:
    index(tmp_path, {"a": place})
    with pytest.raises(ModelError, match="cannot be used") as caught:
        ModelFolder(tmp_path).tensors()
    assert "files elsewhere" in caught.value.cause


def test_an_index_without_its_file(tmp_path: Path) -> None:
    weights(tmp_path / "one.safetensors", "a")
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(ModelError, match="1 of 2 files") as caught:
        ModelFolder(tmp_path).tensors()
    assert "two.safetensors" in caught.value.cause


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    weights(tmp_path / "one.safetensors", "a")
    weights(tmp_path / "two.safetensors", "a")
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(ModelError, match="'a' is in two files"):
        ModelFolder(tmp_path).tensors()


@pytest.mark.parametrize(("cut", "message"), [(-1, "is cut off"), (30, "not safetensors"), (4, "not safetensors")])
def test_a_file_that_ends_early(tmp_path: Path, cut: int, message: str) -> None:
    path = tmp_path / "model.safetensors"
    weights(path, "a")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelError, match=message):
        ModelFolder(tmp_path).tensors()


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="has no weights"):
        ModelFolder(tmp_path).tensors()


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ("[" * 100_000, "not JSON"), ("[]", "not a JSON object")]
)
def test_files_that_are_no_json_object_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        ModelFolder(tmp_path).read_json("config.json")


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(" " * (JSON_BYTES_MAX + 1))
    with pytest.raises(ModelError, match="longer than"):
        ModelFolder(tmp_path).read_json("config.json")
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        ModelFolder(tmp_path).read_json("tokenizer.json")
    assert ModelFolder(tmp_path).read_optional_json("generation_config.json") == {}


def test_small_files_are_copied_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights(tmp_path / "model.safetensors", "a")
    ModelFolder(tmp_path).copy_small_files(tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["config.json"]
