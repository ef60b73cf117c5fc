"""Keep the frozen base of a run with adapters on the learner's disk, under the hash of its bytes.

Checkpoints hold the adapters alone and name the base, so it is durable before the first of them. The run's first
version has the same bytes, and shares them on disk by a hard link.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from learner.publishing.growth import Write, nothing_left
from learner.publishing.mapped_files import hash_of, map_file
from learner.publishing.versions import Begin
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.snapshot import tensor_specs, views
from rollcast.runtime.errors import CheckpointError
from rollcast.runtime.run_folder import fsync_folder, run_folder_error
from rollcast.wire.ids import Version
from rollcast.wire.versions.tensors import TensorSpec

_SUFFIX = ".state"


class BaseFiles:
    """A folder with the base of a run, created when the base is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checked: tuple[str, memoryview] | None = None  # its hash was computed already

    def keep(self, write: Callable[[BinaryIO], tuple[TensorSpec, ...]]) -> str:
        """Write the base durably and return its hash in hex. Another base, of a start that was cut short, is removed.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for stale in self._folder.iterdir():
                stale.unlink()
            written = self._folder / ".base.tmp"
            with written.open("wb") as file:
                write(file)
                os.fsync(file.fileno())
            digest = hash_of(map_file(written)).hex()
            written.rename(self._path(digest))
            fsync_folder(self._folder)
        except OSError as error:
            raise run_folder_error(self._folder, error) from None
        return digest

    def views(self, digest: str, config: ModelConfig) -> Params:
        """Return the base's tensors by name as views of the mapped file, after checking its bytes.

        Raises:
            CheckpointError: the file is missing or damaged.
        """
        if self._checked is None or self._checked[0] != digest:
            try:
                state = map_file(self._path(digest))
            except (OSError, ValueError) as error:
                raise self._unusable(str(error)) from None
            if hash_of(state).hex() != digest:
                raise self._unusable("its bytes are not those that the checkpoint names")
            self._checked = digest, state
        return views(config, tensor_specs(config), self._checked[1])

    def beneath(self, digest: str, config: ModelConfig, own: Params) -> Params:
        """Return a version's own tensors together with the base's. Its noise is left out: the base's scales are taken.

        Raises:
            CheckpointError: see views.
        """
        return own | self.views(digest, config)

    def first_version(self, digest: str, config: ModelConfig) -> Begin:
        """Return how the base becomes the file of a version, for RetainedVersions.freeze."""

        def begin(path: Path, _: Version) -> Write:
            linked = path.with_name(f"{path.name}.link")
            try:
                os.link(self._path(digest), linked)
                linked.replace(path)
            except OSError:  # the file system has no hard links
                return Write(tensor_specs(config), lambda _: copy(path))
            return Write(tensor_specs(config), nothing_left)

        def copy(path: Path) -> None:
            shutil.copyfile(self._path(digest), path)

        return begin

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}{_SUFFIX}"

    def _unusable(self, cause: str) -> CheckpointError:
        return CheckpointError(
            f"cannot read the base of the run's adapters in {self._folder}",
            cause=cause,
            fix="restore the run folder, or start the run anew in an empty one",
        )
