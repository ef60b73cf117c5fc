"""Test that a device holds two versions where there is room, and otherwise one."""

from __future__ import annotations

import weakref

import jax
import numpy as np
import pytest

from peer.engines.device_weights import DeviceRoom, DeviceWeights, VersionsOnDevice


def weights(value: float) -> DeviceWeights:
    return DeviceWeights({"one": np.full(4, value, np.float32)})


@pytest.mark.parametrize(
    ("versions", "memory_bytes", "beside"),
    [("two", 1, True), ("one", 1000, False), ("auto", 100, True), ("auto", 99, False), ("auto", None, True)],
)
def test_a_second_version_comes_beside_where_there_is_room(
    versions: VersionsOnDevice, memory_bytes: int | None, beside: bool
) -> None:
    room = DeviceRoom(versions, memory_bytes)
    assert room.takes_beside(peak_bytes=100)  # nothing is on the device yet
    room.place(weights(1.0))
    assert room.takes_beside(peak_bytes=100) == beside


def test_a_version_that_waits_on_the_host_takes_the_place_of_the_one_before() -> None:
    room, first, second = DeviceRoom("one"), weights(1.0), weights(2.0)
    room.place(first)
    on_device = room.use(first)["one"]
    assert isinstance(on_device, jax.Array)
    assert room.use(second)["one"].tolist() == [2.0] * 4
    assert on_device.is_deleted()
    assert (first.on_device, first.tensors, second.on_device) == (False, {}, True)
    assert room.use(second)["one"] is second.tensors["one"]
    assert second.size_bytes == 16


def test_versions_beside_each_other_stay() -> None:
    room, first, second = DeviceRoom("two"), weights(1.0), weights(2.0)
    room.place(first)
    room.place(second)
    assert [room.use(one)["one"].tolist()[0] for one in (first, second)] == [1.0, 2.0]


def test_a_version_that_was_replaced_before_it_was_active_is_freed() -> None:
    room, active, replaced = DeviceRoom("two"), weights(1.0), weights(2.0)
    room.place(active)
    room.place(replaced)
    freed = weakref.ref(replaced.tensors["one"])
    del replaced
    assert freed() is None, "otherwise three versions are on the device while the next one is copied"
    assert room.use(active)["one"].tolist() == [1.0] * 4
