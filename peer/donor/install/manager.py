"""Install a peer as a service: systemd of the user or of the machine, or launchd."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.donor.install.units import LAUNCHD_LABEL, UNIT_NAME, Kind, Service, unit_of
from rollcast.runtime.errors import ConfigError, ServiceManager
from rollcast.runtime.run_folder import run_folder_error, write_atomically

DEADLINE_S = 30.0  # for one command of the manager; stopping a peer takes 2 s, at most 10
_SYSTEMD_RUNS = Path("/run/systemd/system")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command. Status 127: the command does not exist; 124: it did not end in time."""

    status: int
    output: str


Run = Callable[[Sequence[str]], CommandResult]


def run(command: Sequence[str]) -> CommandResult:
    """Run a command of the service manager, for at most DEADLINE_S seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return CommandResult(124, f"no answer within {DEADLINE_S:g} s")
    except OSError as error:
        return CommandResult(127, str(error))
    return CommandResult(done.returncode, (done.stderr or done.stdout).strip())


class Manager:
    """One service manager.

    Args:
        kind: the kind of manager.
        config_home: the user's configuration folder, XDG_CONFIG_HOME.
    """

    def __init__(self, kind: Kind, config_home: Path, run: Run = run) -> None:
        self.kind: Kind = kind
        self._config_home = config_home
        self._run = run

    @property
    def unit_file(self) -> Path:
        """The path at which the manager looks for the unit."""
        match self.kind:
            case "user":
                return self._config_home / "systemd" / "user" / UNIT_NAME
            case "system":
                return Path("/etc/systemd/system") / UNIT_NAME
            case "launchd":
                return Path.home() / "Library" / "LaunchAgents" / f"{LAUNCHD_LABEL}.plist"

    def is_there(self) -> bool:
        """Return whether this manager runs and accepts commands of this user."""
        match self.kind:
            case "user":
                return self._run(["systemctl", "--user", "show-environment"]).status == 0
            case "system":
                return _SYSTEMD_RUNS.is_dir()
            case "launchd":
                return sys.platform == "darwin"

    def is_active(self) -> bool:
        """Return whether the service runs now."""
        if self.kind == "launchd":
            return self._run(["launchctl", "print", self._launchd_target]).status == 0
        return self._run([*self._systemctl, "is-active", "--quiet", UNIT_NAME]).status == 0

    def install(self, service: Service) -> None:
        """Write the unit, start it now, and enable it for every start of the machine or session.

        Raises:
            RunFolderError: the unit cannot be written.
            ServiceManager: a command of the manager failed.
        """
        self.write(service)
        if self.kind == "launchd":
            self._run(["launchctl", "bootout", self._launchd_target])  # an older one, if any
            self._order(["launchctl", "bootstrap", f"gui/{os.getuid()}", str(self.unit_file)])
            return
        self._order([*self._systemctl, "daemon-reload"])
        self._order([*self._systemctl, "enable", UNIT_NAME])
        self._order([*self._systemctl, "restart", UNIT_NAME])

    def write(self, service: Service) -> None:
        """Write the unit's file.

        Raises:
            ConfigError: a path contains a character that a unit cannot hold.
            RunFolderError: the unit cannot be written.
        """
        path = self.unit_file
        try:
            text = unit_of(service, self.kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except ValueError as error:
            raise ConfigError("this peer cannot be made a service", cause=str(error)) from None
        except OSError as error:
            raise run_folder_error(path.parent, error) from None

    def remove(self) -> bool:
        """Stop and uninstall the service. Return whether there was one.

        Raises:
            ServiceManager: a command of the manager failed.
            RunFolderError: the unit cannot be removed.
        """
        path = self.unit_file
        if not path.exists():
            return False
        is_there = self.is_there()
        if is_there and self.kind == "launchd":
            self._run(["launchctl", "bootout", self._launchd_target])
        elif is_there:
            self._order([*self._systemctl, "disable", "--now", UNIT_NAME])
        try:
            path.unlink()
        except OSError as error:
            raise run_folder_error(path.parent, error) from None
        if is_there and self.kind != "launchd":
            self._order([*self._systemctl, "daemon-reload"])
        return True

    def stop(self) -> None:
        """Stop the running service, which stays installed.

        Raises:
            ServiceManager: a command of the manager failed.
        """
        if self.kind != "launchd":
            self._order([*self._systemctl, "stop", UNIT_NAME])

    @property
    def _systemctl(self) -> list[str]:
        return ["systemctl", "--user"] if self.kind == "user" else ["systemctl"]

    @property
    def _launchd_target(self) -> str:
        return f"gui/{os.getuid()}/{LAUNCHD_LABEL}"

    def _order(self, command: Sequence[str]) -> None:
        said = self._run(command)
        if said.status != 0:
            raise ServiceManager(
                f"`{' '.join(command)}` failed with status {said.status}",
                cause=said.output[-500:],
                fix="run it by hand to see why; `rollcast peer join` also works without a service manager",
            )


def installed(config_home: Path, run: Run = run) -> Manager | None:
    """Return the manager that has a unit of a peer, the user's first; None: none is installed."""
    kinds: tuple[Kind, ...] = ("launchd",) if sys.platform == "darwin" else ("user", "system")
    found = (Manager(kind, config_home, run) for kind in kinds)
    return next((manager for manager in found if manager.unit_file.exists()), None)
