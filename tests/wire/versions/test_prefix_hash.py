from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollcast.wire.versions import prefix_hash
from rollcast.wire.versions.chunks import blake3_hash
from rollcast.wire.versions.prefix_hash import PrefixHash
from tests.wire.versions.build import a_state


def test_what_is_written_later_is_hashed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_hash, "_STEP_BYTES", 1000)
    state = a_state()
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(len(state))
        growing = PrefixHash(file.fileno(), len(state))
        for stop in (0, 1, 2500, 2400, len(state)):
            os.pwrite(file.fileno(), state[growing.done_bytes : stop], growing.done_bytes)
            growing.advance(stop)
    assert growing.digest() == blake3_hash(state)
