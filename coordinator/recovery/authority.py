"""Load the run's certificate authority, and notice when it is not the one that the run began with."""

from __future__ import annotations

import asyncio

from coordinator.ledger.store import RunStore
from rollcast.runtime.errors import LedgerDamaged, WrongKey
from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.run_ca import RunCA
from rollcast.wire.ids import RunId

FINGERPRINT = "ca_fingerprint"  # in the ledger's meta
LEDGER_DEADLINE_S = 30.0


async def run_authority(ledger: RunStore, folder: RunFolder, run_id: RunId) -> RunCA:
    """Return the run's authority; a new run gets one.

    With another key the certificates of all members and every invite that is out would be void, and nothing would say
    why: so the ledger keeps the fingerprint.

    Raises:
        LedgerDamaged: the run has an authority, and its key is lost, damaged or another one.
        WrongKey: the stored key is of another run.
        RunFolderError: the folder cannot be written.
        StoreError, WaitTimedOut: the ledger does not answer.
    """
    async with deadline(LEDGER_DEADLINE_S, "the ledger to return the fingerprint of the run's authority"):
        known = await ledger.get_meta(FINGERPRINT)
    if known is None:
        authority = await asyncio.to_thread(RunCA.load_or_create, folder.secrets, run_id)
        async with deadline(LEDGER_DEADLINE_S, "the ledger to store the fingerprint of the run's authority"):
            await ledger.set_meta(FINGERPRINT, authority.fingerprint)
        return authority
    try:
        authority = await asyncio.to_thread(RunCA.load, folder.secrets)
    except WrongKey as error:
        raise _lost(folder, error.cause or error.what) from None
    if authority.fingerprint != known:
        raise _lost(folder, f"its fingerprint is {authority.fingerprint}, the run's {known}")
    return authority


def _lost(folder: RunFolder, cause: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"the key of the run's authority in {folder.secrets} is lost",
        cause=cause,
        fix="copy it from a backup, or restore that with `rollcast restore`; with a new key all members would be out",
    )
