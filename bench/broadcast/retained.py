"""Measure what a learner writes for a step over many steps: deltas, records, and the states that it copies to disk."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from bench.broadcast.materialise import written_bytes
from learner.config import PublishConfig
from learner.publishing.growth import Unsigned
from learner.publishing.prepared import Prepared
from learner.publishing.publisher import Publisher
from learner.publishing.versions import RetainedVersions
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.errors import WaitTimedOut
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.records import PREVIOUS_ID
from rollcast.wire.versions.tensors import tensor_table

_CHANGED_SHARE = 0.05
_KEPT = 4
_COPY_TIMEOUT_S = 60.0
_POLL_S = 0.01


def learner_written_ratio(size_bytes: int = 16 << 20, share: float = _CHANGED_SHARE) -> float:
    """Return the bytes that a learner writes to disk / the bytes of its deltas, from one copied state to the next.

    Args:
        size_bytes: size of the state: one tensor of bf16 values.
        share: share of the values that change in each step, by one unit in the last place.
    """
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 16, size_bytes // 2, np.uint16)
    tensors = tensor_table([("weights", "bfloat16", values.shape)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        retained = RetainedVersions(folder, mapped=2, in_memory=True)
        publisher = _publisher(folder, retained)
        publisher.prepare(Version(0), Snapshot(tensors, values.tobytes()))
        before, version, delta_bytes = written_bytes(), 0, 0
        while retained.copied is None:
            version += 1
            values[rng.random(len(values)) < share] += 1
            prepared = publisher.prepare(Version(version), Snapshot(tensors, values.tobytes()))
            assert prepared is not None
            delta_bytes += len(prepared.encodings[PREVIOUS_ID].data)
            retained.remove(retained.versions()[:-_KEPT], oldest_replayed=version)
        _until_written(folder / f"{retained.copied:012d}.state")
        return (written_bytes() - before) / delta_bytes


class _Nowhere:
    async def push(self, prepared: Prepared) -> None:
        return

    async def send_ahead(self, unsigned: Unsigned) -> None:
        return


async def _announce(_: pb.VersionAnnouncement) -> bool:
    return True


def _publisher(folder: Path, retained: RetainedVersions) -> Publisher:
    """Return a publisher of which only ``prepare`` is used."""
    return Publisher(
        identity=Identity.load_or_create(folder / "learner.key"),
        run=pb.RunInfo(run_id="bench"),
        model_json="{}",
        config=PublishConfig(squash_versions=0),
        retained=retained,
        origin=_Nowhere(),
        announce=_announce,
    )


def _until_written(path: Path) -> None:
    end_s = time.monotonic() + _COPY_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > end_s:
            raise WaitTimedOut(f"waited {_COPY_TIMEOUT_S:.0f} s for {path.name} to be written")
        time.sleep(_POLL_S)
