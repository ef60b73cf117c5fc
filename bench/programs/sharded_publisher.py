"""Publish a version from two learner processes of four virtual devices each, over which parameters are sharded.

    python -m bench.programs.sharded_publisher FOLDER --address HOST:PORT --process-id 0    # and 1

Each process prints one JSON object. ``grown_mib`` is the most by which its resident memory grew while it froze a
version (process 0 also hashed, encoded and kept it); process 0 adds ``snapshot_mib``, the size of that version.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from bench.programs.publishing_learner import MIB, make_publisher, peak_bytes, reset_peak
from learner.config import DistributedConfig, LearnerConfig
from learner.distributed.jax_internals import coordination_store
from learner.distributed.leader import Follower, LeadTrainer
from learner.distributed.processes import join
from learner.distributed.team import Order, Team
from learner.publishing.versions import RetainedVersions
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Version

DEVICES = 4  # per process
MODEL = ModelConfig(
    vocabulary_size=16_384,
    layers=4,
    width=1024,
    query_heads=8,
    key_value_heads=4,
    head_size=128,
    feed_forward_width=3072,
)


class _Watched(Team):
    """A team that measures how much memory grew between an order to freeze and the order after it."""

    grown_bytes = 0
    _before: int | None = None

    def take(self) -> Order:
        if self._before is not None:
            self.grown_bytes = peak_bytes() - self._before
        order = super().take()
        self._before = _start() if order.name == "freeze" else None
        return order


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--address", required=True)
    parser.add_argument("--process-id", type=int, required=True)
    arguments = parser.parse_args()
    place = {"processes": 2, "process_id": arguments.process_id, "coordinator_address": arguments.address}
    settings = DistributedConfig.model_validate(place)
    join(settings)
    team = _Watched(
        coordination_store(),
        settings.join_timeout_s,
        settings.operation_timeout_s,
        lambda error: os._exit(error.exit_code),
    )
    config = LearnerConfig.model_validate({"mesh": {"fsdp": 2 * DEVICES}})
    found = follow(config, team) if arguments.process_id else lead(config, team, arguments.folder)
    print(json.dumps(found), flush=True)
    sys.stderr.flush()
    os._exit(0)


def lead(config: LearnerConfig, team: Team, folder: Path) -> dict[str, float]:
    """Publish twice, and return the figures of the second version: the first one compiles."""
    trainer = LeadTrainer(MODEL, config, team)
    retained = RetainedVersions(folder, mapped=1)
    publisher = make_publisher(folder, MODEL, retained)
    grown, size = 0, 0
    for version in (Version(1), Version(2)):
        before = _start()
        snapshot = retained.freeze(version, trainer.begin_freeze).finish()
        publisher.prepare(version, snapshot)
        grown, size = peak_bytes() - before, len(snapshot.state_bytes)
    trainer.end(0)
    return {"grown_mib": grown / MIB, "snapshot_mib": size / MIB}


def follow(config: LearnerConfig, team: _Watched) -> dict[str, float]:
    """Follow the leader's orders until it ends, and return by how much memory grew in the last freeze."""
    Follower(config, team).follow()
    return {"grown_mib": team.grown_bytes / MIB}


def _start() -> int:
    """Reset the peak and return the bytes of resident memory that are in use now."""
    reset_peak()
    return peak_bytes()


if __name__ == "__main__":
    main()
