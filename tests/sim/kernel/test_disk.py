from __future__ import annotations

from random import Random

import pytest

from rollcast.sim.kernel.disk import Disk, DiskFull


def test_a_power_loss_keeps_or_loses_unsynced_content_by_chance() -> None:
    outcomes = set()
    for seed in range(20):
        disk = Disk(Random(seed))
        disk.write("a", 1)
        disk.sync("a")
        disk.write("a", 2)
        disk.write("b", 1)
        assert disk.read("a") == 2
        disk.lose_power()
        outcomes.add((disk.read("a"), disk.read("b")))
    assert outcomes == {(1, None), (1, 1), (2, None), (2, 1)}


def test_a_removed_file_may_come_back_until_that_is_synced() -> None:
    back = set()
    for seed in range(20):
        disk = Disk(Random(seed))
        disk.write("a", 1)
        disk.sync("a")
        disk.remove("a")
        disk.lose_power()
        back.add(disk.read("a"))
    assert back == {1, None}
    disk.remove("a")
    disk.sync("a")
    disk.lose_power()
    assert disk.names() == []


def test_a_full_disk_refuses_and_slow_ones_take_longer() -> None:
    disk = Disk(Random(0))
    quick = disk.sync_s()
    disk.state.slow_s = 1.0
    assert disk.sync_s() > 1.0 > quick
    disk.state.full = True
    with pytest.raises(DiskFull):
        disk.write("a", 1)
