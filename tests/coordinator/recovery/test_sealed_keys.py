"""Test the key of the run's authority in a shared store: encrypted, and only for who has the key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.recovery.authority import SEALED, run_authority
from coordinator.recovery.sealed_keys import read_or_create_key, seal, unseal
from rollcast.runtime.errors import RunFolderError, WrongKey
from rollcast.runtime.run_folder import RunFolder
from rollcast.sim.store.store import MemoryStore
from rollcast.sim.store.tables import Tables
from rollcast.wire.ids import RunId

RUN = RunId("run-1")


async def test_a_second_host_gets_the_authority_from_the_store(tmp_path: Path) -> None:
    store = MemoryStore(Tables())
    first, second = (RunFolder(tmp_path / name).prepare() for name in "ab")
    made = await run_authority(store, first, RUN, first.secrets / "store.key")
    assert "PRIVATE KEY" not in (await store.get_meta(SEALED) or "")
    with pytest.raises(RunFolderError, match="there is no"):
        await run_authority(store, second, RUN, second.secrets / "store.key")
    (second.secrets / "store.key").write_text((first.secrets / "store.key").read_text())
    found = await run_authority(store, second, RUN, second.secrets / "store.key")
    assert found.fingerprint == made.fingerprint
    assert (second.secrets / "run-ca.pem").stat().st_mode & 0o777 == 0o600


def test_another_key_or_run_decrypts_nothing() -> None:
    sealed = seal(bytes(32), RUN, b"secret")
    assert unseal(bytes(32), RUN, sealed) == b"secret"
    for key, run_id, text in ((b"\x01" * 32, RUN, sealed), (bytes(32), RunId("other"), sealed), (bytes(32), RUN, "??")):
        with pytest.raises(WrongKey, match="does not decrypt"):
            unseal(key, run_id, text)


@pytest.mark.parametrize("text", ["", "xyz", "00" * 31, "0" * 5000])
def test_a_file_without_a_key_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "store.key"
    path.write_text(text)
    with pytest.raises(WrongKey, match="holds no key"):
        read_or_create_key(path, may_create=True)
