"""Make network namespaces joined by the emulator, run processes in them, and remove all of it afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bench.wan import build
from bench.wan.machines import Counters, Machines, family_cpu_s
from bench.wan.scenarios import Nat, Node
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut

_QUEUE_MS = 50.0  # drop-tail queue of each direction of a link
_GSO_BYTES = 16384  # largest burst that the kernel passes to the emulator in one piece
_REAL_TIME_PRIORITY = 5
# Autogroup priority of each node's session. The kernel shares the processor between sessions, regardless of the
# priority of the processes in them, so that idle-class work of others would otherwise get as much as a node.
_AUTOGROUP_NICE = -15
_COMMAND_TIMEOUT_S = 20.0
_EMULATOR_TIMEOUT_S = 10.0
_TCP = {
    "tcp_no_metrics_save": "1",
    "tcp_slow_start_after_idle": "0",
}


@dataclass(frozen=True, slots=True)
class Sockets:
    """The defaults of TCP sockets in the namespaces; a program may set its own values."""

    congestion: str = "cubic"
    pace_mbit_s: int = 0  # turns on TCP's own pacing with this ceiling; 0: no pacing
    burst_segments: int = 2  # least burst of paced TCP (sysctl tcp_min_tso_segs); 2 is the kernel's default
    memory_mib_max: int = 32  # largest buffer of a socket in each direction (sysctl tcp_rmem, tcp_wmem)


class Network(Machines):
    """An emulated network; node 0 is the source. Use as a context manager.

    Args:
        nodes: the nodes' links. ``addresses`` are the addresses under which other nodes see them, ``inside`` their own,
            which differ behind a router with address translation. ``addresses_ipv6`` are those of IPv6, which are
            their own; of nodes that share a router only the first has one.
        sockets: defaults for TCP sockets.

    Raises:
        MissingExtra: this machine cannot emulate a network (see bench.wan.build).
        ProcessFailed: namespaces or the emulator cannot be made.
    """

    def __init__(self, nodes: Sequence[Node], sockets: Sockets = Sockets()) -> None:
        super().__init__(nodes)
        self.sockets = sockets
        homes = tuple(number if node.beside is None else node.beside for number, node in enumerate(nodes))
        self.addresses = tuple(f"10.77.0.{home + 1}" for home in homes)
        self.inside = tuple(
            f"192.168.{home}.{number - home + 2}" if node.nat else address
            for number, (node, home, address) in enumerate(zip(nodes, homes, self.addresses, strict=True))
        )
        self.addresses_ipv6 = tuple(f"fd77::{address}" for address in self.addresses)
        mark = f"{os.getpid():x}{secrets.token_hex(2)}"
        self.names = tuple(f"rcwan{mark}-{number}" for number in range(len(nodes)))
        self._made: list[str] = []
        self._emulator: subprocess.Popen[str] | None = None

    def __enter__(self) -> Network:
        build.require()
        try:
            for name in self.names:
                _ip("netns", "add", name)
                self._made.append(name)
            self._start_emulator()
            for node, name in enumerate(self.names):
                self._configure(node, name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every spawned process, the emulator and all processes left in the namespaces; remove the namespaces."""
        self.kill_all()
        if self._emulator is not None:
            self._emulator.terminate()
            try:
                self._emulator.communicate(timeout=_EMULATOR_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._emulator.kill()
                self._emulator.communicate()
            self._emulator = None
        while self._made:
            name = self._made.pop()
            for pid in _pids_in(name):  # grandchildren of killed processes
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _ip("netns", "del", name, check=False)

    # ------------------------------------------------------------ processes

    def spawn(self, node: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command in a node's namespace; it is killed when the network is closed, unless reaped before."""
        environment: Mapping[str, str] = options.pop("env", os.environ)
        shim = {"LD_PRELOAD": str(build.socket_shim()), "SOCK_CC": self.sockets.congestion}
        if self.sockets.pace_mbit_s:
            shim["SOCK_PACE"] = str(self.sockets.pace_mbit_s)
        arguments = ["ip", "netns", "exec", self.names[node], *command]
        # A session of its own, as on a machine of its own: the kernel's autogroups then share the processor by node.
        process = self._start(arguments, env={**environment, **shim}, start_new_session=True, **options)
        with contextlib.suppress(OSError):  # a kernel without autogroups
            Path(f"/proc/{process.pid}/autogroup").write_text(str(_AUTOGROUP_NICE))
        return process

    # ------------------------------------------------------------ emulator

    def emulator_cpu_s(self) -> float:
        """Return the processor seconds that the emulator has used."""
        assert self._emulator is not None
        return family_cpu_s(self._emulator.pid)

    def counters(self) -> Counters:
        """Return the emulator's counters.

        Raises:
            ProcessFailed: the emulator has ended.
            WaitTimedOut: the emulator does not answer.
        """
        assert self._emulator is not None
        self._emulator.send_signal(signal.SIGUSR1)
        report = json.loads(self._emulator_line())
        nodes = report["nodes"]
        return Counters(
            sent_bytes=tuple(node["tx_bytes"] for node in nodes),
            received_bytes=tuple(node["rx_bytes"] for node in nodes),
            drops=sum(node["up_drops"] + node["down_drops"] for node in nodes),
            lost=sum(node["lost"] for node in nodes),
            nat_drops=sum(node["nat_drops"] for node in nodes),
            late_max_ms=report["late_max_ms"],
        )

    def set_rates(self, number: int, node: Node) -> None:
        """Change the rates of a node's link; its delay stays."""
        self._order(f"rate {number} {node.up_mbit_s} {node.down_mbit_s}")

    def set_loss(self, number: int, share: float) -> None:
        """Lose this share of the packets that a node sends."""
        self._order(f"loss {number} {share}")

    def set_nat(self, number: int, kind: Nat) -> None:
        """Change the kind of a node's router; existing flows stay."""
        self._order(f"nat {number} {kind}")

    def forget_flows(self, number: int, other: int) -> None:
        """Make a node's router discard its flows with another node, as a restarting router does with all flows."""
        self._order(f"forget {number} {other}")

    def _order(self, line: str) -> None:
        assert self._emulator is not None
        assert self._emulator.stdin is not None
        self._emulator.stdin.write(f"{line}\n")
        self._emulator.stdin.flush()

    def _start_emulator(self) -> None:
        lines = "".join(
            f"{name} {address} {node.up_mbit_s} {node.down_mbit_s} {node.delay_ms}"
            + (f" {node.nat} {inside}\n" if node.nat else "\n")
            for name, address, inside, node in zip(self.names, self.addresses, self.inside, self.nodes, strict=True)
        )
        command = [str(build.emulator()), str(_QUEUE_MS)]
        self._emulator = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        with contextlib.suppress(PermissionError):  # without it the emulator is late more often
            os.sched_setscheduler(self._emulator.pid, os.SCHED_FIFO, os.sched_param(_REAL_TIME_PRIORITY))
        assert self._emulator.stdin is not None
        self._emulator.stdin.write(f"{lines}end\n")
        self._emulator.stdin.flush()
        self._emulator_line()  # "ready"
        for number, node in enumerate(self.nodes):
            if node.loss:
                self.set_loss(number, node.loss)

    def _emulator_line(self) -> str:
        assert self._emulator is not None
        stream: IO[str] | None = self._emulator.stdout
        assert stream is not None
        if not select.select([stream], [], [], _EMULATOR_TIMEOUT_S)[0]:
            raise WaitTimedOut(f"waited {_EMULATOR_TIMEOUT_S:g} s for the network emulator to answer")
        line = stream.readline()
        if not line:
            raise ProcessFailed("the network emulator ended", cause="its stderr has the reason")
        return line

    def _configure(self, node: int, name: str) -> None:
        ipv6 = f"addr add {self.addresses_ipv6[node]}/96 dev wan0 nodad\n" if self._has_ipv6(node) else ""
        batch = (
            f"link set lo up\naddr add {self.inside[node]}/24 dev wan0\n{ipv6}"
            f"link set wan0 mtu 1500 txqueuelen 10000 gso_max_size {_GSO_BYTES} up\n"
            f"route replace 10.77.0.0/24 dev wan0\n"
        )
        _ip("-n", name, "-batch", "-", given=batch)
        memory_bytes_max = self.sockets.memory_mib_max << 20
        values = _TCP | {
            "tcp_min_tso_segs": str(self.sockets.burst_segments),
            "tcp_rmem": f"4096 131072 {memory_bytes_max}",
            "tcp_wmem": f"4096 65536 {memory_bytes_max}",
        }
        settings = "\n".join(f"echo '{value}' > /proc/sys/net/ipv4/{key}" for key, value in values.items())
        _ip("netns", "exec", name, "sh", "-ec", settings)

    def _has_ipv6(self, node: int) -> bool:
        return self.nodes[node].beside is None and socket.has_ipv6 and Path("/proc/net/if_inet6").exists()


def _ip(*arguments: str, given: str = "", check: bool = True) -> str:
    done = subprocess.run(
        ["ip", *arguments], input=given, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
    )
    if check and done.returncode != 0:
        raise ProcessFailed(
            f"`ip {' '.join(arguments)}` failed", cause=done.stderr.strip(), fix="allow network namespaces here"
        )
    return done.stdout


def _pids_in(name: str) -> list[int]:
    return [int(pid) for pid in _ip("netns", "pids", name, check=False).split()]
