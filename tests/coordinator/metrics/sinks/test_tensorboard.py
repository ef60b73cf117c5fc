"""Test event files by reading them back."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from coordinator.metrics.sinks.tensorboard import TensorBoardSink


def _scalars(folder: Path) -> dict[tuple[str, int], float]:
    """Return the scalars by name and step from the TFRecords of the folder's event file."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = {}
    (file,) = folder.glob("events.*")
    data = file.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        data = data[12 + size + 4 :]
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
    return found


def test_figures_of_steps_are_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    sink = TensorBoardSink(tmp_path)
    sink.write(1, {"loss": 0.5, "kl_k3:peer": 0.25, "name": "x"})
    sink.write(2, {"loss": 0.25})
    sink.close()
    assert _scalars(tmp_path) == {("loss", 1): 0.5, ("kl_k3/peer", 1): 0.25, ("loss", 2): 0.25}
