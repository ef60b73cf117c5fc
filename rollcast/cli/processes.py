"""Start, watch and stop the processes of one run on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import tomli_w
from pydantic import BaseModel

from peer.donor.machine.gpu_sensors import GpuSensors
from rollcast.policy.sizing.device_shares import Accelerators, DeviceShare, share_devices
from rollcast.runtime.config import plain_values
from rollcast.runtime.errors import (
    ConfigError,
    ModelError,
    ProcessFailed,
    RollcastError,
    WaitTimedOut,
    exit_words,
    meanings_of,
)
from rollcast.runtime.install import module_command
from rollcast.runtime.process import processor_time_s
from rollcast.runtime.run_folder import UP, RunFolder, point_latest, write_atomically, write_json
from rollcast.runtime.start_deadline import StartDeadline, StartReport
from rollcast.runtime.waits import backoff_delays_s

if TYPE_CHECKING:
    from rollcast.cli.up_config import UpConfig

#: Role -> the command that runs it, where it is not the role's name.
_COMMANDS = {"peer": ("peer", "run")}
#: The run cannot continue without these; a peer may die at any time.
ESSENTIAL = ("coordinator", "learner", "origin")
_ASKED_TO_STOP = (-signal.SIGTERM, -signal.SIGINT)
#: Exit statuses of an uncaught exception and of an error without a class of its own. Every other status names an error
#: that would only come again: a wrong key, a full disk, a deadline.
_CRASHED = (1, RollcastError.exit_code)
#: Exit statuses with which every peer of the run would end: they have the same settings and the same model.
_SAME_FOR_ALL_PEERS = (ConfigError.exit_code, ModelError.exit_code)
_POLL_S = 0.05
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses at which the coordinator listens."""

    http_url: str
    grpc_address: str
    page_url: str
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """A process that died and will be restarted after a delay."""

    name: str
    status: int
    """Exit status; if negative, the number of the signal that killed the process."""
    in_s: float
    number: int
    most: int
    log: Path

    def __str__(self) -> str:
        when = f"restarting in {self.in_s:.1f} s (restart {self.number} of {self.most})"
        return f"{self.name} {exit_words(self.status)}; {when}; log: {self.log}"


def _restart_delays_s() -> Iterator[float]:
    return backoff_delays_s(Random(), first_s=1.0, most_s=30.0)


@dataclass(slots=True)
class Fleet:
    """The processes of one run by name: coordinator, learner, origin, peer-1 and so on.

    Every child has its own process group, so that Ctrl-C on the terminal reaches only this process, which stops the
    children in order. Every child asks the kernel to stop it if this process dies.
    """

    config: UpConfig
    folder: RunFolder
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    #: The devices of the learner and of each peer by name; a process without any sees what this one sees.
    shares: Mapping[str, DeviceShare] = field(default_factory=dict)
    #: Programs to start instead of our own command line, by process name.
    programs: dict[str, list[str]] = field(default_factory=dict)
    #: Whether peers are restarted too. The run can do without them, and some callers kill them on purpose.
    restart_peers: bool = False
    #: Seconds for which the coordinator serves the dashboard after the run has finished; None: what its file states.
    stay_s: float | None = None
    #: How often each process was restarted after it had died.
    restarts: Counter[str] = field(default_factory=Counter)
    #: Called with each restart before its delay.
    on_restart: Callable[[Restart], None] = lambda restart: None
    #: Called once with the failure of each peer that the run goes on without.
    on_loss: Callable[[ProcessFailed], None] = lambda failure: None
    #: Called with what the coordinator does while it starts, about once a second from the first second on.
    on_starting: Callable[[str], None] = lambda doing: None
    #: Makes the delays of one process's restarts, in seconds.
    restart_delays_s: Callable[[], Iterator[float]] = _restart_delays_s
    _delays: dict[str, Iterator[float]] = field(default_factory=dict)
    _restart_at_s: dict[str, float] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)

    def prepare(self) -> None:
        """Write the run folder, the learner's key and each process's resolved configuration."""
        self.folder.prepare()
        self.folder.summary.unlink(missing_ok=True)  # of the part of the run before it was stopped
        from rollcast.wire.identity.identity import Identity  # imports cryptography: not before a run starts

        learner_key = Identity.load_or_create(self.folder.learner_key).public_key.hex()
        write_json(self.folder.config / UP, plain_values(self.config), mode=0o600)
        join = self.config.coordinator.join
        joining = join.model_copy(update={"peers_max": join.peers_max + self.config.peers})  # own peers use up nothing
        serve = self.config.coordinator.serve
        if self.stay_s is not None:
            serve = serve.model_copy(update={"stay_s": self.stay_s})
        coordinator = self.config.coordinator.model_copy(
            update={"learner_public_key": learner_key, "run_folder": self.folder.root, "join": joining, "serve": serve}
        )
        distributed = self.config.learner.distributed
        learner = self.config.learner.model_copy(
            update={
                # This run has the processes that are started here, also in a job of a launcher that started several.
                "distributed": distributed.model_copy(update={"processes": max(1, distributed.processes)}),
                "identity_file": self.folder.learner_key,
                "invite_file": self._invite("learner"),
                "run_folder": self.folder.root,
                "compilation_cache": self.config.learner.compilation_cache or self._compilation_cache,
            }
        )
        origin = self.config.origin.model_copy(
            update={
                "role": "origin",
                "name": "origin",
                "invite_file": self._invite("origin"),
                "state_folder": self.folder.root / "origin",
            }
        )
        for name, config in (("coordinator", coordinator), ("learner", learner), ("origin", origin)):
            self._write_config(name, config)
        for number in range(1, self.config.peers + 1):
            self._write_peer(f"peer-{number}")

    async def start(self, stop: asyncio.Event) -> Endpoints | None:
        """Start all processes. Return the endpoints once the coordinator listens, or None if ``stop`` is set first.

        Raises:
            ProcessFailed: the coordinator ended while it started.
            WaitTimedOut: the coordinator did not listen in time; see StartDeadline.
            RunFolderError: the link to the newest run cannot be created.
        """
        self.folder.endpoints.unlink(missing_ok=True)
        self.folder.starting.unlink(missing_ok=True)  # of a coordinator that was killed while it started
        self._spawn("coordinator", "coordinator")
        deadline = StartDeadline(self.config.start_timeout_s, time.monotonic())
        reported: StartReport | None = None
        while not self.folder.endpoints.exists():
            if stop.is_set():
                return None
            self.check()
            now_s, used_s = time.monotonic(), processor_time_s(self.processes["coordinator"].pid)
            report = StartReport.read(self.folder.starting)
            if report is not None and report != reported:
                reported = report
                self.on_starting(report.doing)
                deadline.restart(now_s, used_s)
            why = deadline.passed(now_s, used_s)
            if why:
                raise WaitTimedOut(
                    "the coordinator does not listen",
                    cause=f"{why}; start_timeout_s = {self.config.start_timeout_s:g}",
                    fix=f"see its log {self.log_path('coordinator')}, or raise start_timeout_s",
                )
            await asyncio.sleep(_POLL_S)
        endpoints = Endpoints(**json.loads(self.folder.endpoints.read_text()))
        point_latest(self.folder)  # now: a start that fails must not hide the run that is in progress
        self._spawn("origin", "peer")
        self._spawn("learner", "learner")
        for number in range(1, self.config.peers + 1):
            self._spawn(f"peer-{number}", "peer")
        return endpoints

    def add_peer(self, name: str, invite: Path | None = None) -> None:
        """Start one more peer during the run, with the invite in a file or, if that is None, with the run's own."""
        self._write_peer(name, invite)
        self._spawn(name, "peer")

    def restart(self, name: str) -> None:
        """Restart a process that has ended, with the same configuration and folder."""
        self._spawn(name, name if name in ("coordinator", "learner") else "peer")

    def kill(self, name: str) -> None:
        """Kill one process of this fleet with SIGKILL."""
        self.processes[name].kill()
        self.processes[name].wait()

    def ended(self) -> dict[str, int]:
        """Return the exit status of every process that has ended and is not waiting to be restarted."""
        return {
            name: status
            for name, process in self.processes.items()
            if (status := process.poll()) is not None and name not in self._restart_at_s
        }

    def check(self) -> None:
        """Restart processes that died, after a growing delay; raise if the run cannot go on.

        A process that was killed or crashed is restarted, since each resumes from its own disk and loses nothing that
        it acknowledged. A process that ended with an error of its own exit status would only end so again, and so would
        a coordinator that crashes before it listens. The run goes on without a peer, except where the settings or the
        model are wrong for all of them. A coordinator that is killed after it wrote the summary is done.

        Raises:
            ProcessFailed: the message has the process, its status, the end of its log and the log's path.
        """
        for name, status in self.ended().items():
            was_killed = status < 0 and status not in _ASKED_TO_STOP
            is_done = status == 0 or (was_killed and name == "coordinator" and self.folder.summary.exists())
            if is_done or (name not in ESSENTIAL and not self.restart_peers):
                continue
            may_restart = was_killed or (status in _CRASHED and self.folder.endpoints.exists())
            if may_restart and self.restarts[name] < self.config.restarts_max:
                self._plan_restart(name, status)
            elif name in ESSENTIAL or status in _SAME_FOR_ALL_PEERS:
                raise self._failure(name, status, is_bound=may_restart)
            elif name not in self._lost:
                self._lost.add(name)
                self.on_loss(self._failure(name, status, is_bound=may_restart))
        for name in [name for name, at_s in self._restart_at_s.items() if time.monotonic() >= at_s]:
            self.restart(name)

    def _plan_restart(self, name: str, status: int) -> None:
        delay_s = next(self._delays.setdefault(name, self.restart_delays_s()))
        self.restarts[name] += 1
        self._restart_at_s[name] = time.monotonic() + delay_s
        number, most = self.restarts[name], self.config.restarts_max
        self.on_restart(Restart(name, status, delay_s, number, most, self.log_path(name)))

    def _failure(self, name: str, status: int, *, is_bound: bool) -> ProcessFailed:
        from rollcast.cli.up_config import with_full_keys

        role, who = (name, f"the {name}") if name in ESSENTIAL else ("peer", name)
        bound = f" after {self.restarts[name]} restarts (restarts_max = {self.config.restarts_max})" if is_bound else ""
        return ProcessFailed(
            f"{who} ended with status {status}{bound}",
            cause=with_full_keys(self._output_end(name), role)
            or f"it printed nothing; its status means {meanings_of(status) or 'a crash'}",
            fix=f"correct it; keys of the {role} are in the section [{role}]. The whole log is {self.log_path(name)}",
        )

    def log_path(self, name: str) -> Path:
        """Return the path of one process's log."""
        return self.folder.logs / f"{name}.log"

    def stays(self) -> bool:
        """Return whether the run has finished and its coordinator only serves the dashboard now."""
        return bool(self.stay_s) and self.folder.summary.exists() and self.processes["coordinator"].poll() is None

    async def wait(self, names: list[str], timeout_s: float) -> list[str]:
        """Wait until processes end by themselves; return the names of those that did not end in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while left := [name for name in names if self.processes[name].poll() is None]:
            if loop.time() >= end:
                return left
            await asyncio.sleep(_POLL_S)
        return []

    async def stop(self) -> None:
        """Stop all processes with SIGTERM, and with SIGKILL those that take too long.

        The order is learner, peers, origin, coordinator: the coordinator writes the summary when the others have ended.
        """
        peers = [name for name in self.processes if name not in ESSENTIAL]
        for names in (["learner"], peers, ["origin"], ["coordinator"]):
            started = [name for name in names if name in self.processes]
            for name in started:
                _send(self.processes[name], signal.SIGTERM)
            for name in await self.wait(started, self.config.stop_timeout_s):
                _send(self.processes[name], signal.SIGKILL)
                self.processes[name].wait()

    def kill_all(self) -> None:
        """Kill every process that still runs with SIGKILL."""
        for process in self.processes.values():
            _send(process, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    @property
    def _compilation_cache(self) -> Path:
        return (self.config.runs_folder / ".compilation-cache").absolute()

    def _invite(self, role: str) -> Path:
        return self.folder.secrets / f"invite-{role}.txt"

    def _write_peer(self, name: str, invite: Path | None = None) -> None:
        engine, own = self.config.peer.engine, self.shares.get(name)
        share = self.config.peer.limits.vram_share_max or (None if own is None else own.memory_share)
        cache = engine.compilation_cache or self._compilation_cache
        changes: dict[str, Any] = {
            "name": name,
            "invite_file": invite or self._invite("peer"),
            "state_folder": self.folder.root / "peers" / name,
            "engine": engine.model_copy(update={"compilation_cache": cache}),
            # Polite peers give way to other programs; here the learner waits for them.
            "limits": self.config.peer.limits.model_copy(update={"polite": False, "vram_share_max": share}),
        }
        self._write_config(name, self.config.peer.model_copy(update=changes))

    def _write_config(self, name: str, config: BaseModel) -> None:
        values = tomli_w.dumps(plain_values(config, exclude_none=True))
        write_atomically(self.folder.config / f"{name}.toml", values.encode(), mode=0o600)

    def _spawn(self, name: str, role: str) -> None:
        self._restart_at_s.pop(name, None)
        config, log = self.folder.config / f"{name}.toml", self.log_path(name)
        program = self.programs.get(name, module_command("rollcast.cli.main"))
        devices = self.shares[name].environment if name in self.shares else {}
        with log.open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [*program, *_COMMANDS.get(role, (role,)), str(config), "--log-file", str(log), "--with-parent"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | devices,
            )

    def _output_end(self, name: str) -> str:
        """Return the last lines that a process printed, indented, without its JSON log lines; empty if there are none.

        They often are an error with a cause and a fix of its own.
        """
        lines = self.log_path(name).read_text(errors="replace").splitlines()
        printed = [line for line in lines if not line.startswith("{")][-_TAIL_LINES:]
        return "\n    ".join(["it printed", *printed]) if printed else ""


def device_shares(config: UpConfig, found: Accelerators | None) -> dict[str, DeviceShare]:
    """Return the devices of the learner and of each peer by name; empty if there are none to divide."""
    if found is None or not config.devices.assign:
        return {}
    mesh = config.learner.mesh
    peers = [f"peer-{number}" for number in range(1, config.peers + 1)]
    devices = config.peer.engine.devices
    return share_devices(
        found,
        mesh.data * mesh.fsdp * mesh.tensor,
        peers,
        config.devices.learner_memory_share,
        1 if devices == "all" else devices,
    )


def accelerators_here(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> Accelerators | None:
    """Return the GPUs or TPU chips that processes on this machine may use; None if there are none."""
    if environment.get("JAX_PLATFORMS") == "cpu":
        return None
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    gpus = range(len(GpuSensors.here().devices())) if visible is None else filter(None, visible.split(","))
    if numbers := tuple(str(one).strip() for one in gpus):
        return Accelerators("gpu", numbers)
    chips = {path.name.removeprefix("accel") for path in devices.glob("accel[0-9]*")}
    chips |= {path.name for path in devices.glob("vfio/[0-9]*")}
    return Accelerators("tpu", tuple(sorted(chips, key=int))) if chips else None


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)
