from __future__ import annotations

import pytest

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.tensors import tensor_table, tensors_from_pb


def test_tensor_table_lays_tensors_out_back_to_back() -> None:
    table = tensor_table([("a", "float32", (2, 3)), ("b", "bfloat16", ()), ("c", "float8_e4m3fn", (5,))])
    assert [(spec.offset_bytes, spec.size_bytes) for spec in table] == [(0, 24), (24, 2), (26, 5)]
    with pytest.raises(MalformedMessage):
        tensor_table([("a", "object", (1,))])


def test_a_table_from_the_network_is_the_one_that_was_sent() -> None:
    """What is wrong with one is in test_records: it arrives in a record."""
    table = tensor_table([("a", "float32", (2, 3)), ("b", "bfloat16", ())])
    specs = [
        pb.TensorSpec(name=one.name, dtype=one.dtype, shape=one.shape, offset_bytes=at, size_bytes=one.size_bytes)
        for one, at in zip(table, (0, 24), strict=True)
    ]
    assert tensors_from_pb(pb.VersionRecord(tensors=specs, state_size_bytes=26)) == table
    with pytest.raises(MalformedMessage, match="do not fill"):
        tensors_from_pb(pb.VersionRecord(tensors=specs, state_size_bytes=27))
