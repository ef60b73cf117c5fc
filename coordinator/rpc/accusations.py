"""Verify the proof in a peer's report of a wrong chunk: hostile input ends here.

The accused peer's receipt is checked against the signed manifest of the version that it names. A report whose receipt
proves nothing counts as one without: the accuser's word alone.
"""

from __future__ import annotations

import structlog

from coordinator.core.events.events import PeerAccused
from coordinator.ledger.store import RunStore
from coordinator.rpc.sanitise import counter, text
from rollcast.runtime.errors import MalformedMessage, RollcastError
from rollcast.runtime.waits import deadline
from rollcast.wire import limits
from rollcast.wire.ids import PeerId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import ListProof
from rollcast.wire.versions.receipts import convicts, verify_receipt
from rollcast.wire.versions.records import Manifest, parse_announcement

log = structlog.get_logger()

LEDGER_DEADLINE_S = 30.0


async def accused_event(accuser: PeerId, message: pb.Accusation, *, run_id: RunId, ledger: RunStore) -> PeerAccused:
    """Return the event of a report, with the receipt only if that proves it.

    Raises:
        MalformedMessage: a value is out of bounds.
        StoreError, WaitTimedOut: the ledger cannot read the version.
    """
    if not 0 < len(message.culprit_peer_id) <= limits.PEER_ID_LENGTH_MAX:
        raise MalformedMessage("an accusation names no peer")
    if message.receipt.ByteSize() > limits.RECEIPT_BYTES_MAX:
        raise MalformedMessage("a receipt is too long")
    culprit, version = PeerId(text(message.culprit_peer_id)), Version(counter(message.version))
    receipt = b""
    if message.HasField("receipt"):
        manifest = await _manifest(ledger, version, message.encoding_id)
        if manifest is not None and _proves(accuser, culprit, message, manifest, run_id):
            receipt = message.receipt.SerializeToString(deterministic=True)
        else:
            log.warning("a receipt proves nothing", accuser=accuser, culprit=culprit, version=version)
    return PeerAccused(accuser, culprit, version, message.chunk_index, text(message.reason), receipt)


def _proves(accuser: PeerId, culprit: PeerId, message: pb.Accusation, manifest: Manifest, run_id: RunId) -> bool:
    proof = ListProof(message.list_block, message.list_block_hashes)
    try:
        receipt = verify_receipt(message.receipt, culprit)
    except RollcastError:
        return False
    named = receipt.run_id == run_id and receipt.chunk_index == message.chunk_index
    return named and convicts(receipt, accuser, manifest, proof)


async def _manifest(ledger: RunStore, version: Version, encoding_id: int) -> Manifest | None:
    async with deadline(LEDGER_DEADLINE_S, "the ledger to find a version"):
        stored = await ledger.version(version)
    if stored is None:
        return None
    return parse_announcement(pb.VersionAnnouncement.FromString(stored.announcement)).manifest(encoding_id)
