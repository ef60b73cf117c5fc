from __future__ import annotations

from bench.broadcast.loopback import figures
from bench.systems.loopback import Transfer
from bench.wan.machines import Loopback
from bench.wan.scenarios import Node


def test_figures_are_medians_and_ratios_of_the_same_round() -> None:
    measured = {
        "1mib": [Transfer(1.0, 2.0), Transfer(2.0, 4.0), Transfer(4.0, 8.0)],
        "nginx_tls": [Transfer(1.0, 1.0), Transfer(1.0, 6.0), Transfer(1.0, 4.0)],
    }
    found = figures(measured, mib=1024)
    assert found["cpu_s_per_gb_1mib"] == 4.0 / 1.073741824
    assert found["nginx_tls_cpu_s_per_gb"] == 4.0 / 1.073741824
    assert found["nginx_tls_vs_1mib"] == 0.5
    assert found["mb_s"] == 1024 * 1.048576 / 2.0
    assert figures({"aria2": measured["1mib"]}, mib=1024).keys() == {"aria2_cpu_s_per_gb"}


def test_processes_on_loopback_are_counted_and_end_with_it() -> None:
    nodes = [Node(0.0, 0.0, 0.0)] * 2
    with Loopback(nodes, 7) as machines:
        assert machines.addresses == ("127.7.0.1", "127.7.0.2")
        done = machines.spawn(0, ["sh", "-c", "exit 3"])
        assert machines.reap(done) == 3
        left = machines.spawn(1, ["sleep", "600"])
        assert not machines.has_ended(left)
        assert machines.cpu_s() >= 0.0
        assert machines.emulator_cpu_s() == 0.0
        assert machines.counters().sent_bytes == (0, 0)
    assert machines.has_ended(left)
