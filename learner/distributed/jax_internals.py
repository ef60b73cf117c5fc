"""The names of jax and orbax that we use although they are not public, and nowhere else.

A release may move them without notice: tests/learner/distributed/test_jax_internals.py says which one is gone, and
what for.
"""

from __future__ import annotations

import importlib
from typing import Any

from learner.distributed.team import Store
from rollcast.runtime.errors import ProcessFailed


def coordination_store() -> Store:
    """The key-value store by which jax's processes find each other; after `jax.distributed.initialize`.

    jax and orbax themselves use it, but there is no public name for it.

    Raises:
        ProcessFailed: this release of jax keeps it elsewhere.
    """
    store: Store | None = _internal("jax._src.distributed", "global_state", "client")
    assert store is not None, "jax.distributed.initialize comes first"
    return store


def save_without_the_others() -> None:
    """Have orbax compare folders in this process only.

    Before it saves it does so by a collective over all processes, whichever its options call active.

    Raises:
        ProcessFailed: this release of orbax does it elsewhere.
    """
    name = "orbax.checkpoint.experimental.v1._src.synchronization.multihost"
    multihost = _internal(name)
    _internal(name, "process_count")
    multihost.process_count = lambda: 1


def _internal(module: str, *names: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for name in names:
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ProcessFailed(
            f"{'.'.join((module, *names))} is not there",
            cause=f"another release of jax or orbax than Rollcast was made for: {error}",
            fix="install the releases that constraints.txt names",
        ) from None
    return found
