"""Load the run's certificate authority, and notice when it is not the one that the run began with."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.ledger.sql import SqlConnection
from coordinator.ledger.sql_facts import get_meta
from coordinator.ledger.store import RunStore
from coordinator.recovery.sealed_keys import read_or_create_key, seal, unseal
from rollcast.runtime.errors import LedgerDamaged, WrongKey
from rollcast.runtime.run_folder import RunFolder, run_folder_error, write_atomically
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.run_ca import RunCA, run_ca_path
from rollcast.wire.ids import RunId

RUN_ID = "run_id"  # in the ledger's meta
FINGERPRINT = "ca_fingerprint"  # in the ledger's meta
SEALED = "ca_sealed"  # in the meta of a shared store: key and certificate of the authority, encrypted
LEDGER_DEADLINE_S = 30.0


async def run_authority(ledger: RunStore, folder: RunFolder, run_id: RunId, key_file: Path | None = None) -> RunCA:
    """Return the run's authority; a new run gets one.

    With another key the certificates of all members and every invite that is out would be void, and nothing would say
    why: so the ledger keeps the fingerprint. A store that several coordinators share keeps the key too, encrypted.

    Args:
        key_file: file of the key that encrypts the authority's in the store; None: only the folder keeps it.

    Raises:
        LedgerDamaged: the run has an authority, and its key is lost, damaged or another one.
        WrongKey: the stored key is of another run.
        RunFolderError: the folder cannot be written.
        StoreError, WaitTimedOut: the ledger does not answer.
    """
    async with deadline(LEDGER_DEADLINE_S, "the ledger to return the key and the fingerprint of the run's authority"):
        asked = ledger.get_meta(FINGERPRINT), ledger.get_meta(SEALED)  # both with one commit
        known, sealed = await asked[0], await asked[1]
    if known is None:
        authority = await asyncio.to_thread(RunCA.load_or_create, folder.secrets, run_id)
        if key_file is not None:
            key = await asyncio.to_thread(read_or_create_key, key_file, may_create=True)
            key_sealed = seal(key, run_id, await asyncio.to_thread(run_ca_path(folder.secrets).read_bytes))
            async with deadline(LEDGER_DEADLINE_S, "the ledger to store the key of the run's authority"):
                await ledger.set_meta(SEALED, key_sealed)
        async with deadline(LEDGER_DEADLINE_S, "the ledger to store the fingerprint of the run's authority"):
            await ledger.set_meta(FINGERPRINT, authority.fingerprint)
        return authority
    if key_file is not None and sealed is not None:
        await _take_over(sealed, folder, run_id, key_file)
    try:
        authority = await asyncio.to_thread(RunCA.load, folder.secrets)
    except WrongKey as error:
        raise _lost(folder, error.cause or error.what) from None
    if authority.fingerprint != known:
        raise _lost(folder, f"its fingerprint is {authority.fingerprint}, the run's {known}")
    return authority


def can_decrypt_authority(key_file: Path, connection: SqlConnection) -> bool:
    """Check that a standby's key decrypts the key of the run's authority; return False while the store has none.

    Raises:
        RunFolderError: the file is missing.
        WrongKey: it holds another key.
    """
    run_id, sealed = get_meta(connection, RUN_ID), get_meta(connection, SEALED)
    if run_id is None or sealed is None:
        return False
    unseal(read_or_create_key(key_file, may_create=False), RunId(run_id), sealed)
    return True


async def _take_over(sealed: str, folder: RunFolder, run_id: RunId, key_file: Path) -> None:
    """Write the key of the run's authority, as the store has it, to this host's folder."""
    key = await asyncio.to_thread(read_or_create_key, key_file, may_create=False)
    path = run_ca_path(folder.secrets)
    try:
        await asyncio.to_thread(write_atomically, path, unseal(key, run_id, sealed), mode=0o600)
    except OSError as error:
        raise run_folder_error(path, error) from None


def _lost(folder: RunFolder, cause: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"the key of the run's authority in {folder.secrets} is lost",
        cause=cause,
        fix="copy it from a backup, or restore that with `rollcast restore`; with a new key all members would be out",
    )
