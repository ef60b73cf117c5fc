from __future__ import annotations

from pathlib import Path

import pytest

from peer.donor.machine.gpu_sensors import GpuSensors
from peer.donor.machine.sensors import Sensors


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    sensors = Sensors(tmp_path, GpuSensors(None), find_idle_s=lambda: 12.0)
    first = sensors.look()
    assert first.others_cpu_share is None, "nothing to compare with"
    assert first.idle_s == 12.0
    assert first.memory_used_bytes is not None
    assert first.memory_used_bytes > 1 << 20
    assert first.memory_free_bytes is not None
    assert first.disk_free_bytes is not None
    assert first.gpu_celsius is None


def test_what_others_use_is_what_we_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Times(tuple[float, ...]):
        idle = iowait = 0.0

    def times(user: float, idle: float) -> Times:
        made = Times((user, 0.0, 0.0, idle, 0.0, 0.0, 0.0, 0.0))
        made.idle = idle
        return made

    seen = iter([times(100.0, 100.0), times(108.0, 102.0)])
    ours = iter([1.0, 4.0])
    monkeypatch.setattr("psutil.cpu_times", lambda: next(seen))
    monkeypatch.setattr("peer.donor.machine.sensors._cpu_s", lambda _: next(ours))
    monkeypatch.setattr(Sensors, "_family", lambda self: [self._me])
    sensors = Sensors(tmp_path, GpuSensors(None), wants_idle=False)
    sensors.look()
    looked = sensors.look()
    assert looked.others_cpu_share == pytest.approx(0.5), "8 s of 10 were busy, 3 of them with us"
    assert looked.idle_s is None
