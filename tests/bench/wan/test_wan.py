"""Test the scenarios, the bound, and that the namespaces leave nothing behind."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest

from bench.systems.base import Lines
from bench.wan import build
from bench.wan.meter import Meter
from bench.wan.network import Network
from bench.wan.scenarios import SCENARIOS, TROUBLES, Node, fluid_bound, own_bounds_s, scenario

needs_network = pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())


def _namespaces() -> set[str]:
    return set(subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split())


@needs_network
def test_lost_packets_are_sent_again_and_nothing_else_changes() -> None:
    receive = (
        "import hashlib,socket,sys;s=socket.create_server((sys.argv[1],9));print('ready',flush=True);c,_=s.accept()\n"
        "h=hashlib.sha256()\nwhile d:=c.recv(65536): h.update(d)\nprint('got',h.hexdigest(),flush=True)"
    )
    send = (
        "import random,socket,sys;c=socket.create_connection((sys.argv[1],9),10)\n"
        "c.sendall(random.Random(1).randbytes(1<<22));c.close()"
    )
    with Network([Node(500, 500, 1, loss=0.02), Node(500, 500, 1)]) as network:
        lines, address = Lines(), network.addresses[1]
        lines.follow(1, network.spawn(1, [sys.executable, "-c", receive, address], stdout=subprocess.PIPE, text=True))
        lines.count("ready", 1, 20.0)
        network.spawn(0, [sys.executable, "-c", send, address])
        got = lines.count("got", 1, 20.0)[1]
        counters = network.counters()
    assert got == hashlib.sha256(Random(1).randbytes(1 << 22)).hexdigest()
    segments = counters.sent_bytes[0] / 1500
    assert 0.01 < counters.lost / segments < 0.03


def test_every_scenario_has_a_source_and_eight_peers_but_four() -> None:
    others = {name: len(nodes) for name, nodes in SCENARIOS.items() if len(nodes) != 9}
    assert others == {"homes12": 13, "peers32": 33, "nat50": 17, "gigabit": 5}


def test_a_receivers_own_bound_is_its_downlinks_or_what_all_could_have() -> None:
    bounds_s = own_bounds_s(20_000_000, SCENARIOS["homes12"])  # 160 Mbit
    assert bounds_s[1] == pytest.approx(8.0)  # the source's uplink
    assert (bounds_s[9], bounds_s[12]) == (pytest.approx(10.0), pytest.approx(20.0))  # their downlinks


def test_behind_routers_is_every_second_peer_and_never_the_source() -> None:
    behind = [node.nat for node in SCENARIOS["nat50"]]
    assert behind[0] is None
    assert sum(nat is not None for nat in behind) == 8
    assert len({node.open() for node in SCENARIOS["nat50"]}) == 1


def test_trouble_comes_to_peers_of_scenarios_that_exist() -> None:
    assert all(1 <= trouble.node < len(SCENARIOS[name]) for name, trouble in TROUBLES.items())


def test_homes_are_bound_by_their_uplinks() -> None:
    bound = fluid_bound(16 << 20, SCENARIOS["peers32"])
    assert bound.binding == "uplinks"
    assert 35 < bound.seconds < 45


@pytest.mark.parametrize(("name", "seconds", "binding"), [("homo50", 5.12, "source"), ("het50", 6.83, "uplinks")])
def test_bound_of_32_megabytes(name: str, seconds: float, binding: str) -> None:
    bound = fluid_bound(32_000_000, SCENARIOS[name])
    assert bound.seconds == pytest.approx(seconds, abs=0.01)
    assert bound.binding == binding


def test_all_three_terms_bind_in_wan() -> None:
    terms_s = fluid_bound(32_000_000, SCENARIOS["wan"]).terms_s
    assert max(terms_s.values()) == pytest.approx(4.45, abs=0.01)
    assert max(terms_s.values()) / min(terms_s.values()) < 1.05


def test_a_slow_downlink_binds() -> None:
    assert fluid_bound(1_000_000, [Node(100, 100, 1), Node(100, 1, 1)]).binding == "downlink"


def test_scale_multiplies_rates_and_keeps_delays() -> None:
    scaled, whole = scenario("wan", 0.25), SCENARIOS["wan"]
    assert scaled[6] == Node(7.5, 25.0, whole[6].delay_ms)
    assert fluid_bound(1000, scaled).seconds == pytest.approx(4 * fluid_bound(1000, whole).seconds)


def test_lines_of_a_process_are_counted_by_node() -> None:
    lines = Lines()
    code = "print('ready');print('done 2.5')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        lines.follow(3, process)
        assert lines.count("done", 1, 20.0) == {3: "2.5"}


@needs_network
def test_a_network_carries_bytes_and_leaves_nothing_behind() -> None:
    receive = (
        "import socket,sys;s=socket.create_server((sys.argv[1],9));print('ready',flush=True);c,_=s.accept();n=0\n"
        "while d:=c.recv(65536): n+=len(d)\nprint('got',n,flush=True)"
    )
    send = "import socket,sys;c=socket.create_connection((sys.argv[1],9),10);c.sendall(bytes(200000));c.close()"
    with Network([Node(80, 80, 5), Node(80, 80, 5)]) as network:
        assert set(network.names) <= _namespaces()
        lines, address = Lines(), network.addresses[1]
        command = [sys.executable, "-c", receive, address]
        receiver = network.spawn(1, command, stdout=subprocess.PIPE, text=True)
        lines.follow(1, receiver)
        lines.count("ready", 1, 20.0)
        meter = Meter(network)
        sender = network.spawn(0, [sys.executable, "-c", send, address])
        assert lines.count("got", 1, 20.0) == {1: "200000"}
        assert network.reap(sender) == 0
        cost = meter.read()
        idle = network.spawn(0, ["sleep", "100"])
    assert 200_000 < cost.source_bytes < 230_000  # headers and handshakes on top
    assert cost.cpu_s > 0
    assert idle.returncode == -signal.SIGKILL
    assert not set(network.names) & _namespaces()


@needs_network
def test_an_error_inside_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError), Network([Node(80, 80, 5), Node(80, 80, 5)]) as network:
        1 / 0  # noqa: B018
    assert not set(network.names) & _namespaces()


@needs_network
def test_the_round_trip_is_twice_the_delays() -> None:
    echo = (
        "import socket,sys;s=socket.create_server((sys.argv[1],9));print('ready',flush=True);c,_=s.accept();c.recv(1)"
    )
    connect = "import socket,sys,time;t=time.monotonic();socket.create_connection((sys.argv[1],9),10).send(b'x');"
    with Network([Node(80, 80, 20), Node(80, 80, 20)]) as network:
        lines, address = Lines(), network.addresses[1]
        lines.follow(1, network.spawn(1, [sys.executable, "-c", echo, address], stdout=subprocess.PIPE, text=True))
        lines.count("ready", 1, 20.0)
        command = [sys.executable, "-c", connect + "print('took',time.monotonic()-t)", address]
        lines.follow(0, network.spawn(0, command, stdout=subprocess.PIPE, text=True))
        took_s = float(lines.count("took", 1, 20.0)[0])
    assert 0.08 <= took_s < 0.4


@needs_network
def test_rates_change_while_it_runs() -> None:
    receive = (
        "import socket,sys,time;s=socket.create_server((sys.argv[1],9));print('ready',flush=True);c,_=s.accept()\n"
        "n=0;t=time.monotonic()\nwhile d:=c.recv(65536): n+=len(d)\nprint('took',time.monotonic()-t,flush=True)"
    )
    send = "import socket,sys;c=socket.create_connection((sys.argv[1],9),10);c.sendall(bytes(60000));c.close()"
    with Network([Node(80, 80, 1), Node(80, 80, 1)]) as network:
        lines, address = Lines(), network.addresses[1]
        lines.follow(1, network.spawn(1, [sys.executable, "-c", receive, address], stdout=subprocess.PIPE, text=True))
        lines.count("ready", 1, 20.0)
        network.set_rates(0, Node(1, 80, 1))
        network.spawn(0, [sys.executable, "-c", send, address])
        took_s = float(lines.count("took", 1, 20.0)[1])
    assert 0.3 <= took_s < 2.0  # half a megabit at a megabit a second, where it would be 6 ms


@needs_network
def test_two_hosts_behind_one_router_meet_inside_and_not_at_its_own_address() -> None:
    serve = (
        "import socket,sys;s=socket.create_server((sys.argv[1],9));print('ready',flush=True)\n"
        "while True:\n c,a=s.accept();c.sendall(a[0].encode());c.close()"
    )
    dial = (
        "import socket,sys\ntry:print('through',socket.create_connection((sys.argv[1],9),1).recv(99).decode())\n"
        "except OSError:print('not')"
    )
    home = Node(80, 80, 2, "full-cone")

    def answer(network: Network, number: int, address: str) -> str:
        dialling = network.spawn(number, [sys.executable, "-c", dial, address], stdout=subprocess.PIPE, text=True)
        assert dialling.stdout is not None
        with dialling.stdout as stream:
            said = str(stream.read()).strip()
        network.reap(dialling)
        return said

    with Network([Node(80, 80, 2), home, replace(home, beside=1), home]) as network:
        assert (network.addresses[1], network.inside[2]) == (network.addresses[2], "192.168.1.3")
        lines = Lines()
        for number in range(3):
            command = [sys.executable, "-c", serve, network.inside[number]]
            lines.follow(number, network.spawn(number, command, stdout=subprocess.PIPE, text=True))
        lines.count("ready", 3, 20.0)
        before = network.counters()
        assert answer(network, 1, network.inside[2]) == f"through {network.inside[1]}"
        assert answer(network, 2, network.inside[1]) == f"through {network.inside[2]}"
        assert network.counters().sent_bytes == before.sent_bytes, "that goes through no access link"
        assert answer(network, 2, network.addresses[1]) == "not"
        assert answer(network, 3, network.inside[2]) == "not"
        for number in (1, 2):
            assert answer(network, number, network.addresses[0]) == f"through {network.addresses[1]}"
        after = network.counters()
        assert after.sent_bytes[1] > before.sent_bytes[1]
        assert after.sent_bytes[2] == 0
