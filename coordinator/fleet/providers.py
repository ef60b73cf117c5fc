"""Make the providers that start a pool's machines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from capacity.providers.base import Provider
from capacity.providers.config import ProviderConfigs
from capacity.providers.kubernetes.provider import KubernetesProvider
from capacity.providers.local import LocalProvider
from capacity.providers.machines import Machine
from capacity.providers.sky import SkyProvider
from capacity.providers.ssh import SshProvider


def make_providers(machines: Iterable[Machine], config: ProviderConfigs, folder: Path) -> dict[str, Provider]:
    """Return the providers of these machines by name: one for each way to start and owner that the pool names.

    Args:
        folder: folder within the run folder in which providers keep their files on this machine.
    """
    groups: dict[str, list[Machine]] = {}
    for machine in machines:
        groups.setdefault(machine.worker.provider, []).append(machine)
    return {name: _make(name, group, config, folder) for name, group in groups.items()}


def _make(name: str, machines: list[Machine], config: ProviderConfigs, folder: Path) -> Provider:
    match machines[0].row.start:
        case "local":
            return LocalProvider(name, machines, config, folder / "workers")
        case "ssh":
            return SshProvider(name, machines, config)
        case "sky":
            return SkyProvider(name, machines, config, folder / "sky")
        case "kubernetes":
            return KubernetesProvider(name, machines, config)
        case other:
            raise AssertionError(f"no provider starts machines with start = {other!r}")
