from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from peer.donor.control.saved_state import SavedState
from peer.donor.enforce import LimitsEnforcer
from peer.donor.machine.gpu_sensors import GpuSensors
from peer.donor.machine.sensors import Sensors
from peer.limits.ceilings import Ceilings
from peer.limits.decide import ALL, Allowed, LimitsCore, OwnerRequest, Rules
from peer.limits.quota import MonthUse, Quota
from peer.limits.readings import Readings
from rollcast.runtime.errors import RunFolderError

NOON = datetime(2026, 11, 23, 12)


class World:
    """A limits enforcer on a simulated machine."""

    def __init__(self, folder: Path, rules: Rules | None = None, quota: Quota | None = None) -> None:
        self.applied: list[Allowed] = []
        self.changed = asyncio.Event()
        self.finished: list[datetime | None] = []
        self.moved = (0, 0)
        self.local = NOON
        self.holds = False
        self.memory = SavedState(folder)
        quota = quota or Quota(use=self.memory.use)
        self.enforcer = LimitsEnforcer(
            LimitsCore(rules or Rules(), quota, self.memory.asked),
            Sensors(folder, GpuSensors(None), wants_idle=False),
            self.memory,
            moved=lambda: self.moved,
            apply=self._apply,
            finish=self.finished.append,
            holds_work=lambda: self.holds,
            local_now=lambda: self.local,
        )

    def _apply(self, allowed: Allowed) -> None:
        self.applied.append(allowed)
        self.changed.set()


async def test_a_machine_without_limits_is_allowed_everything_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enforcer.apply_readings(Readings())
    world.enforcer.apply_readings(Readings())
    assert world.applied == [ALL]


async def test_a_pause_survives_a_restart(tmp_path: Path) -> None:
    assert World(tmp_path).enforcer.ask("pause", 3600.0).state == "paused"
    again = World(tmp_path)
    again.enforcer.apply_readings(Readings())
    assert [allowed.state for allowed in again.applied] == ["paused"]
    again.local += timedelta(hours=1)
    again.enforcer.apply_readings(Readings())
    assert again.applied[-1] == ALL
    assert SavedState(tmp_path).asked == OwnerRequest()


async def test_bytes_count_once_and_are_saved(tmp_path: Path) -> None:
    world = World(tmp_path, quota=Quota(upload_bytes=100))
    for sent in (60, 60, 99):
        world.moved = sent, 7
        world.enforcer.apply_readings(Readings())
    assert world.applied[-1].send
    world.moved = 100, 7
    world.enforcer.apply_readings(Readings())
    assert not world.applied[-1].send
    world.enforcer.ask("run")
    assert SavedState(tmp_path).use == MonthUse("2026-11", 100, 7)


async def test_finishing_until_a_time_becomes_a_pause_once_no_work_is_held(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.holds = True
    world.enforcer.ask("finish", 7200.0)
    world.enforcer.apply_readings(Readings())
    assert world.finished == [NOON + timedelta(hours=2)]
    assert world.applied[-1].state == "finishing"
    world.holds, world.local = False, NOON + timedelta(hours=1)
    world.enforcer.apply_readings(Readings())
    assert world.applied[-1].state == "paused"
    assert world.memory.asked == OwnerRequest("pause", NOON + timedelta(hours=2))


async def test_the_real_machine_is_read_and_its_traffic_saved_at_the_end(tmp_path: Path) -> None:
    world = World(tmp_path, Rules(ceilings=Ceilings(disk_free_bytes_min=1e18)))
    world.moved = 5, 6
    task = asyncio.create_task(world.enforcer.run())
    async with asyncio.timeout(10.0):
        await world.changed.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert world.applied[0].state == "resting"
    assert "disk free" in world.applied[0].reason
    assert SavedState(tmp_path).use == MonthUse(f"{NOON:%Y-%m}", 5, 6)


async def test_new_limits_apply_at_once_and_keep_the_months_count(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.moved = 100, 7
    world.enforcer.apply_readings(Readings())
    world.enforcer.change(Rules(), Quota(upload_bytes=100, use=world.enforcer.used))
    world.enforcer.apply_readings(Readings())
    assert world.applied == [ALL, Allowed(True, False, True, "on", world.applied[-1].reason)]
    world.enforcer.change(Rules(ceilings=Ceilings(cpu_celsius_max=60.0)), Quota(use=world.enforcer.used))
    world.enforcer.apply_readings(Readings(cpu_celsius=70.0))
    assert world.applied[-1].state == "resting"
    world.enforcer.change(Rules(), Quota(use=world.enforcer.used))
    assert world.applied[-1] == ALL, "a limit that is gone holds nothing back"
    assert world.enforcer.used.sent_bytes == 100


async def test_a_pause_holds_on_a_disk_that_refuses_and_the_owner_learns_what_a_restart_forgets(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enforcer.apply_readings(Readings())
    (tmp_path / "donor.json").unlink()
    (tmp_path / "donor.json").mkdir()
    with pytest.raises(RunFolderError, match="forgets it when it restarts") as caught:
        world.enforcer.ask("pause")
    assert caught.value.cause
    assert world.applied[-1].state == "paused"
    world.enforcer.change(Rules(), Quota(use=world.enforcer.used))
    (tmp_path / "donor.json").rmdir()
    assert world.enforcer.ask("pause").state == "paused"
    assert SavedState(tmp_path).asked == OwnerRequest("pause")
