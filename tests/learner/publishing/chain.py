"""Versions that follow from each other by real deltas."""

from __future__ import annotations

import numpy as np

from rollcast.policy.snapshot import Snapshot
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.delta import encode_delta
from rollcast.wire.versions.records import (
    PREVIOUS_ID,
    VerifiedVersion,
    VersionRecord,
    delta_manifest,
    keyframe_manifest,
    parse_announcement,
    sign_version,
)
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import tensor_table

IDENTITY = Identity.generate()
ITEMS = 20_000
TENSORS = tensor_table([("weights", "bfloat16", (ITEMS,))])
STATE_BYTES = 2 * ITEMS


class Chain:
    """The states of versions 0, 1, 2 ..., of which each has another 1 % of its items changed.

    Args:
        whole: versions whose deltas replace whole blocks, so that no inverse exists.
    """

    def __init__(self, count: int, *, changed: float = 0.01, whole: frozenset[int] = frozenset()) -> None:
        draw = np.random.default_rng(0)
        items = draw.integers(0, 1 << 16, ITEMS, np.uint16)
        self.states: list[bytes] = []
        self.signed: list[VerifiedVersion] = []
        self.deltas: list[bytes] = []
        for version in range(count):
            if version in whole:
                items = draw.integers(0, 4, ITEMS, np.uint16)
            else:
                items[draw.integers(0, ITEMS, int(changed * ITEMS))] += 1
            self._add(version, items.tobytes())

    def snapshot(self, version: int) -> Snapshot:
        """Return a version's snapshot."""
        return Snapshot(TENSORS, self.states[version])

    def _add(self, version: int, state: bytes) -> None:
        record = VersionRecord(
            RunId("run"), Epoch(0), Version(version), b"", state_hash(state), len(state), TENSORS, "{}"
        )
        manifests, delta = [keyframe_manifest(record, chunk_list(state, 1024), 1024)], b""
        if version:
            delta = b"".join(encode_delta(TENSORS, self.states[-1], state))
            hashes, base = chunk_list(delta, 1024), Version(version - 1)
            size = len(delta)
            manifests.append(
                delta_manifest(record, PREVIOUS_ID, base, size_bytes=size, chunk_hashes=hashes, chunk_size_bytes=1024)
            )
        self.states.append(state)
        self.deltas.append(delta)
        self.signed.append(parse_announcement(sign_version(record, manifests, IDENTITY)))
