"""Run the services of a compose file without a container engine: a network and a mount namespace each.

This checkout provides what an image would (Python, packages, the `rollcast` command), so that only the file is tested:
commands, the image's user without capabilities, mounts, dependencies of services, names in the network, health checks.
Root on Linux is needed.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

_SHARED = ("bin", "lib", "lib64", "usr", "opt", "home", "work", "dev", "proc", "sys", "sbin", "var", "run")
_SUBNET = "10.91.7"
OURS = "rollcast-"  # how the names of our images begin
USER = 10001  # of our images; it owns the folders that their volumes are mounted at


def why_not() -> str:
    """Return why services cannot run here; empty if they can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "namespaces need root on Linux"
    name = f"rollcast-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return "" if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


class ComposeHere:
    """The running services of a compose file.

    Args:
        file: the compose file; its mounts are relative to its folder.
        scratch: an empty folder for volumes, roots and logs.
        instead: files mounted in place of those that the compose file names, by the name in it.
    """

    def __init__(self, file: Path, scratch: Path, instead: Mapping[str, Path]) -> None:
        services = yaml.safe_load(file.read_text())["services"]
        self.services: dict[str, dict[str, Any]] = {
            name: service for name, service in services.items() if service["image"].startswith(OURS)
        }
        self._file, self._scratch, self._instead = file, scratch, instead
        self._prefix = f"rc{os.getpid()}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._command_folder = scratch / "commands"

    def __enter__(self) -> ComposeHere:
        self._command_folder.mkdir()
        for name, module in (("rollcast", " -m rollcast.cli.main"), ("python", "")):
            path = self._command_folder / name
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n')
            path.chmod(0o755)
        try:
            self._wire()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every service that still runs, and remove the network."""
        self.stop_all()
        for name in (*self.services, "switch"):
            subprocess.run(["ip", "netns", "delete", self._namespace(name)], capture_output=True)

    # ------------------------------------------------------------ for tests

    def up(self, deadline_s: float) -> None:
        """Start every service once its dependencies meet their conditions.

        Raises:
            AssertionError: a service fails, or misses the deadline.
        """
        ends_at, waiting, over = time.monotonic() + deadline_s, list(self.services), set[str]()
        while waiting:
            for name in [name for name in waiting if self._may_start(name, over)]:
                waiting.remove(name)
                self.start(name)
            for name, process in self._running.items():
                if process.poll() is not None and name not in over:
                    assert process.returncode == 0, f"{name} ended with {process.returncode}: {self.log(name)}"
                    over.add(name)
            assert time.monotonic() < ends_at, f"{waiting} still wait; {', '.join(map(self._tail, self._running))}"
            time.sleep(0.2)

    def start(self, name: str) -> None:
        """Start one service."""
        service = self.services[name]
        words = [*service.get("entrypoint", ["rollcast"]), *service.get("command", _default_command(service))]
        with (self._scratch / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._inside(name, [word.replace("$$", "$") for word in words]),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Stop a service with SIGTERM, or with SIGKILL if that takes too long."""
        process = self._running[name]
        for way, patience_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, way)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
                return

    def stop_all(self) -> None:
        """Stop every service, so that ``up`` may start them again with the same volumes."""
        for name in reversed(self._running):
            self.stop(name)
        self._running.clear()

    def wait(self, name: str, deadline_s: float) -> int:
        """Return the exit status of a service that ends by itself."""
        return self._running[name].wait(deadline_s)

    def run(self, name: str, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in a service, as `docker compose exec` does."""
        return subprocess.run(self._inside(name, words), capture_output=True, text=True, timeout=60)

    def log(self, name: str) -> str:
        """Return what a service has printed."""
        return (self._scratch / f"{name}.log").read_text(errors="replace")

    def volume(self, name: str) -> Path:
        """Return a named volume's folder."""
        return self._scratch / "volumes" / name

    # ------------------------------------------------------------ parts

    def _may_start(self, name: str, over: set[str]) -> bool:
        wants = self.services[name].get("depends_on", {})
        for other, how in wants.items():
            if how["condition"] == "service_completed_successfully" and other not in over:
                return False
            if how["condition"] == "service_healthy" and not self._is_healthy(other):
                return False
        return True

    def _is_healthy(self, name: str) -> bool:
        test = self.services[name]["healthcheck"]["test"]
        return name in self._running and self.run(name, test[1:]).returncode == 0

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _wire(self) -> None:
        """Make one bridge, an address for every service, and names for all of them."""
        switch = self._namespace("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self.services, start=2):
            namespace, port = self._namespace(name), f"port{number}"
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", namespace, "addr", "add", f"{_SUBNET}.{number}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", namespace, "link", "set", "lo", "up")

    def _inside(self, name: str, words: list[str]) -> list[str]:
        """Return the command line that runs ``words`` where the service would run them."""
        root = self._scratch / "roots" / name
        lines = ["set -eu", f"mkdir -p {root}", f"mount -t tmpfs none {root}"]
        for folder in _SHARED:
            if Path("/", folder).is_symlink():
                lines.append(f"ln -s {os.readlink(f'/{folder}')} {root}/{folder}")
            elif Path("/", folder).exists():
                lines.append(f"mkdir {root}/{folder}; mount --rbind /{folder} {root}/{folder}")
        checkout = Path(__file__).parents[2]
        # The system's /etc with our host names, a /tmp of its own, and the checkout and Python at their paths,
        # also where these lie in a folder that only root may enter.
        lines += [
            f"cp -a /etc {root}/etc",
            f"mkdir -p {root}/tmp {root}{checkout} && chmod 1777 {root}/tmp",
            f"mount --rbind {checkout} {root}{checkout}",
            f"[ -e {root}{sys.base_prefix} ] || {{ mkdir -p {root}{sys.base_prefix}"
            f" && mount --rbind {sys.base_prefix} {root}{sys.base_prefix}; }}",
        ]
        hosts = "".join(f"{_SUBNET}.{number} {other}\\n" for number, other in enumerate(self.services, start=2))
        lines.append(f"printf '127.0.0.1 localhost\\n{hosts}' > {root}/etc/hosts")
        for mount in (*self.services[name].get("volumes", ()), f"{self._command_folder}:/commands"):
            lines.append(self._mounted(root, mount))
        path = f"/commands:{os.environ['PATH']}"
        powerless = f"setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all --bounding-set=-all"
        variables = f"PATH={path} PYTHONPATH={checkout} HOME=/tmp PYTHONDONTWRITEBYTECODE=1"
        lines.append(f"exec chroot {root} {powerless} env {variables} {shlex.join(words)}")
        return ["ip", "netns", "exec", self._namespace(name), "unshare", "--mount", "sh", "-c", "\n".join(lines)]

    def _mounted(self, root: Path, mount: str) -> str:
        source, target = mount.split(":")[:2]
        place = self._instead.get(source) or (
            Path(source)
            if source.startswith("/")
            else (self._file.parent / source).resolve()
            if source.startswith(".")
            else self.volume(source)
        )
        if place.is_file():
            return f"mkdir -p {root}{Path(target).parent}; touch {root}{target}; mount --bind {place} {root}{target}"
        if not place.exists():
            place.mkdir(parents=True)
            os.chown(place, USER, USER)
        return f"mkdir -p {root}{target}; mount --bind {place} {root}{target}"

    def _tail(self, name: str) -> str:
        return f"{name}: {self.log(name)[-400:]}"


def _default_command(service: Mapping[str, Any]) -> list[str]:
    """Return the CMD of the service's image."""
    role = service["image"].removeprefix(OURS).partition(":")[0]
    return [role, f"/etc/rollcast/{role}.toml"]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
