"""Test tensors in files and in versions."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.safetensors import (
    HEADER_BYTES_MAX,
    LENGTH_BYTES,
    OtherName,
    Piece,
    StateMap,
    StoredTensor,
    format_header,
    header_length,
    parse_header,
    parse_index,
)
from rollcast.wire.versions.tensors import tensor_table, tensors_from_pb


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def header(tensors: dict[str, Any]) -> bytes:
    return json.dumps(tensors).encode()


def test_a_written_header_reads_back_and_is_aligned() -> None:
    written = format_header([("b", "bfloat16", (2, 3)), ("scalar", "float32", ())])
    assert len(written) % 8 == 0
    assert header_length(written[:LENGTH_BYTES]) == len(written) - LENGTH_BYTES
    assert parse_header(written[LENGTH_BYTES:]) == {
        "b": StoredTensor("bfloat16", (2, 3), len(written), 12),
        "scalar": StoredTensor("float32", (), len(written) + 12, 4),
    }


def test_a_header_gives_places_from_the_beginning_of_the_file() -> None:
    data = header({"__metadata__": {"format": "pt"}, "b": entry("BF16", [2, 3], 4, 16), "a": entry("F32", [], 0, 4)})
    assert header_length(struct.pack("<Q", len(data))) == len(data)
    start = LENGTH_BYTES + len(data)
    assert parse_header(data) == {
        "a": StoredTensor("float32", (), start, 4),
        "b": StoredTensor("bfloat16", (2, 3), start + 4, 12),
    }


def test_dtypes_that_no_version_has_are_left_out() -> None:
    assert parse_header(header({"a": entry("F4", [2], 0, 1), "b": entry("U8", [1], 1, 2)})).keys() == {"b"}


@pytest.mark.parametrize("prefix", [b"", b"1234567", struct.pack("<Q", 1), struct.pack("<Q", HEADER_BYTES_MAX + 1)])
def test_a_header_of_an_absurd_length_is_refused_before_it_is_fetched(prefix: bytes) -> None:
    with pytest.raises(MalformedMessage):
        header_length(prefix)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        header({"a": 1}),
        header({"a": {"dtype": "F32"}}),
        header({"a": entry("F32", [2], 0, 4)}),
        header({"a": entry("F32", [-1], 0, -4)}),
        header({"a": entry("F32", [1], 8, 4)}),
        header({"a": entry("F32", [2**62, 2**62], 0, 4)}),
        header({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}),
        header({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}),
    ],
)
def test_a_hostile_header_is_a_clean_refusal(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_header(data)


def test_an_index_names_files_in_its_folder() -> None:
    files = {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-1.safetensors"}
    assert parse_index(header({"weight_map": files})) == ("model-1.safetensors", "model-2.safetensors")


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/b", "http://x", "", ".x", "a?b", "a%2fb", 5, "x" * 256])
def test_an_index_that_names_files_elsewhere_is_refused(file: Any) -> None:
    with pytest.raises(MalformedMessage):
        parse_index(header({"weight_map": {"a": file}}))
    with pytest.raises(MalformedMessage):
        parse_index(header({"weight_map": [file]}))


SPECS = tensor_table([("a", "uint8", (10,)), ("b", "float32", (2, 2)), ("c", "uint8", (4,)), ("d", "uint8", (6,))])


def test_a_range_of_the_state_is_read_in_pieces() -> None:
    files = {
        "one": {"a": StoredTensor("uint8", (10,), 100, 10), "d": StoredTensor("uint8", (6,), 200, 6)},
        "two": {"model.C": StoredTensor("uint8", (4,), 50, 4), "b": StoredTensor("float32", (4,), 0, 16)},
    }
    state = StateMap(SPECS, files, {"c": OtherName("model.C")})
    assert state.tensors_found == 3, "b has another shape"
    assert state.pieces(2, 10) == [Piece("one", 102, 8)]
    assert state.pieces(27, 33) == [Piece("two", 51, 3), Piece("one", 200, 3)]
    assert state.pieces(9, 11) is None
    assert state.pieces(25, 27) is None
    assert state.pieces(30, 37) is None, "beyond the end"
    assert StateMap(SPECS, {}).pieces(0, 1) is None


def test_tensor_table_lays_tensors_out_back_to_back() -> None:
    table = tensor_table([("a", "float32", (2, 3)), ("b", "bfloat16", ()), ("c", "float8_e4m3fn", (5,))])
    assert [(spec.offset_bytes, spec.size_bytes) for spec in table] == [(0, 24), (24, 2), (26, 5)]
    with pytest.raises(MalformedMessage):
        tensor_table([("a", "object", (1,))])


def test_a_table_from_the_network_is_the_one_that_was_sent() -> None:
    """test_records tests malformed tables, because a table arrives in a record."""
    table = tensor_table([("a", "float32", (2, 3)), ("b", "bfloat16", ())])
    specs = [
        pb.TensorSpec(name=one.name, dtype=one.dtype, shape=one.shape, offset_bytes=at, size_bytes=one.size_bytes)
        for one, at in zip(table, (0, 24), strict=True)
    ]
    assert tensors_from_pb(pb.VersionRecord(tensors=specs, state_size_bytes=26)) == table
    with pytest.raises(MalformedMessage, match="do not fill"):
        tensors_from_pb(pb.VersionRecord(tensors=specs, state_size_bytes=27))
