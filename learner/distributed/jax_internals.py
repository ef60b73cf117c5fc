"""Hold all names of jax that the learner uses although they are not public.

A release may move them without notice; tests/learner/distributed/test_jax_internals.py then names the missing one and
its purpose.
"""

from __future__ import annotations

import importlib
from typing import Any

from learner.distributed.launchers import Launcher
from learner.distributed.team import Store
from rollcast.runtime.errors import ProcessFailed


def coordination_store() -> Store:
    """Return the key-value store of jax's coordination service. Call it after `jax.distributed.initialize`.

    jax and orbax use it themselves, but it has no public name.

    Raises:
        ProcessFailed: this release of jax keeps it under another name.
    """
    store: Store | None = _internal("jax._src.distributed", "global_state", "client")
    assert store is not None, "jax.distributed.initialize comes first"
    return store


def launchers() -> list[Launcher]:
    """Return the launchers whose processes jax can number, in the order in which `jax.distributed.initialize` asks.

    Its public name only takes the answer, and jax's devices would be in use by the time that it is known. The launcher
    for Kubernetes is not among them: it needs a client and the right to read Jobs, where a manifest can simply state
    the answer (deploy/jobset).
    """
    names = ("OmpiCluster", "SlurmCluster", "GkeTpuCluster", "GceTpuCluster")
    return [_internal("jax._src.clusters", name) for name in names]


def _internal(module: str, *names: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for name in names:
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ProcessFailed(
            f"{'.'.join((module, *names))} is missing",
            cause=f"this is another release of jax than Rollcast supports: {error}",
            fix="install the release that constraints.txt names",
        ) from None
    return found
