"""Write versions as folders of the Hugging Face Hub, from which an SGLang server reads its weights."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import cast

from peer.engines.base import VersionState
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.save import FileDtype, save_model
from rollcast.policy.snapshot import views
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.stored_encoding import store_error

_LABEL = re.compile(r"version-\d+-[0-9a-f]{16}")  # what `label_of` returns; nothing else in the folder is touched
_CARRIERS = ("float32", "bfloat16")


def label_of(record: VersionRecord) -> str:
    """Return the name of a version's folder, which is also the server's label of its weights."""
    return f"version-{record.version}-{record.state_hash.hex()[:16]}"


class VersionFolders:
    """Folders of versions in a folder that is private to this peer and its server. Methods block.

    Raises:
        StoreError: every method raises it if the disk cannot be read or written.
        ModelError: `write` raises it for a model that no published architecture is like.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def write(self, version: VersionState, config: ModelConfig) -> Path:
        """Write a version's weights and return its folder.

        Raises:
            MalformedMessage: the state is not one of this model, or a server cannot read weights of its kind.
        """
        _check_kind(config)
        params = views(config, version.record.tensors, version.state)
        folder = self._folder / label_of(version.record)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise store_error(self._folder, error) from None
        save_model(config, params, folder, cast(FileDtype, config.precision))
        return folder

    def keep(self, labels: Collection[str]) -> None:
        """Remove the folders of all other versions."""
        try:
            for found in self._folder.iterdir() if self._folder.exists() else ():
                if _LABEL.fullmatch(found.name) and found.name not in labels:
                    shutil.rmtree(found)
        except OSError as error:
            raise store_error(self._folder, error) from None


def _check_kind(config: ModelConfig) -> None:
    if config.lora is not None:
        cause = "the version's state is adapters, and this engine loads whole models"
    elif config.precision not in _CARRIERS:
        cause = f"the server would round in {config.precision} at other places than the learner does"
    else:
        return
    raise MalformedMessage(
        "the sglang engine cannot run the version's model",
        cause=cause,
        fix='set engine.kind = "jax", or train a whole model in bfloat16',
    )
