"""Test the NAT table against a model, the rules of each kind, rewritten checksums, and two real homes."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from bench.systems.base import Lines
from bench.wan import build
from bench.wan.nat import FIN, FLOWS_MAX, RST, SYN, NatTable, Protocol
from bench.wan.network import Network
from bench.wan.scenarios import Nat, Node

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
needs_network = pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())

KINDS: tuple[Nat, ...] = get_args(Nat)
HOME_PORTS = st.sampled_from([4001, 4002, 4003])
REMOTES = st.tuples(st.sampled_from([11, 12]), st.sampled_from([80, 81]))
PROTOCOLS: st.SearchStrategy[Protocol] = st.sampled_from(["tcp", "udp"])
FLAGS = st.sampled_from([0, 0, SYN, FIN, RST])
PAUSES_S = st.sampled_from([0.0, 1.0, 9.0, 29.0, 31.0, 239.0, 241.0, 7439.0])


@dataclass
class Flow:
    """The model's record of one flow."""

    outside: int
    last_s: float = 0.0
    answered: bool = False
    closing: bool = False

    def limit_s(self, protocol: str) -> float:
        if protocol == "udp":
            return 30.0
        return 10.0 if self.closing else 7440.0 if self.answered else 240.0

    def seen(self, flags: int, now_s: float) -> None:
        self.last_s = now_s
        self.closing = (self.closing and not flags & SYN) or bool(flags & (FIN | RST))


class TableAgainstModel(RuleBasedStateMachine):
    """Check that every answer of the table is the one that its kind prescribes."""

    @initialize(kind=st.sampled_from(KINDS), seed=st.integers(1, 2**32 - 1))
    def begin(self, kind: Nat, seed: int) -> None:
        self.kind, self.now_s = kind, 0.0
        self.table = NatTable(kind, seed)
        self.flows: dict[tuple[Protocol, int, tuple[int, int]], Flow] = {}

    @rule(seconds=PAUSES_S)
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        gone = [key for key, flow in self.flows.items() if self.now_s - flow.last_s >= flow.limit_s(key[0])]
        for key in gone:
            del self.flows[key]
        assert self.table.flows(self.now_s) == len(self.flows)

    @rule(protocol=PROTOCOLS, inside=HOME_PORTS, remote=REMOTES, flags=FLAGS)
    def send(self, protocol: Protocol, inside: int, remote: tuple[int, int], flags: int) -> None:
        outside = self.table.out(protocol, inside, remote, self.now_s, flags)
        assert 1024 <= outside <= 65535
        key = (protocol, inside, remote)
        same_port = {flow.outside for known, flow in self.flows.items() if known[:2] == key[:2]}
        others = {flow.outside for known, flow in self.flows.items() if known[0] == protocol and known != key}
        if key in self.flows:
            assert outside == self.flows[key].outside
        elif self.kind == "symmetric":
            assert outside not in others
        else:
            assert outside in same_port if same_port else outside not in others
        self.flows.setdefault(key, Flow(outside)).seen(flags, self.now_s)

    @rule(data=st.data(), protocol=PROTOCOLS, remote=REMOTES, flags=FLAGS)
    def receive(self, data: st.DataObject, protocol: Protocol, remote: tuple[int, int], flags: int) -> None:
        known = [flow.outside for key, flow in self.flows.items() if key[0] == protocol]
        outside = data.draw(st.sampled_from([*known, 1023]))
        owners = {key: flow for key, flow in self.flows.items() if key[0] == protocol and flow.outside == outside}
        exact = next((key for key in owners if key[2] == remote), None)
        if exact is not None:
            expected = exact[1]
        else:
            expected = next(iter(owners))[1] if owners and self.kind == "full-cone" else 0
        assert self.table.into(protocol, outside, remote, self.now_s, flags) == expected
        if exact is not None:
            self.flows[exact].answered = True
            self.flows[exact].seen(flags, self.now_s)

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.__exit__(None, None, None)


TestTableAgainstModel = TableAgainstModel.TestCase
TestTableAgainstModel.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

FIRST, SECOND, OTHER_PORT = (1, 80), (2, 80), (1, 81)


@pytest.mark.parametrize(
    ("kind", "one_port", "lets_in"),
    [
        ("full-cone", True, {FIRST, SECOND, OTHER_PORT}),
        ("port-restricted", True, {FIRST}),
        ("symmetric", False, {FIRST}),
    ],
)
def test_each_kind_maps_and_lets_in_as_its_name_says(kind: Nat, one_port: bool, lets_in: set[tuple[int, int]]) -> None:
    with NatTable(kind) as table:
        outside = table.out("tcp", 4001, FIRST, 0.0, SYN)
        assert {remote for remote in (FIRST, SECOND, OTHER_PORT) if table.into("tcp", outside, remote, 0.0)} == lets_in
        assert (table.out("tcp", 4001, SECOND, 0.0) == outside) is one_port
        assert table.into("udp", outside, FIRST, 0.0) == 0


def test_a_full_table_accepts_flows_again_once_others_expire() -> None:
    with NatTable("port-restricted") as table:
        outside = {table.out("udp", port, FIRST, 0.0) for port in range(2000, 2000 + FLOWS_MAX)}
        assert len(outside) == FLOWS_MAX
        assert table.out("udp", 1999, FIRST, 1.0) == 0
        assert table.out("udp", 1999, FIRST, 30.0) > 0
        assert table.flows(30.0) == 1


def test_a_router_that_changes_its_kind_keeps_its_flows() -> None:
    with NatTable("port-restricted") as table:
        before = table.out("tcp", 4001, FIRST, 0.0)
        table.become("symmetric")
        assert table.out("tcp", 4001, FIRST, 1.0) == before
        assert table.out("tcp", 4001, (FIRST[0], FIRST[1] + 1), 1.0) != before
        table.become("full-cone")
        assert table.into("tcp", before, (99, 99), 2.0) == 4001


def test_a_router_discards_the_flows_of_one_remote_address() -> None:
    with NatTable("port-restricted") as table:
        outside, other = table.out("tcp", 4001, FIRST, 0.0), (FIRST[0] + 1, FIRST[1])
        table.out("tcp", 4002, FIRST, 0.0)
        kept = table.out("tcp", 4003, other, 0.0)
        table.forget(FIRST[0])
        assert table.flows(0.0) == 1
        assert not table.into("tcp", outside, FIRST, 0.0)
        assert table.into("tcp", kept, other, 0.0) == 4003


# ---------------------------------------------------------------- packets

HOME, ROUTER, REMOTE = (socket.inet_aton(text) for text in ("192.168.7.2", "10.77.0.8", "10.77.0.1"))


def _sum(data: bytes) -> int:
    """Return the ones' complement sum of 16-bit words (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _pseudo(packet: bytes) -> bytes:
    return packet[12:20] + struct.pack("!BBH", 0, packet[9], len(packet) - 20)


def _packet(protocol: Protocol, source: bytes, destination: bytes, ports: tuple[int, int], payload: bytes) -> bytes:
    number = socket.IPPROTO_TCP if protocol == "tcp" else socket.IPPROTO_UDP
    if protocol == "tcp":
        transport, at = struct.pack("!HHIIBBHHH", *ports, 1, 2, 5 << 4, SYN, 1000, 0, 0) + payload, 16
    else:
        transport, at = struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload, 6
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(transport), 7, 0, 64, number, 0, source, destination)
    header = header[:10] + struct.pack("!H", 0xFFFF - _sum(header)) + header[12:]
    whole = 0xFFFF - _sum(_pseudo(header + transport) + transport)
    transport = transport[:at] + struct.pack("!H", whole or 0xFFFF) + transport[at + 2 :]
    return header + transport


def _is_sound(packet: bytes) -> bool:
    return _sum(packet[:20]) == 0xFFFF and _sum(_pseudo(packet) + packet[20:]) == 0xFFFF


@given(
    protocol=PROTOCOLS,
    ports=st.tuples(st.integers(1, 65535), st.integers(1, 65535)),
    payload=st.binary(max_size=9),
    seed=st.integers(1, 1000),
)
def test_checksums_are_right_after_both_ways(
    protocol: Protocol, ports: tuple[int, int], payload: bytes, seed: int
) -> None:
    with NatTable("port-restricted", seed) as table:
        sent = table.rewrite("out", _packet(protocol, HOME, REMOTE, ports, payload), ROUTER, 0.0)
        assert sent is not None
        assert sent[12:20] == ROUTER + REMOTE
        assert _is_sound(sent)
        outside = struct.unpack("!H", sent[20:22])[0]
        answer = table.rewrite("in", _packet(protocol, REMOTE, ROUTER, (ports[1], outside), payload), HOME, 0.0)
        assert answer == _packet(protocol, REMOTE, HOME, (ports[1], ports[0]), payload) or (
            answer is not None and protocol == "udp" and _is_sound(answer)  # 0 and all ones are the same sum
        )


@given(protocol=PROTOCOLS, payload=st.binary(max_size=9))
def test_a_partial_checksum_stays_that_of_the_pseudo_header(protocol: Protocol, payload: bytes) -> None:
    at = 36 if protocol == "tcp" else 26

    def partial(packet: bytes) -> bytes:
        return packet[:at] + struct.pack("!H", _sum(_pseudo(packet))) + packet[at + 2 :]

    with NatTable("full-cone") as table:
        given_packet = partial(_packet(protocol, HOME, REMOTE, (4001, 80), payload))
        sent = table.rewrite("out", given_packet, ROUTER, 0.0, partial=True)
        assert sent is not None
        assert sent == partial(sent)


@given(st.binary(max_size=60))
def test_any_bytes_are_dropped_or_translated(packet: bytes) -> None:
    with NatTable("full-cone") as table:
        for direction in ("out", "in"):
            found = table.rewrite(direction, packet, ROUTER, 0.0)
            assert found is None or len(found) == len(packet)


def test_fragments_and_other_protocols_are_dropped() -> None:
    packet = _packet("udp", HOME, REMOTE, (1, 2), b"")
    with NatTable("full-cone") as table:
        assert table.rewrite("out", packet[:6] + b"\x20\x00" + packet[8:], ROUTER, 0.0) is None
        assert table.rewrite("out", packet[:9] + b"\x01" + packet[10:], ROUTER, 0.0) is None


# ---------------------------------------------------------------- namespaces

_SERVE = (
    "import socket,sys;s=socket.create_server((sys.argv[1],9));print('ready',flush=True)\n"
    "while True:\n c,a=s.accept();n=0\n while n<int(sys.argv[2]):n+=len(c.recv(65536))\n"
    " print('from',*a,n,flush=True);c.sendall(b'thanks')"
)
_SEND = (
    "import socket,sys;c=socket.create_connection((sys.argv[1],9),10);c.sendall(bytes(int(sys.argv[2])));"
    "print('heard',c.recv(9).decode(),*c.getsockname(),flush=True)"
)
_TRY = (
    "import socket,sys\ntry:socket.create_connection((sys.argv[1],9),1);print('through')\nexcept OSError:print('not')"
)


def wait_for_drop(network: Network) -> None:
    """Wait until the router has dropped a packet: on a busy machine the dialler gives up before the router sees one."""
    deadline = time.monotonic() + 30.0
    while not network.counters().nat_drops:
        assert time.monotonic() < deadline, "the router dropped nothing"
        time.sleep(0.05)


@needs_network
def test_a_home_dials_out_is_seen_as_its_router_and_cannot_be_dialled() -> None:
    size = "300000"
    with Network([Node(80, 80, 2), Node(80, 80, 2, "port-restricted")]) as network:
        lines = Lines()
        for number in (0, 1):
            command = [sys.executable, "-c", _SERVE, network.inside[number], size]
            lines.follow(number, network.spawn(number, command, stdout=subprocess.PIPE, text=True))
        lines.count("ready", 2, 30.0)
        dial = [sys.executable, "-c", _SEND, network.addresses[0], size]
        lines.follow(1, network.spawn(1, dial, stdout=subprocess.PIPE, text=True))
        found: dict[str, list[str]] = {}
        while len(found) < 2:
            word, *rest = lines.next("both ends", 30.0)[1].split()
            found[word] = rest
        blocked = network.spawn(
            0, [sys.executable, "-c", _TRY, network.addresses[1]], stdout=subprocess.PIPE, text=True
        )
        assert blocked.stdout is not None
        assert blocked.stdout.read().strip() == "not"
        blocked.stdout.close()
        wait_for_drop(network)
    address, port, received = found["from"]
    said, home, home_port = found["heard"]
    assert (address, received, said, home) == ("10.77.0.2", size, "thanks", "192.168.1.2")
    assert port != home_port
