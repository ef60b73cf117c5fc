"""Write what a service manager needs to run a peer: systemd units (user and system), a launchd property list. Pure.

The sandbox leaves a peer its state folder, the network and the accelerator, and nothing else to write to. Options are
those of systemd.exec(5) and systemd.resource-control(5), systemd 247 and later. docs/donor.md lists what was tested.
The units in deploy/systemd/user and deploy/systemd/system are written by this module too; a test compares them.
"""

from __future__ import annotations

import math
import plistlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["user", "system", "launchd"]

UNIT_NAME = "rollcast-peer.service"
LAUNCHD_LABEL = "org.rollcast.peer"
MEMORY_MAX = "80%"
STOP_S = 10  # a peer returns its work within 2 s
RESTART_S = 60
#: Exit statuses that another start does not change: configuration, data, protocol, permission (docs/errors.md).
NO_RESTART = (64, 65, 76, 77)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One peer that a service manager runs.

    Args:
        command: program and arguments.
        state_folder: the only folder that the peer writes to.
        log_file: log for managers without a journal of their own; empty: peer.log in the state folder.
        home_hidden: whether home folders can be hidden, because nothing that the peer runs is in one.
        memory_max: memory limit in systemd's form: 80%, 12G.
        drain_s: seconds that the peer's configuration leaves for begun rollouts when it is stopped.
    """

    command: Sequence[str]
    state_folder: str
    log_file: str = ""
    home_hidden: bool = False
    memory_max: str = MEMORY_MAX
    drain_s: float = 0.0

    @property
    def stop_s(self) -> int:
        """Return the seconds to wait for the peer to end."""
        return STOP_S + math.ceil(self.drain_s)


def unit_of(service: Service, kind: Kind) -> str:
    """Return the text of the unit file or property list.

    Raises:
        ValueError: a path or argument has a line break in it.
    """
    words = [*service.command, service.state_folder, service.log_file]
    if any("\n" in word or "\r" in word or "\0" in word for word in words):
        raise ValueError("no line break may be in a path of a service")
    if kind == "launchd":
        return _launchd(service)
    return _user_unit(service) if kind == "user" else _system_unit(service)


def quoted(word: str) -> str:
    """Return a word in the form of a unit file, so that systemd neither expands % or $ in it nor splits it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = escaped == word and word and not any(character.isspace() or character in "';#" for character in word)
    return word if plain else f'"{escaped}"'


def _path(path: str) -> str:
    """Return a path in the form of ReadWritePaths, where $ has no meaning and is not doubled."""
    return quoted(path).replace("$$", "$")


_HEAD = """\
[Unit]
Description=Rollcast peer: this machine's spare time for a training run
{after}
# Restarts without limit; the exit statuses below end the service for good.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec={restart_s}
# Wrong configuration, data, protocol or invite: another start changes nothing.
RestartPreventExitStatus={no_restart}
# A peer returns its work and stops relaying within 2 s.
TimeoutStopSec={stop_s}
KillMode=mixed
"""

_POLITE = """
# Lowest priority, and the first to be killed where memory is short.
Nice=19
IOSchedulingClass=idle
CPUWeight=1
IOWeight=1
OOMScoreAdjust=1000
OOMPolicy=stop
MemoryMax={memory_max}
MemorySwapMax=0
TasksMax=1024
LimitCORE=0
"""

_SANDBOX = """
# No new rights, nothing to write to but its state, no kernel, no other users' processes.
NoNewPrivileges=yes
ProtectSystem=strict
{home}
{state}
UMask=0077
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet=
AmbientCapabilities=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
# Left out: MemoryDenyWriteExecute (jax compiles as it goes), PrivateDevices (it would hide the accelerator),
# PrivateNetwork (peers dial each other).
"""

_SYSTEM_ONLY = """
DynamicUser=yes
PrivateMounts=yes
ProtectProc=invisible
RemoveIPC=yes
# Devices: only accelerators.
DevicePolicy=closed
DeviceAllow=char-nvidia* rw
DeviceAllow=char-drm rw
DeviceAllow=char-kfd rw
# Other peers may be anywhere; the metadata services of clouds, which issue keys, are not peers. No multicast.
IPAddressDeny=169.254.169.254/32 fd00:ec2::254/128 multicast
"""


def _head(service: Service, after: str) -> str:
    return _HEAD.format(
        after=after,
        command=" ".join(map(quoted, service.command)),
        restart_s=RESTART_S,
        no_restart=" ".join(map(str, NO_RESTART)),
        stop_s=service.stop_s,
    ) + _POLITE.format(memory_max=service.memory_max)


def _user_unit(service: Service) -> str:
    # The sandbox of a user's own manager needs a user namespace: PrivateUsers.
    sandbox = _SANDBOX.format(
        home="PrivateUsers=yes\nProtectHome=read-only",
        state=f"ReadWritePaths={_path(service.state_folder)} -%t\n{_caches(service.state_folder)}",
    )
    return _head(service, "After=basic.target") + sandbox + "\n[Install]\nWantedBy=default.target\n"


def _system_unit(service: Service) -> str:
    sandbox = _SANDBOX.format(
        home=f"ProtectHome={'yes' if service.home_hidden else 'read-only'}",
        state=f"StateDirectory={service.state_folder.rpartition('/')[2]}\nStateDirectoryMode=0700\n{_caches(service.state_folder)}",
    )
    after = "After=network-online.target\nWants=network-online.target"
    return _head(service, after) + sandbox + _SYSTEM_ONLY + "\n[Install]\nWantedBy=multi-user.target\n"


def _caches(folder: str) -> str:
    """Return the line that moves compilers' caches out of the home folder, which cannot be written to."""
    places = {"XDG_CACHE_HOME": "cache", "CUDA_CACHE_PATH": "cache/cuda", "TRITON_CACHE_DIR": "cache/triton"}
    words = (f"{name}={folder}/{place}" for name, place in places.items())
    return "Environment=" + " ".join(quoted(word).replace("$$", "$") for word in words)


def _launchd(service: Service) -> str:
    log = service.log_file or f"{service.state_folder}/peer.log"
    values = {
        "Label": LAUNCHD_LABEL,
        "ProgramArguments": list(service.command),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": RESTART_S,
        "ExitTimeOut": service.stop_s,
        "ProcessType": "Background",
        "LowPriorityIO": True,
        "LowPriorityBackgroundIO": True,
        "Nice": 19,
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "HardResourceLimits": {"Core": 0},
    }
    return plistlib.dumps(values, sort_keys=False).decode()
