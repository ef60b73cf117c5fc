from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from learner.publishing.base_file import BaseFiles
from learner.publishing.mapped_files import hash_of
from learner.publishing.versions import RetainedVersions
from rollcast.policy.config import LoraConfig, adapted
from rollcast.policy.params import initial_params
from rollcast.policy.snapshot import Snapshot, freeze
from rollcast.runtime.errors import CheckpointError
from rollcast.wire.ids import Version
from tests.learner.tiny import MODEL

CONFIG = adapted(MODEL, LoraConfig(rank=2))


def keep(bases: BaseFiles, snapshot: Snapshot) -> str:
    def write(file: object) -> tuple[object, ...]:
        file.write(snapshot.state_bytes)  # type: ignore[attr-defined]
        file.flush()  # type: ignore[attr-defined]
        return snapshot.tensors

    return bases.keep(write)  # type: ignore[arg-type]


def test_a_base_is_read_back_by_its_hash(tmp_path: Path) -> None:
    params = initial_params(CONFIG, 1)
    snapshot = freeze(CONFIG, params)
    digest = keep(BaseFiles(tmp_path / "base"), snapshot)
    assert digest == hash_of(snapshot.state_bytes).hex()
    found = BaseFiles(tmp_path / "base").views(digest, CONFIG)
    assert all(np.array_equal(found[name], value) for name, value in params.items())


def test_another_start_replaces_the_base_of_the_one_before(tmp_path: Path) -> None:
    bases = BaseFiles(tmp_path)
    first, second = (keep(bases, freeze(CONFIG, initial_params(CONFIG, seed))) for seed in (1, 2))
    assert [path.stem for path in tmp_path.iterdir()] == [second] != [first]
    with pytest.raises(CheckpointError, match="base of the run's adapters"):
        bases.views(first, CONFIG)


def test_a_damaged_base_is_noticed(tmp_path: Path) -> None:
    digest = keep(BaseFiles(tmp_path), freeze(CONFIG, initial_params(CONFIG, 1)))
    path = tmp_path / f"{digest}.state"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="not those that the checkpoint names"):
        BaseFiles(tmp_path).views(digest, CONFIG)


def test_the_first_version_shares_the_bytes_on_disk(tmp_path: Path) -> None:
    bases = BaseFiles(tmp_path / "base")
    snapshot = freeze(CONFIG, initial_params(CONFIG, 1))
    digest = keep(bases, snapshot)
    versions = tmp_path / "versions"
    versions.mkdir()
    frozen = RetainedVersions(versions, mapped=1).freeze(Version(0), bases.first_version(digest, CONFIG)).finish()
    assert frozen.tensors == snapshot.tensors
    assert bytes(frozen.state_bytes) == snapshot.state_bytes
    assert frozen.path.stat().st_ino == (tmp_path / "base" / f"{digest}.state").stat().st_ino


def test_the_learner_samples_a_version_without_its_noise(tmp_path: Path) -> None:
    bases, params = BaseFiles(tmp_path), initial_params(CONFIG, 1)
    scale, adapter = "layers.0.attention_norm.scale", "layers.0.attention.key.lora_a"
    own = {scale: np.asarray(params[scale]) + 1, adapter: np.ones((2, 2))}
    found = bases.beneath(keep(bases, freeze(CONFIG, params)), CONFIG, own)
    assert found.keys() == params.keys() | {adapter}
    np.testing.assert_array_equal(found[scale], params[scale])
    assert found[adapter] is own[adapter]
