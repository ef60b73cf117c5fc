"""Test a machine's sensors: temperatures, its GPU, its owner's presence, and facts that never change."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from peer.donor.machine import facts
from peer.donor.machine.facts import Accelerator, machine_facts
from peer.donor.machine.gpu_sensors import GpuSensors
from peer.donor.machine.owner_presence import ask, graphical_idle_s, idle_s, terminal_touches
from peer.donor.machine.sensors import Sensors
from tests.peer.donor.check.test_findings import MACHINE


def test_sensors_of_this_machine_can_be_read(tmp_path: Path) -> None:
    sensors = Sensors(tmp_path, GpuSensors(None), find_idle_s=lambda: 12.0)
    first = sensors.read()
    assert first.idle_s == 12.0
    assert first.memory_used_bytes is not None
    assert first.memory_used_bytes > 1 << 20
    assert first.memory_free_bytes is not None
    assert first.disk_free_bytes is not None
    assert first.gpu_celsius is None


def test_use_by_others_excludes_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    looked = Sensors(tmp_path, GpuSensors(None), wants_idle=False).read()
    assert looked.others_cpu_share == pytest.approx(0.5), "8 s of 10 were busy, 3 of them with us"
    assert looked.idle_s is None


@pytest.mark.parametrize(
    ("scope", "plugged", "expected"),
    [
        ("System", False, True),
        ("System", True, False),
        ("System", None, None),  # "Not charging", as laptops report that keep their battery below 80 %
        ("", False, True),  # most batteries of laptops have no scope
        ("Device", False, None),  # a wireless mouse at a desktop
    ],
)
def test_only_a_battery_that_the_machine_runs_on_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, plugged: bool | None, expected: bool | None
) -> None:
    battery, mains = tmp_path / "battery", tmp_path / "AC"
    battery.mkdir()
    mains.mkdir()
    (mains / "type").write_text("Mains\n")
    (battery / "type").write_text("Battery\n")
    if scope:
        (battery / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr("peer.donor.machine.sensors._SUPPLIES", tmp_path)
    reported = SimpleNamespace(percent=80.0, power_plugged=plugged)
    monkeypatch.setattr("psutil.sensors_battery", lambda: reported, raising=False)
    assert Sensors(tmp_path, GpuSensors(None), wants_idle=False).read().on_battery is expected


class NVMLError(Exception):
    pass


class FakeNvml:
    """Two devices; the second does not report its power."""

    NVML_TEMPERATURE_GPU = 0
    NVMLError = NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTemperature(self, device: int, _sensor: int) -> int:
        return 60 + 10 * device

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        if device:
            raise NVMLError("not supported")
        return 250_000

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7, usedGpuMemory=100), SimpleNamespace(pid=8 + device, usedGpuMemory=None)]


def test_the_hottest_device_and_the_power_of_all() -> None:
    sensors = GpuSensors(FakeNvml())
    assert sensors.celsius() == 70.0
    assert sensors.watts() == 250.0
    assert sensors.memory_used_bytes({7, 9}) == 200
    assert sensors.memory_used_bytes({1}) == 0


def test_without_an_accelerator_there_are_no_readings() -> None:
    sensors = GpuSensors(None)
    assert (sensors.celsius(), sensors.watts(), sensors.memory_used_bytes({1})) == (None, None, None)


def test_a_machine_without_a_driver_has_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError("driver not loaded")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert GpuSensors.here().watts() is None


LIST = "c1 1000 jan seat0 tty2\n7 1000 jan - pts/0\n"

SESSIONS = {
    "c1": "Type=wayland\nIdleHint=yes\nIdleSinceHintMonotonic=40000000\n",
    "7": "Type=tty\nIdleHint=no\nIdleSinceHintMonotonic=0\n",
}


def logind(command: list[str]) -> str:
    return LIST if command[1] == "list-sessions" else SESSIONS[command[2]]


def test_an_idle_desktop_reports_since_when() -> None:
    assert graphical_idle_s(100.0, logind) == 60.0


def test_a_desktop_in_use_is_not_idle() -> None:
    def busy(command: list[str]) -> str:
        return logind(command).replace("IdleHint=yes", "IdleHint=no")

    assert graphical_idle_s(100.0, busy) == 0.0


def test_without_logind_there_is_no_answer() -> None:
    assert graphical_idle_s(100.0, lambda _: "") is None


def test_terminals_report_when_they_were_typed_into(tmp_path: Path) -> None:
    (tmp_path / "pts").mkdir()
    terminal = tmp_path / "pts" / "3"
    terminal.touch()
    os.utime(terminal, (1000.0, 2000.0))
    (tmp_path / "pts" / "ptmx").touch()
    assert terminal_touches([tmp_path / "pts"]) == [1000.0]


def test_a_missing_command_gives_no_answer() -> None:
    assert ask(["rollcast-no-such-command"]) == ""
    assert ask(["false"]) == ""
    assert ask(["echo", "hello"]) == "hello\n"


def test_idle_time_of_this_machine_is_a_number() -> None:
    idle = idle_s(logind)
    assert idle is not None
    assert idle >= 0.0


def test_this_machine_has_what_every_machine_has(tmp_path: Path) -> None:
    found = machine_facts(tmp_path / "not" / "there", link_host="127.0.0.1", link_port=0)
    assert found.memory_bytes >= found.memory_free_bytes > 0
    assert found.disk_free_bytes > 0
    assert found.cores >= 1
    assert found.engines["jax"] == found.packages["jax"]
    assert not found.link_port_taken
    assert not (tmp_path / "not").exists()


def test_a_port_that_is_taken_is_seen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert machine_facts(tmp_path, link_host="127.0.0.1", link_port=port).link_port_taken
    assert not machine_facts(tmp_path, link_host="127.0.0.1", link_port=port).link_port_taken


def test_an_accelerators_memory_counts_for_computing() -> None:
    assert MACHINE.compute_memory_bytes == MACHINE.memory_bytes
    from dataclasses import replace

    device = replace(MACHINE, accelerators=(Accelerator("H", 100, 60),))
    assert (device.compute_memory_bytes, device.compute_memory_free_bytes) == (100, 60)
    both = replace(MACHINE, accelerators=(Accelerator("H", 100, 60), Accelerator("L", 50, 50)))
    assert (both.compute_memory_bytes, both.compute_memory_free_bytes) == (50, 50), "a model is divided evenly"


@pytest.mark.parametrize(("named", "seen"), [(None, "abc"), ("", ""), ("2,0", "ca"), ("1,7", "b"), ("GPU-8d1f", "abc")])
def test_devices_that_are_hidden_from_the_process_do_not_count(
    monkeypatch: pytest.MonkeyPatch, named: str | None, seen: str
) -> None:
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    found = facts._visible(tuple(Accelerator(name, 100, 60) for name in "abc"))
    assert "".join(one.name for one in found) == seen
