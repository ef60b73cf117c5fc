"""Make versions of a small model without jax, all weights zero."""

from __future__ import annotations

from rollcast.policy.config import ModelConfig
from rollcast.policy.shapes import parameter_shapes
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import tensor_table

MODEL = ModelConfig(
    vocabulary_size=24, layers=2, width=32, query_heads=2, key_value_heads=1, head_size=32, feed_forward_width=32
)


def zeros(version: int, model: ModelConfig = MODEL) -> tuple[VersionRecord, bytes]:
    table = tensor_table((name, model.precision, shape) for name, shape in parameter_shapes(model).items())
    state = bytes([version]) + bytes(sum(spec.size_bytes for spec in table) - 1)
    record = VersionRecord(
        RunId("run-1"), Epoch(0), Version(version), b"", state_hash(state), len(state), table, model.model_dump_json()
    )
    return record, state
