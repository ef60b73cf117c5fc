"""Run a learner that trains, then publishes a version while training continues; print both peaks of memory as JSON.

The kernel measures the peaks (VmHWM of /proc/self/status); they are reset between the two phases.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from bench.learner.learner_step import Step
from learner.config import PublishConfig
from learner.publishing.publisher import Publisher
from learner.publishing.versions import RetainedVersions
from rollcast.policy.config import ModelConfig
from rollcast.policy.snapshot import Snapshot
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Version
from rollcast.wire.proto import rollcast_pb2 as pb

MIB = 1 << 20
STEPS = 2
SHAPE = {"width": 512, "layers": 6, "vocabulary": 8192, "rows": 8, "row_tokens": 128, "micro_batch_tokens": 512}


class _Nowhere:
    async def push(self, prepared: Any) -> None:
        return

    async def send_ahead(self, unsigned: Any) -> None:
        return


async def _announce(_: pb.VersionAnnouncement) -> bool:
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in SHAPE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    arguments = parser.parse_args(namespace=argparse.Namespace(remat="none"))
    with tempfile.TemporaryDirectory() as folder:
        json.dump(measure(arguments, Path(folder)), sys.stdout)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Train with one version kept, then publish the next one while training continues."""
    step = Step(arguments, "float32")
    retained = RetainedVersions(folder, mapped=1)
    publisher = make_publisher(folder, step.model, retained)
    step.run()
    publisher.prepare(Version(1), retained.freeze(Version(1), step.trainer.begin_freeze).finish())
    reset_peak()
    for _ in range(STEPS):
        step.run()
    training = peak_bytes()
    reset_peak()
    snapshot = retained.freeze(Version(2), step.trainer.begin_freeze).finish()
    publish_while_training(publisher, snapshot, step)
    publishing, size = peak_bytes(), len(snapshot.state_bytes)
    return {
        "training_mib": training / MIB,
        "snapshot_mib": size / MIB,
        "publishing_mib": publishing / MIB,
        "publish_over_mib": (publishing - training - size) / MIB,
    }


def make_publisher(folder: Path, model: ModelConfig, retained: RetainedVersions) -> Publisher:
    """Return a publisher whose pushes and announcements go nowhere."""
    return Publisher(
        identity=Identity.load_or_create(folder / "learner.key"),
        run=pb.RunInfo(run_id="bench"),
        model_json=model.model_dump_json(),
        config=PublishConfig(),
        retained=retained,
        origin=_Nowhere(),
        announce=_announce,
    )


def publish_while_training(publisher: Publisher, snapshot: Snapshot, step: Step) -> None:
    """Hash, encode, sign and keep the version in a thread of its own, and train in this one until that ends."""
    publishing = threading.Thread(target=publisher.prepare, args=(Version(2), snapshot))
    publishing.start()
    step.run()
    while publishing.is_alive():
        step.run()
    publishing.join()


def reset_peak() -> None:
    """Reset the peak to the memory in use now (proc(5), /proc/pid/clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the most bytes of resident memory since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise OSError("the kernel reports no peak of resident memory (VmHWM in /proc/self/status)")


if __name__ == "__main__":
    main()
