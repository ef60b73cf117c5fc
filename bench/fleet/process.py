"""Start, kill and restart a coordinator process and its gateways with the smallest real configuration."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.identity import Identity
from rollcast.wire.joining.invite import Invite

NO_PEER_TIMEOUT_S = 600.0  # thousands of peers take minutes to join on a busy machine
_STOP_TIMEOUT_S = 20.0
_THAW_TIMEOUT_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class RunShape:
    """The settings of the run; see coordinator.config.config."""

    groups_per_step: int = 8
    samples_per_group: int = 4
    staleness_limit: int = 4
    new_tokens_max: int = 16
    peers_max: int = 1000
    lease_deadline_s: float = 30.0
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 5.0
    dial_back: bool = True
    gateways: bool = False


def answer_to(prompt: str) -> str:
    """Return the right answer, as text, to a problem that CoordinatorProcess writes."""
    return str(int(prompt.partition("+")[0]) + 1)


class _Process:
    """A process of Rollcast that a benchmark starts and kills, and starts again."""

    log: Path
    _process: subprocess.Popen[bytes] | None = None

    def cpu_s(self) -> float:
        """Return the processor seconds of the process, without those of its children."""
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(_STOP_TIMEOUT_S)
        self._process = None

    def _run(self, command: str, config: Path) -> None:
        arguments = [sys.executable, "-m", "rollcast.cli.main", command, str(config), "--with-parent"]
        # With bytecode, as an installed package has it: without, a start compiles every module for 0.3 s.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )

    def _last_words(self) -> str:
        return self.log.read_bytes()[-1000:].decode(errors="replace").strip()


class CoordinatorProcess(_Process):
    """One run folder and at most one process on it, always on the same two ports."""

    def __init__(
        self,
        root: Path,
        learner: Identity,
        shape: RunShape,
        task: str = "",
        store_url: str = "",
        ports: tuple[int, int] | None = None,
        further: tuple[int, int] | None = None,
    ) -> None:
        """
        Args:
            task: lines of the section [task]; empty: sums that answer_to solves.
            store_url: database of the store; empty: SQLite.
            ports: control and HTTP port; None: any free ones.
            further: those of another coordinator of the run; None: there is none.
        """
        root.mkdir(exist_ok=True)
        self.folder = RunFolder(root / "run")
        self.log = root / "coordinator.log"
        self.started_at_s = 0.0  # time of the newest start, on the monotonic clock
        self._config = root / "coordinator.toml"
        problems = root / "problems.jsonl"
        # The blank puts one into the alphabet, so that completions of any length can be padded with blanks.
        lines = [json.dumps({"prompt": f"{number}+1=", "answer": f"{number + 1} "}) for number in range(512)]
        problems.write_text("\n".join(lines) + "\n")
        sums = f'kind = "jsonl"\npath = "{problems}"\n'
        self.ports = ports or free_ports()
        grpc_port, http_port = self.ports
        self.gateway_socket = root / "gateways"
        gateways = f'[gateways]\nlisten = "{self.gateway_socket}"\n' if shape.gateways else ""
        places = [f"127.0.0.1:{further[0]}:{further[1]}"] if further else []
        self._config.write_text(
            f'run_folder = "{self.folder.root}"\nlearner_public_key = "{learner.public_key.hex()}"\n'
            f"held_out_problems = 8\n[run]\nsteps = 1000000\nstaleness_limit = {shape.staleness_limit}\n"
            f"groups_per_step = {shape.groups_per_step}\nsamples_per_group = {shape.samples_per_group}\n"
            f"[task]\n{task or sums}[sampling]\nnew_tokens_max = {shape.new_tokens_max}\n"
            f"[serve]\ngrpc_port = {grpc_port}\nhttp_port = {http_port}\n"
            f"advertise_further = {json.dumps(places)}\n[join]\npeers_max = {shape.peers_max}\n"
            f"[relay]\ndial_back = {str(shape.dial_back).lower()}\n"
            f"[lease]\ndeadline_s = {shape.lease_deadline_s}\n"
            f"[membership]\nheartbeat_interval_s = {shape.heartbeat_interval_s}\n"
            f"heartbeat_timeout_s = {shape.heartbeat_timeout_s}\nno_peer_timeout_s = {NO_PEER_TIMEOUT_S}\n"
            f'[store]\nurl = "{store_url}"\n{gateways}'
        )

    @property
    def pid(self) -> int | None:
        """Return the id of the running process, or None."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; ``listening`` tells when it can be reached."""
        self.folder.endpoints.unlink(missing_ok=True)
        self.started_at_s = time.monotonic()
        self._run("coordinator", self._config)

    def listening(self) -> bool:
        """Whether the process has written the addresses that it listens on.

        Raises:
            ProcessFailed: the process has ended.
        """
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise ProcessFailed(f"the coordinator ended with status {status}", cause=self._last_words())
        return self.folder.endpoints.exists()

    def freeze(self) -> None:
        """Stop the process in whatever it does, as a host does that swaps or migrates."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> int:
        """Let a frozen process, which has lost the leadership, go on; wait for its end and return its exit status."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
        status = self._process.wait(_THAW_TIMEOUT_S)
        self._process = None
        return status

    def has_ended(self) -> bool:
        """Return whether there is no process."""
        return self._process is None or self._process.poll() is not None

    def invite(self, role: str) -> Invite:
        """Return the invite that the process wrote for this role."""
        return Invite.decode((self.folder.secrets / f"invite-{role}.txt").read_text().strip())


class GatewayProcess(_Process):
    """A gateway of coordinator processes on this machine, one of which leads; always on the same port."""

    def __init__(self, root: Path, number: int, *coordinators: CoordinatorProcess) -> None:
        self.log = root / f"gateway-{number}.log"
        port, _ = free_ports()
        self.address = f"127.0.0.1:{port}"
        self._config = root / f"gateway-{number}.toml"
        self._config.write_text(
            f"core = {json.dumps([str(one.gateway_socket) for one in coordinators])}\n"
            f'name = "gateway-{number}"\n[serve]\ngrpc_port = {port}\n'
        )

    def start(self) -> None:
        """Start the process, which serves once it is linked to the coordinator."""
        self._run("gateway", self._config)

    @property
    def pid(self) -> int:
        """Return the id of the running process."""
        assert self._process is not None
        return self._process.pid

    def rss_mb(self) -> float:
        """Return the resident memory of the process in MB."""
        assert self._process is not None
        return float(psutil.Process(self._process.pid).memory_info().rss) / 1e6

    def listening(self) -> bool:
        """Whether peers can connect.

        Raises:
            ProcessFailed: the process has ended.
        """
        if self._process is None or self._process.poll() is not None:
            raise ProcessFailed("a gateway ended", cause=self._last_words())
        host, _, port = self.address.rpartition(":")
        with socket.socket() as connection:
            return connection.connect_ex((host, int(port))) == 0


def wait_until_listening(process: CoordinatorProcess | GatewayProcess, timeout_s: float) -> None:
    """Block until the process listens.

    Raises:
        ProcessFailed: the process ended, or takes longer.
    """
    end_s = time.monotonic() + timeout_s
    while not process.listening():
        if time.monotonic() > end_s:
            raise ProcessFailed(f"{process.log.stem} does not listen after {timeout_s:g} s")
        time.sleep(_POLL_S)


def in_turn(gateways: Sequence[GatewayProcess], number: int) -> tuple[str, ...]:
    """Return the gateways' addresses in the order in which peer ``number`` dials them."""
    first = number % len(gateways)
    return tuple(gateway.address for gateway in (*gateways[first:], *gateways[:first]))


def free_ports() -> tuple[int, int]:
    """Return two ports of loopback that nothing uses."""
    sockets = [socket.socket() for _ in range(2)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        first, second = (int(one.getsockname()[1]) for one in sockets)
        return first, second
    finally:
        for one in sockets:
            one.close()
