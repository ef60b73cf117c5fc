from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peer.engines.sglang.version_folders import VersionFolders
from rollcast.runtime.errors import StoreError

WRITE_ZEROS = """
import sys, tempfile, pathlib
from jax._src import xla_bridge
from peer.engines.base import VersionState
from peer.engines.sglang.version_folders import VersionFolders
from rollcast.policy.config import ModelConfig
from rollcast.policy.snapshot import tensor_specs
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.records import VersionRecord

sizes = dict(vocabulary_size=8, layers=1, width=8, query_heads=1, key_value_heads=1, head_size=8, feed_forward_width=8)
model = ModelConfig(**sizes, precision="bfloat16")
specs = tensor_specs(model)
state = bytes(sum(spec.size_bytes for spec in specs))
record = VersionRecord(RunId("run"), Epoch(0), Version(0), b"", bytes(32), len(state), specs, "{}")
with tempfile.TemporaryDirectory() as folder:
    written = VersionFolders(pathlib.Path(folder)).write(VersionState(record, memoryview(state)), model)
    assert (written / "model.safetensors").exists()
sys.exit(xla_bridge.backends_are_initialized())
"""


def test_writing_a_version_takes_no_memory_of_the_device_that_the_server_uses() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WRITE_ZEROS], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StoreError, match="cannot keep versions"):
        VersionFolders(file).keep([])
