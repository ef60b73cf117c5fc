"""Test that a device holds two versions where there is room, and otherwise one."""

from __future__ import annotations

import weakref

import jax
import numpy as np
import pytest

from peer.engines import device_weights
from peer.engines.device_weights import DeviceRoom, DeviceWeights, VersionsOnDevice, read_back
from rollcast.wire.versions.state_hash import state_hash


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
    tensors, copied = room.use(first)
    assert not copied
    on_device = tensors["one"]
    assert isinstance(on_device, jax.Array)
    tensors, copied = room.use(second)
    assert copied
    assert tensors["one"].tolist() == [2.0] * 4
    assert on_device.is_deleted()
    assert (first.on_device, first.tensors, second.on_device) == (False, {}, True)
    assert room.use(second) == (second.tensors, False)
    assert second.size_bytes == 16


def test_the_devices_hold_one_copy_and_no_tensor_more_while_versions_are_swapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"tensor {number}" for number in range(8)]
    room = DeviceRoom("one")
    old, new = (DeviceWeights({name: np.full(1 << 10, value, np.float32) for name in names}) for value in (1, 2))
    room.place(old)
    ours = list(old.tensors.values())
    held: list[int] = []
    put = DeviceWeights.put

    def counted(self: DeviceWeights, name: str) -> None:
        put(self, name)
        alive = [array for array in ours if not array.is_deleted()]
        held.append(len(alive) + sum(isinstance(array, jax.Array) for array in self.tensors.values()))

    monkeypatch.setattr(DeviceWeights, "put", counted)
    tensors, _ = room.use(new)
    assert held == [len(names)] * len(names)
    assert all(array.is_deleted() for array in ours)
    assert {float(array[0]) for array in tensors.values()} == {2.0}


def test_tensors_are_hashed_as_the_state_that_they_were_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    host = {name: random.normal(size=shape).astype(np.float32) for name, shape in (("b", (7, 5)), ("a", (3,)))}
    state = host["a"].tobytes() + host["b"].tobytes()
    monkeypatch.setattr(device_weights, "_PIECE_BYTES", 40)  # two rows of b
    assert read_back(host) == read_back(jax.device_put(host)) == state_hash(state)


def test_versions_beside_each_other_stay() -> None:
    room, first, second = DeviceRoom("two"), weights(1.0), weights(2.0)
    room.place(first)
    room.place(second)
    assert [room.use(one)[0]["one"].tolist()[0] for one in (first, second)] == [1.0, 2.0]


def test_a_version_that_was_replaced_before_it_was_active_is_freed() -> None:
    room, active, replaced = DeviceRoom("two"), weights(1.0), weights(2.0)
    room.place(active)
    room.place(replaced)
    freed = weakref.ref(replaced.tensors["one"])
    del replaced
    assert freed() is None, "otherwise three versions are on the device while the next one is copied"
    assert room.use(active)[0]["one"].tolist() == [1.0] * 4
