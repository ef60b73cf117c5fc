"""Rollcast itself: coordinator, origin, peers and a publisher as they run in earnest, TLS and verification on.

The coordinator, the learner and the origin share the source's namespace, so the source's uplink is the origin's and
the coordinator's. The clock is the coordinator's T_bcast. Version 0 warms the connections up and is not measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from bench.systems.base import ROOT, Broadcast, Case, Lines, check_copies
from bench.wan.meter import Meter
from bench.wan.network import Network
from coordinator.config import CoordinatorConfig, LeaseConfig, RunConfig, ServeConfig
from learner.config import LearnerConfig
from peer.config import EngineConfig, LinkConfig, PeerConfig, StoreConfig
from rollcast.runtime.config import ConfigModel
from rollcast.runtime.errors import ProcessFailed
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity import Identity

_START_TIMEOUT_S = 90.0
_KEEP_VERSIONS = 2
_LEASE_S = 86_400.0  # an idle peer keeps its lease


def missing() -> str:
    """Nothing: what it needs is this project."""
    return ""


def broadcasts(case: Case) -> Iterator[Broadcast]:
    """One version after another through the same daemons.

    Raises:
        RollcastError: a daemon ended, or a version did not arrive in time.
    """
    with Network(case.nodes, case.sockets) as network:
        daemons = _Daemons(network, case)
        try:
            daemons.start()
            daemons.publish()
            while True:
                yield daemons.publish()
        except ProcessFailed as error:
            raise ProcessFailed(error.what, cause=daemons.last_words() or error.cause, fix=error.fix) from None
        finally:
            daemons.stop()


class _Daemons:
    """The processes of one run."""

    def __init__(self, network: Network, case: Case) -> None:
        self._network = network
        self._case = case
        self._folder = RunFolder(case.folder / "run").prepare()
        self._processes: list[subprocess.Popen[Any]] = []
        self._lines = Lines()
        self._learner: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        """Start all of them; returns once every peer has joined."""
        cli = [sys.executable, "-m", "rollcast.cli.main"]
        self._start_coordinator(cli)
        origin = self._peer_config(0)
        self._spawn(0, "origin", [*cli, "peer", *self._files("origin", origin, "--log-file"), "--with-parent"])
        for number in self._case.receivers:
            files = self._files(f"peer-{number}", self._peer_config(number))
            self._spawn(number, f"peer-{number}", [sys.executable, "-m", "bench.programs.idle_peer", *files])
        learner = LearnerConfig(
            identity_file=self._folder.secrets / "learner.key",
            invite_file=self._folder.secrets / "invite-learner.txt",
            run_folder=self._case.folder / "learner",
        )
        limits = [str(self._case.size_bytes), str(len(self._case.receivers)), str(self._case.limit_s)]
        command = [sys.executable, "-m", "bench.programs.noise_learner", *self._files("learner", learner), *limits]
        self._learner = self._spawn(0, "learner", command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines.follow(0, self._learner)
        self._hear("ready", _START_TIMEOUT_S)

    def publish(self) -> Broadcast:
        """Publish one version and follow it to the last peer."""
        self._tell("publish")
        self._hear("origin_holds", self._case.limit_s)
        meter = Meter(self._network)
        self._tell("announce")
        answer = self._hear("peers_hold", self._case.limit_s + 10.0)
        cost = meter.read()
        self._check_copies(answer["version"])
        return Broadcast(self._seconds_by_peer(answer["version"]), float(answer["t_bcast_s"]), cost)

    def stop(self) -> None:
        """Ask them all to end, then wait for each; what does not end is killed."""
        for process in self._processes:
            if not self._network.has_ended(process):
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            self._network.reap(process)

    def last_words(self) -> str:
        """The end of what the daemons printed apart from their logs."""
        texts = [path.read_text(errors="replace").strip()[-600:] for path in sorted(self._folder.logs.glob("*.err"))]
        return "\n".join(text for text in texts if text)

    # ------------------------------------------------------------ starting

    def _start_coordinator(self, cli: list[str]) -> None:
        key = Identity.load_or_create(self._folder.secrets / "learner.key").public_key.hex()
        config = CoordinatorConfig(
            run=RunConfig(name="bench", steps=1_000_000, groups_per_step=1, samples_per_group=2),
            serve=ServeConfig(host=self._network.addresses[0]),
            lease=LeaseConfig(deadline_s=_LEASE_S),
            learner_public_key=key,
            run_folder=self._folder.root,
        )
        files = self._files("coordinator", config, "--log-file")
        self._spawn(0, "coordinator", [*cli, "coordinator", *files, "--with-parent"])

    def _peer_config(self, number: int) -> PeerConfig:
        role = "peer" if number else "origin"
        name = f"peer-{number}" if number else "origin"
        return PeerConfig.model_validate(
            {
                "role": role,
                "name": name,
                "invite_file": self._folder.secrets / f"invite-{role}.txt",
                "state_folder": self._case.folder / name,
                "engine": EngineConfig(concurrent_rollouts=1),
                "link": LinkConfig(host=self._network.addresses[number]),
                "store": StoreConfig(keep_versions=_KEEP_VERSIONS),
            }
        )

    def _files(self, name: str, config: ConfigModel, *log_option: str) -> list[str]:
        """Write a configuration; the arguments that name it and the log."""
        path = self._folder.config / f"{name}.toml"
        path.write_text(tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)))
        return [str(path), *log_option, str(self._log(name))]

    def _log(self, name: str) -> Path:
        return self._folder.logs / f"{name}.log"

    def _spawn(self, node: int, name: str, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
        with (self._folder.logs / f"{name}.err").open("wb") as errors:
            environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
            process = self._network.spawn(node, command, stderr=errors, cwd=ROOT, env=environment, **options)
        self._processes.append(process)
        return process

    # ------------------------------------------------------------ talking to the learner

    def _tell(self, command: str) -> None:
        assert self._learner is not None
        assert self._learner.stdin is not None
        self._learner.stdin.write(f"{command}\n")
        self._learner.stdin.flush()

    def _hear(self, event: str, timeout_s: float) -> dict[str, Any]:
        _, line = self._lines.next(f"the learner's {event!r}", timeout_s)
        answer: dict[str, Any] = json.loads(line)
        if answer.get("event") != event:
            raise ProcessFailed(f"the learner says {line!r} where {event!r} was expected")
        return answer

    # ------------------------------------------------------------ afterwards

    def _seconds_by_peer(self, version: int) -> Mapping[int, float]:
        """From log entries: what a peer says is a message's delay earlier than what the coordinator hears."""
        announced = self._logged_at("coordinator", "version announced", version)
        return {
            number: self._logged_at(f"peer-{number}", "version held", version) - announced
            for number in self._case.receivers
        }

    def _logged_at(self, name: str, event: str, version: int) -> float:
        for line in reversed(self._log(name).read_text().splitlines()):
            entry = json.loads(line)
            if entry.get("event") == event and entry.get("version") == version:
                return datetime.fromisoformat(entry["timestamp"]).timestamp()
        raise ProcessFailed(f"the log of {name} does not say {event!r} of version {version}")

    def _check_copies(self, version: int) -> None:
        """Every peer's file is the learner's, byte for byte."""
        (published,) = (self._case.folder / "learner" / "versions").glob(f"*{version:06d}.state")
        copies = {number: self._stored(number, version) for number in self._case.receivers}
        check_copies(copies, hashlib.sha256(published.read_bytes()).hexdigest())

    def _stored(self, number: int, version: int) -> Path:
        folder = self._case.folder / f"peer-{number}"
        return next(folder.rglob(f"versions/**/{version}/*.data"), folder)
