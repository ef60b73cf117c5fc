"""Run coordinator, learner, origin and peers as processes in the emulated network, and follow their logs."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from bench.systems.base import ROOT, Case, Lines
from bench.wan.machines import Machines, family_cpu_s
from coordinator.config.config import CoordinatorConfig
from learner.config import LearnerConfig
from learner.publishing.versions import RetainedVersions
from peer.config import PeerConfig
from rollcast.runtime.config import ConfigModel, override, parse_config
from rollcast.runtime.errors import ConfigError, ProcessFailed
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Version
from rollcast.wire.versions.chunks import BytesLike

_CLI = (sys.executable, "-m", "rollcast.cli.main")
_START_TIMEOUT_S = 120.0
_ALLOCATED_TIMEOUT_S = 5.0
_POLL_S = 0.02
_KEEP_VERSIONS = 2
_LEASE_S = 86_400.0  # so long that an idle peer's lease never expires
_LAST_WORDS_CHARACTERS = 600
#: Role -> the prefixes of ``Case.settings`` that apply to it; an origin is a peer too.
_PREFIXES = {
    "coordinator": ("coordinator",),
    "learner": ("learner",),
    "origin": ("peer", "origin"),
    "peer": ("peer",),
}


class Log:
    """A daemon's log file, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_bytes = 0
        self._entries: list[dict[str, Any]] = []

    def last(self, event: str, version: int | None = None) -> float | None:
        """Return the Unix time in seconds of the newest entry of that event (and version), or None if there is none."""
        self._read()
        for entry in reversed(self._entries):
            if entry.get("event") == event and version in (None, entry.get("version")):
                return datetime.fromisoformat(entry["timestamp"]).timestamp()
        return None

    def moments(self, event: str) -> list[tuple[float, int]]:
        """Return the Unix time in seconds and the version of each entry of that event; version -1 if it names none."""
        self._read()
        found = [entry for entry in self._entries if entry.get("event") == event]
        return [(datetime.fromisoformat(entry["timestamp"]).timestamp(), entry.get("version", -1)) for entry in found]

    def _read(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            stream.seek(self._read_bytes)
            new = stream.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            try:
                self._entries.append(json.loads(line))
            except ValueError:  # the line was cut short when its writer was killed
                continue


class Daemons:
    """The processes of one run. The coordinator, the learner and the origin share the source's namespace."""

    def __init__(self, network: Machines, case: Case) -> None:
        self._network = network
        self._case = case
        self._folder = RunFolder(case.folder / "run").prepare()
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._lines = Lines()
        self._logs: dict[str, Log] = {}
        _check(case.settings)

    def start(self) -> None:
        """Start all daemons; returns once every peer has joined."""
        self.start_coordinator()
        self.start_origin()
        for number in self._case.receivers:
            self.start_peer(number)
        files = self._files("learner", "learner", self._learner_config())
        command = [sys.executable, "-m", *self._learner_program(files)]
        learner = self._spawn(0, "learner", command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines.follow(0, learner)
        self.next_answer("ready", _START_TIMEOUT_S)

    def start_coordinator(self) -> None:
        """Start the coordinator, on the state that an earlier process of it left, if any."""
        files = self._files("coordinator", "coordinator", self._coordinator_config(), "--log-file")
        self._spawn(0, "coordinator", [*_CLI, "coordinator", *files, "--with-parent"])

    def start_origin(self) -> None:
        """Start the origin, on the state that an earlier process of it left, if any."""
        files = self._files("origin", "origin", self._peer_config(0), "--log-file")
        self._spawn(0, "origin", [*_CLI, "peer", "run", *files, "--with-parent"])

    def start_peer(self, number: int, *, waits: bool = False) -> None:
        """Start the peer at a node, on the state that an earlier process of it left, if any.

        Args:
            waits: whether the peer joins only when ``join_peer`` is called.
        """
        name = f"peer-{number}"
        files = self._files(name, "peer", self._peer_config(number))
        command = [sys.executable, "-m", "bench.programs.idle_peer", *files, *(["wait"] if waits else [])]
        self._spawn(number, name, command, stdin=subprocess.PIPE if waits else subprocess.DEVNULL, text=True)

    def join_peer(self, number: int) -> None:
        """Make a peer join that was started with ``waits``."""
        self._write(f"peer-{number}", "join")

    def kill(self, name: str) -> None:
        """End a process at once, as a crash does."""
        self._network.reap(self._processes.pop(name), signal.SIGKILL)

    def remove_peer(self, number: int) -> None:
        """Stop a peer and delete its state folder, so that it starts as a new one next time."""
        self._network.reap(self._processes.pop(f"peer-{number}"), signal.SIGTERM)
        shutil.rmtree(self._state_folder(number), ignore_errors=True)

    def stop(self) -> None:
        """Send SIGTERM to all daemons, then wait for each; one that does not end in time is killed."""
        for process in self._processes.values():
            if not self._network.has_ended(process):
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            self._network.reap(process)

    def log(self, name: str) -> Log:
        """Return the log of one process."""
        return self._logs.setdefault(name, Log(self._folder.logs / f"{name}.log"))

    def process_ids(self) -> dict[str, int]:
        """Return the process id of each daemon, by its name."""
        return {name: process.pid for name, process in self._processes.items()}

    def cpu_s(self, *names: str) -> float:
        """Return the processor seconds that the named processes have used so far."""
        return sum(family_cpu_s(self._processes[name].pid) for name in names)

    def last_words(self) -> str:
        """Return the last characters that each daemon printed on stderr."""
        paths = sorted(self._folder.logs.glob("*.err"))
        texts = [path.read_text(errors="replace").strip()[-_LAST_WORDS_CHARACTERS:] for path in paths]
        return "\n".join(text for text in texts if text)

    def published(self, version: int) -> BytesLike:
        """Return a version's state as the learner keeps it on disk, whole or by deltas."""
        folder = self._case.folder / "learner" / "versions"
        return RetainedVersions(folder, mapped=0).base(Version(version))[1]

    def stored(self, number: int, version: int) -> Path:
        """Return a peer's file of a version's state, on disk or in its memory, or its state folder if there is none."""
        folder = self._state_folder(number)
        on_disk = next(folder.rglob(f"versions/**/{version}/0.data"), None)
        return on_disk or next(iter(self._states_in_memory(number)), folder)

    def populate_memory(self, version: int) -> None:
        """Back with memory the file that each peer has for the state that a delta will produce.

        The host of a virtual machine reclaims free memory and gives it back page by page, at twenty times the cost of
        writing to it: with all peers on one machine and their files in memory, a delta's time would be mostly that.
        """
        end_s = time.monotonic() + _ALLOCATED_TIMEOUT_S
        for number in self._case.receivers:
            while not (paths := self._allocated_files(number, version)) and time.monotonic() < end_s:
                time.sleep(_POLL_S)
            for path in paths:
                with path.open("rb") as stream:
                    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                    mmap.mmap(stream.fileno(), 0, flags=flags, prot=mmap.PROT_READ).close()

    def written_bytes(self, since_s: float) -> dict[str, int]:
        """Return the bytes of the versions' files that each process has written since a Unix time, by its name.

        Every such file is written once. The folders may be in memory, where the kernel counts no writes.
        """
        folders = {"learner": self._case.folder / "learner" / "versions", "origin": self._state_folder(0) / "versions"}
        folders |= {f"peer-{number}": self._state_folder(number) / "versions" for number in self._case.receivers}
        return {name: _bytes_since(folder, since_s) for name, folder in folders.items()}

    def _allocated_files(self, number: int, version: int) -> list[Path]:
        found = self._state_folder(number).rglob(f"versions/**/{version}/0.new")
        on_disk = [path for path in found if path.stat().st_size >= self._case.size_bytes]
        return on_disk or self._states_in_memory(number)

    def _states_in_memory(self, number: int) -> list[Path]:
        """Return the anonymous files of a peer's states; see rollcast.wire.versions.state_memory.

        A file that has just been made has no size yet, and is left out.
        """
        found = []
        for path in Path(f"/proc/{self._processes[f'peer-{number}'].pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                sized = path.stat().st_size > 0
                if sized and os.readlink(path).startswith("/memfd:rollcast-state"):
                    found.append(path)
        return found

    def _learner_program(self, files: list[str]) -> list[str]:
        """Return the publishing program and its arguments; bench.programs.noise_learner has what it must print."""
        limits = [str(self._case.size_bytes), str(len(self._case.receivers)), str(self._case.limit_s)]
        return ["bench.programs.noise_learner", *files, *limits]

    # ------------------------------------------------------------ commands to the learner

    def send_command(self, command: str) -> None:
        """Write a command to the learner's stdin (see bench.programs.noise_learner)."""
        self._write("learner", command)

    def _write(self, name: str, line: str) -> None:
        stream = self._processes[name].stdin
        assert stream is not None
        stream.write(f"{line}\n")
        stream.flush()

    def next_answer(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Return the learner's next line, decoded, which must be of this event.

        Raises:
            ProcessFailed: the line is of another event, or the learner ended.
            WaitTimedOut: no line came in time.
        """
        _, line = self._lines.next(f"the learner's {event!r}", timeout_s)
        answer: dict[str, Any] = json.loads(line)
        if answer.get("event") != event:
            raise ProcessFailed(f"the learner printed {line!r} where {event!r} was expected")
        return answer

    # ------------------------------------------------------------ configurations

    def _coordinator_config(self) -> dict[str, Any]:
        return {
            "run": {"name": "bench", "steps": 1_000_000, "groups_per_step": 1, "samples_per_group": 2},
            "serve": {"host": self._network.addresses[0]},
            "join": {"peers_max": 1_000_000},  # all peers share one invite, and one that joins anew uses it again
            "lease": {"deadline_s": _LEASE_S},
            "relay": {"lan_preferred": False},  # private addresses, but no LAN
            "learner_public_key": Identity.load_or_create(self._folder.secrets / "learner.key").public_key.hex(),
            "run_folder": str(self._folder.root),
        }

    def _learner_config(self) -> dict[str, Any]:
        return {
            "identity_file": str(self._folder.secrets / "learner.key"),
            "invite_file": str(self._folder.secrets / "invite-learner.txt"),
            "run_folder": str(self._case.folder / "learner"),
            "publish": {"deltas": False},  # a delta of noise saves nothing
        }

    def _peer_config(self, number: int) -> dict[str, Any]:
        role, sockets = "peer" if number else "origin", self._case.sockets
        # The sockets' default is set for all systems alike (bench/wan/sockets.c); each link changes its own.
        link: dict[str, Any] = {"host": self._network.inside[number]}
        if role == "origin":
            link["relay_on_arrival"] = False  # the clock starts when the source holds all, as for the other systems
        if self._network.nodes[number].nat:
            link["advertise"] = "none"  # what the dial-back check at joining would find
        if sockets.pace_mbit_s:
            link["pacing_mbit_s"] = float(sockets.pace_mbit_s)
        return {
            "role": role,
            "name": f"peer-{number}" if number else "origin",
            "invite_file": str(self._folder.secrets / f"invite-{role}.txt"),
            "state_folder": str(self._state_folder(number)),
            "engine": {"concurrent_rollouts": 1},
            "link": link,
            "store": {"keep_versions": _KEEP_VERSIONS},
        }

    def _state_folder(self, number: int) -> Path:
        return self._case.folder / (f"peer-{number}" if number else "origin")

    def _files(self, name: str, role: str, values: dict[str, Any], *log_option: str) -> list[str]:
        """Write a configuration; returns the arguments that name it and the log."""
        path = self._folder.config / f"{name}.toml"
        path.write_text(tomli_w.dumps(configured(role, values, self._case.settings)))
        return [str(path), *log_option, str(self.log(name).path)]

    def _spawn(self, node: int, name: str, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
        with (self._folder.logs / f"{name}.err").open("ab") as errors:
            environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
            process = self._network.spawn(node, command, stderr=errors, cwd=ROOT, env=environment, **options)
        self._processes[name] = process
        return process


def _bytes_since(folder: Path, since_s: float) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # renamed or removed meanwhile; a linked file is counted once
            status = path.stat()
            total += status.st_size if path.is_file() and status.st_mtime >= since_s else 0
    return total


def configured(role: str, values: dict[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    """Return a daemon's configuration, overridden by the settings of its role.

    Raises:
        ConfigError: a key is unknown or a value out of range.
    """
    for prefix in _PREFIXES[role]:
        mine = [setting.partition(".")[2] for setting in settings if setting.partition(".")[0] == prefix]
        values = override(values, mine)
    parse_config(values, _CLASSES[role], source=f"the {role} of this benchmark")
    return values


_CLASSES: Mapping[str, type[ConfigModel]] = {
    "coordinator": CoordinatorConfig,
    "learner": LearnerConfig,
    "origin": PeerConfig,
    "peer": PeerConfig,
}


def _check(settings: tuple[str, ...]) -> None:
    for setting in settings:
        if setting.partition(".")[0] not in _PREFIXES:
            raise ConfigError(
                f"the setting {setting!r} does not begin with a role",
                fix=f"write it as ROLE.section.key=value, with ROLE one of {', '.join(_PREFIXES)}",
            )
