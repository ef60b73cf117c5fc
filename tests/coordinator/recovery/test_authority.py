"""Test that a lost or exchanged key of the run's authority is noticed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.recovery.authority import FINGERPRINT, can_decrypt_authority, run_authority
from coordinator.recovery.backup import back_up, restore
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import LedgerDamaged, RunFolderError, WrongKey
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.ids import RunId

RUN = RunId("run-1")


async def fingerprint(folder: RunFolder) -> str:
    ledger = Ledger.open(folder.ledger)
    try:
        await ledger.set_meta("run_id", RUN)
        return (await run_authority(ledger, folder, RUN)).fingerprint
    finally:
        await ledger.close()


async def test_a_run_keeps_its_authority(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert await fingerprint(folder) == await fingerprint(folder)


@pytest.mark.parametrize("change", ["lost", "damaged", "another"])
async def test_no_new_key_takes_the_place_of_the_runs(tmp_path: Path, change: str) -> None:
    folder = RunFolder(tmp_path)
    await fingerprint(folder)
    key = folder.secrets / "run-ca.pem"
    if change == "lost":
        key.unlink()
    elif change == "damaged":
        key.write_bytes(b"-----BEGIN")
    else:
        RunCA.create(folder.secrets, RUN)
    with pytest.raises(LedgerDamaged, match="authority") as found:
        await fingerprint(folder)
    assert "rollcast restore" in found.value.fix
    assert change != "lost" or not key.exists()


async def test_a_standby_without_the_runs_key_is_told_before_it_leads(tmp_path: Path) -> None:
    leader, standby, ledger = RunFolder(tmp_path / "a").prepare(), tmp_path / "store.key", tmp_path / "store.sqlite"
    store = Ledger.open(ledger)
    await store.set_meta("run_id", RUN)
    with closing(sqlite3.connect(ledger)) as connection:
        assert not can_decrypt_authority(standby, connection)
        await run_authority(store, leader, RUN, leader.secrets / "store.key")
        with pytest.raises(RunFolderError, match=r"there is no .*store\.key"):
            can_decrypt_authority(standby, connection)
        standby.write_text("00" * 32)
        with pytest.raises(WrongKey, match="does not decrypt"):
            can_decrypt_authority(standby, connection)
        standby.write_bytes((leader.secrets / "store.key").read_bytes())
        assert can_decrypt_authority(standby, connection)
    await store.close()


@pytest.mark.parametrize("with_secrets", [True, False])
async def test_a_backup_without_secrets_begins_with_a_new_authority(tmp_path: Path, with_secrets: bool) -> None:
    folder, restored = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "restored")
    folder.root.mkdir()
    before = await fingerprint(folder)
    back_up(folder, tmp_path / "backup", with_secrets=with_secrets, progress=lambda done, of: None)
    restore(tmp_path / "backup", restored)
    with closing(sqlite3.connect(restored.ledger)) as connection:
        row = connection.execute("SELECT value FROM meta WHERE key = ?", (FINGERPRINT,)).fetchone()
    assert (row is not None) is with_secrets
    assert (await fingerprint(restored) == before) is with_secrets
