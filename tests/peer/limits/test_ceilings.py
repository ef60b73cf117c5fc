from __future__ import annotations

import pytest

from peer.limits.ceilings import Ceilings, CeilingWatch
from peer.limits.readings import Readings

GIB = 2**30


@pytest.mark.parametrize(
    ("ceilings", "passed", "between", "well_within"),
    [
        (Ceilings(cpu_celsius_max=80), Readings(cpu_celsius=81), Readings(cpu_celsius=78), Readings(cpu_celsius=75)),
        (Ceilings(gpu_celsius_max=80), Readings(gpu_celsius=81), Readings(gpu_celsius=78), Readings(gpu_celsius=75)),
        (
            Ceilings(power_watts_max=300),
            Readings(power_watts=301),
            Readings(power_watts=280),
            Readings(power_watts=270),
        ),
        (
            Ceilings(battery_share_min=0.5),
            Readings(on_battery=True, battery_share=0.49),
            Readings(on_battery=True, battery_share=0.52),
            Readings(on_battery=True, battery_share=0.56),
        ),
        (
            Ceilings(others_cpu_share_max=0.5),
            Readings(others_cpu_share=0.6),
            Readings(others_cpu_share=0.47),
            Readings(others_cpu_share=0.4),
        ),
        (
            Ceilings(memory_free_bytes_min=4 * GIB),
            Readings(memory_free_bytes=3 * GIB),
            Readings(memory_free_bytes=int(4.2 * GIB)),
            Readings(memory_free_bytes=5 * GIB),
        ),
        (
            Ceilings(disk_free_bytes_min=4 * GIB),
            Readings(disk_free_bytes=3 * GIB),
            Readings(disk_free_bytes=int(4.2 * GIB)),
            Readings(disk_free_bytes=5 * GIB),
        ),
    ],
)
def test_a_ceiling_allows_work_again_only_beyond_its_gap(
    ceilings: Ceilings, passed: Readings, between: Readings, well_within: Readings
) -> None:
    watch = CeilingWatch(ceilings)
    assert not watch.reasons(between), "not passed yet"
    assert len(watch.reasons(passed)) == 1
    assert len(watch.reasons(between)) == 1, "passed, and not yet well within"
    assert not watch.reasons(well_within)
    assert not watch.reasons(between)


def test_a_limit_without_a_sensor_stops_work() -> None:
    everything = Ceilings(
        cpu_celsius_max=1,
        gpu_celsius_max=1,
        power_watts_max=1,
        battery_share_min=0.5,
        idle_s_min=1,
        others_cpu_share_max=0,
        memory_free_bytes_min=1,
        disk_free_bytes_min=1,
    )
    reasons = CeilingWatch(everything).reasons(Readings(on_battery=True))
    assert len(reasons) == 8
    assert all(reason.endswith("cannot be read on this machine") for reason in reasons)
    assert CeilingWatch(Ceilings()).reasons(Readings()) == ()
    assert CeilingWatch(Ceilings(battery_share_min=0.5)).reasons(Readings()) == (), "it has none"


def test_a_limit_of_1_allows_no_work_on_battery() -> None:
    watch = CeilingWatch(Ceilings(battery_share_min=1.0))
    assert watch.reasons(Readings(on_battery=True, battery_share=0.99)) == ("on battery",)
    assert watch.reasons(Readings(on_battery=False, battery_share=0.1)) == ()


def test_a_machine_in_use_reports_when_work_begins() -> None:
    watch = CeilingWatch(Ceilings(idle_s_min=300))
    assert watch.reasons(Readings(idle_s=100)) == ("the machine is in use; work begins 200 s after the last touch",)


def test_all_reasons_are_given() -> None:
    watch = CeilingWatch(Ceilings(cpu_celsius_max=80, disk_free_bytes_min=GIB))
    assert watch.reasons(Readings(cpu_celsius=90, disk_free_bytes=0)) == (
        "processor at 90 °C, above 80 °C",
        "0.0 GiB of disk free, the limit is 1.0 GiB",
    )
