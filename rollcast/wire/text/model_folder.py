"""Read a model's folder in the Hugging Face Hub's format: config.json, a tokenizer, weights as safetensors.

The folder is not trusted: sizes are limited, names stay inside the folder, and nothing in it is executed or unpickled.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import MalformedMessage, ModelError
from rollcast.wire.versions.safetensors import (
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    StoredTensor,
    header_length,
    parse_header,
    parse_index,
)

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

#: The files of a model besides its weights, which an export copies.
SMALL_FILES = (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
JSON_BYTES_MAX = 4 << 20
"""The largest accepted size of every JSON file except the tokenizer's."""
TOKENIZER_BYTES_MAX = 64 << 20
"""The largest accepted size of tokenizer.json; the largest known vocabularies take some 35 MB."""


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor and the file that holds it."""

    path: Path
    tensor: StoredTensor


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The files of a model's folder. Every method raises ModelError if a file is missing or malformed."""

    root: Path

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of the folder."""
        try:
            value = json.loads(self.read_bytes(name, JSON_BYTES_MAX))
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{self.root / name} is not JSON", cause=str(error)[:200], fix=_DOWNLOAD) from None
        if not isinstance(value, dict):
            raise ModelError(f"{self.root / name} is not a JSON object", fix=_DOWNLOAD)
        return value

    def read_optional_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of the folder; empty if there is no such file."""
        return self.read_json(name) if (self.root / name).exists() else {}

    def read_bytes(self, name: str, bytes_max: int) -> bytes:
        """Return the content of a file of the folder, which must not be larger than the given size."""
        path = self.root / name
        try:
            with path.open("rb") as file:
                data = file.read(bytes_max + 1)
        except FileNotFoundError:
            if not self.root.is_dir():
                fix = "correct the path, or download the model there: hf download NAME --local-dir FOLDER"
                raise ModelError(f"there is no model folder {self.root}", fix=fix) from None
            raise ModelError(f"{self.root} has no {name}", fix=_DOWNLOAD) from None
        except OSError as error:
            raise ModelError(f"cannot read {path}", cause=str(error), fix="check the file's permissions") from None
        if len(data) > bytes_max:
            raise ModelError(f"{path} is longer than {bytes_max} bytes", cause="no model has one of this size")
        return data

    def tensors(self) -> dict[str, PlacedTensor]:
        """Return every tensor of the weights by name, from the single file or from all files of the index."""
        found: dict[str, PlacedTensor] = {}
        for file in self._weight_files():
            path = self.root / file
            for name, tensor in _tensors_of(path).items():
                if name in found:
                    raise ModelError(
                        f"tensor {name[:200]!r} is in two files",
                        cause=f"in {found[name].path.name} and in {file}",
                        fix=_DOWNLOAD,
                    )
                found[name] = PlacedTensor(path, tensor)
        return found

    def copy_small_files(self, target: Path) -> None:
        """Copy the configuration and tokenizer files that exist to ``target``, which is created."""
        try:
            target.mkdir(parents=True, exist_ok=True)
            for name in SMALL_FILES:
                if (self.root / name).is_file():
                    shutil.copyfile(self.root / name, target / name)
        except OSError as error:
            raise ModelError(f"cannot copy {self.root} to {target}", cause=str(error)) from None

    def _weight_files(self) -> tuple[str, ...]:
        if (self.root / WEIGHTS).exists():
            return (WEIGHTS,)
        if not (self.root / INDEX).exists():
            raise ModelError(
                f"{self.root} has no weights",
                cause=f"neither {WEIGHTS} nor {INDEX}; other formats are not read, pickled ones never",
                fix=_DOWNLOAD,
            )
        try:
            files = parse_index(self.read_bytes(INDEX, HEADER_BYTES_MAX))
        except MalformedMessage as error:
            raise ModelError(f"{self.root / INDEX} cannot be used", cause=error.what, fix=_DOWNLOAD) from None
        absent = [file for file in files if not (self.root / file).is_file()]
        if absent:
            raise ModelError(
                f"{len(absent)} of {len(files)} files of {self.root / INDEX} are missing",
                cause=f"for example {absent[0]}",
                fix=_DOWNLOAD,
            )
        return files


_DOWNLOAD = "download the complete model again: hf download NAME --local-dir FOLDER"


def _tensors_of(path: Path) -> dict[str, StoredTensor]:
    try:
        with path.open("rb") as file:
            length = header_length(file.read(LENGTH_BYTES))
            header = file.read(length)
            size_bytes = file.seek(0, 2)
        if len(header) < length:
            raise MalformedMessage("the file ends within its header")
        tensors = parse_header(header)
    except MalformedMessage as error:
        raise ModelError(f"{path} is not safetensors", cause=error.what, fix=_DOWNLOAD) from None
    except OSError as error:
        raise ModelError(f"cannot read {path}", cause=str(error), fix="check the file's permissions") from None
    beyond = [name for name, one in tensors.items() if one.start_bytes + one.size_bytes > size_bytes]
    if beyond:
        raise ModelError(
            f"{path} is cut off",
            cause=f"it has {size_bytes} bytes and tensor {beyond[0][:200]!r} ends beyond",
            fix=_DOWNLOAD,
        )
    return tensors
