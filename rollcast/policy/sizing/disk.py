"""Estimate the bytes that a run takes on the disks of its learner, its origin and its peers.

The module does arithmetic only. Versions and checkpoints are counted exactly; deltas are an upper estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.policy.config import ModelConfig
from rollcast.policy.sizing.memory import (
    Bytes,
    LearnerShape,
    master_bytes,
    moment_bytes,
    parameter_bytes,
    snapshot_bytes,
    version_bytes,
)

DELTA_SHARE = 0.1
"""Bytes of all deltas of a version / bytes of the version. One delta has 0.002 to 0.008 at the learning rates of RL
(docs/figures.md); larger learning rates change more bits."""
_DELTAS_SINCE_STATE_SHARE = 0.6  # see learner.publishing.versions
_EXPORT_BYTES = 2  # of a parameter in bfloat16


@dataclass(frozen=True, slots=True)
class LearnerRetention:
    """What a learner keeps on its disk."""

    newest_versions: int  # versions that coming batches and deltas need
    checkpoints: int
    staleness_limit: int  # a checkpoint's replay needs the versions that were this many steps old at most
    states_in_memory: bool = True  # versions are kept as deltas from one state; otherwise each as a state of its own


@dataclass(frozen=True, slots=True)
class StoreRetention:
    """What the store of an origin or peer keeps; see peer.config.StoreConfig."""

    versions: int
    deltas: int
    bytes_max: int  # 0: no limit


def learner_disk(model: ModelConfig, shape: LearnerShape, keeps: LearnerRetention) -> Bytes:
    """Return the most bytes of a learner's run folder, by component.

    A version and a checkpoint that are being written exist besides the kept ones. The versions that a checkpoint needs
    are counted for all checkpoints but the newest, whose versions are among the newest ones. Where states are in memory
    one state is on disk besides the deltas of all versions, and of those since that state.
    """
    version = version_bytes(model)
    versions = keeps.newest_versions + (keeps.checkpoints - 1) * (keeps.staleness_limit + 1)
    older_share = _DELTAS_SINCE_STATE_SHARE if keeps.states_in_memory else 0.0
    return _base(model) | {
        "versions": (1 if keeps.states_in_memory else versions) * version + version,
        "their deltas": int((versions * DELTA_SHARE + older_share) * version),
        "checkpoints": _checkpoint_bytes(model, shape, keeps.checkpoints),
    }


def supervised_disk(model: ModelConfig, shape: LearnerShape, checkpoints: int, *, exports: bool) -> Bytes:
    """Return the most bytes of supervised training's run folder and, if it ``exports`` its model, of the export."""
    found = _base(model) | {"checkpoints": _checkpoint_bytes(model, shape, checkpoints)}
    return found | ({"export": parameter_bytes(model, _EXPORT_BYTES)} if exports else {})


def store_disk(model: ModelConfig, keeps: StoreRetention) -> Bytes:
    """Return the most bytes of the store of an origin or peer, by component; a version that arrives is one more."""
    version = version_bytes(model)
    versions, deltas = keeps.versions * version, int(keeps.deltas * version * DELTA_SHARE)
    if keeps.bytes_max:
        versions = max(version, min(versions, keeps.bytes_max))
        deltas = max(0, min(deltas, keeps.bytes_max - versions))
    return _base(model) | {"versions": versions + version, "their deltas": deltas}


def _checkpoint_bytes(model: ModelConfig, shape: LearnerShape, kept: int) -> int:
    """Return the bytes of the kept checkpoints, and of one that is being written."""
    state = master_bytes(model) * (1 + shape.reference + shape.critic)
    state += moment_bytes(model, shape.state_dtype, shape.optimiser) * (1 + shape.critic)
    return (kept + 1) * state


def _base(model: ModelConfig) -> Bytes:
    """Return the bytes of the frozen base of adapters, which is kept once whatever the limits are."""
    return {} if model.lora is None else {"frozen base": snapshot_bytes(model)}
