"""Describe this machine: system, memory, disk, accelerators, and the packages that generate rollouts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from peer.donor.machine.gpu_sensors import GpuSensors
from rollcast import __version__

#: Packages whose releases matter when something goes wrong.
_PACKAGES = ("jax", "jaxlib", "flax", "torch", "transformers", "tokenizers", "numpy", "grpcio", "aiohttp", "protobuf")
_ENGINES = ("jax",)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device, with the bytes of its memory."""

    name: str
    memory_bytes: int
    memory_free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts of a machine at one moment.

    Args:
        engines: packages of engines that are installed, with their releases.
        link_port_taken: whether another process listens on the configured port for chunk links.
        disk_free_bytes: free bytes of the disk where the state folder is or will be.
    """

    system: str
    architecture: str
    python: str
    rollcast: str
    cores: int
    memory_bytes: int
    memory_free_bytes: int
    disk_free_bytes: int
    is_container: bool = False
    is_wsl: bool = False
    accelerators: tuple[Accelerator, ...] = ()
    engines: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    link_port_taken: bool = False

    @property
    def compute_memory_bytes(self) -> int:
        """Return the memory of what the machine computes on: the smallest accelerator's, or else the machine's own."""
        return min((one.memory_bytes for one in self.accelerators), default=self.memory_bytes)

    @property
    def compute_memory_free_bytes(self) -> int:
        """Return the part of ``compute_memory_bytes`` that is free now."""
        return min((one.memory_free_bytes for one in self.accelerators), default=self.memory_free_bytes)


def machine_facts(state_folder: Path, *, link_host: str, link_port: int) -> MachineFacts:
    """Return the facts of this machine; nothing is started, and nothing is written."""
    memory = psutil.virtual_memory()
    packages = {name: release for name in _PACKAGES if (release := _release(name))}
    return MachineFacts(
        system=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        python=platform.python_version(),
        rollcast=__version__,
        cores=os.cpu_count() or 1,
        memory_bytes=memory.total,
        memory_free_bytes=memory.available,
        disk_free_bytes=shutil.disk_usage(_existing(state_folder)).free,
        is_container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        is_wsl="microsoft" in platform.release().lower(),
        accelerators=_visible(tuple(Accelerator(*one) for one in GpuSensors.here().devices())),
        engines={name: packages.get(name, "?") for name in _ENGINES if importlib.util.find_spec(name) is not None},
        packages=packages,
        link_port_taken=bool(link_port) and is_taken(link_host, link_port),
    )


def _visible(found: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    """Return those that CUDA_VISIBLE_DEVICES leaves to this process, where it names them by number."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return found
    numbers = [part.strip() for part in named.split(",")]
    if not all(number.isdecimal() for number in filter(None, numbers)):
        return found
    return tuple(found[int(number)] for number in numbers if number and int(number) < len(found))


def _release(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def is_taken(host: str, port: int) -> bool:
    """Return whether another process listens on a port, or it cannot be bound for another reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
