"""Make providers from their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from capacity.providers.base import Provider
from capacity.providers.config import LocalPool, Pool, SkyPool, SshPool
from capacity.providers.local import LocalProvider
from capacity.providers.sky import SkyProvider
from capacity.providers.ssh import SshProvider


def make_providers(pools: Sequence[Pool], folder: Path, peer: Mapping[str, Any]) -> dict[str, Provider]:
    """Return a provider for each pool, by its name.

    Args:
        folder: folder within the run folder in which providers keep their files on this machine.
        peer: configuration of every peer, below that of each pool.
    """
    return {pool.name: _make(pool, folder, peer) for pool in pools}


def _make(pool: Pool, folder: Path, peer: Mapping[str, Any]) -> Provider:
    match pool:
        case LocalPool():
            return LocalProvider(pool, folder / "workers", peer)
        case SshPool():
            return SshProvider(pool, peer)
        case SkyPool():
            return SkyProvider(pool, folder / "sky", peer)
        case _:
            assert_never(pool)
