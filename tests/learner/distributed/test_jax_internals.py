from __future__ import annotations

import importlib
import inspect

import pytest

from learner.distributed import jax_internals
from learner.distributed.team import Store
from rollcast.runtime.errors import ProcessFailed


def test_jax_has_a_store_between_processes() -> None:
    state = importlib.import_module("jax._src.distributed").global_state
    assert hasattr(state, "client"), (
        "learner.distributed.team posts orders through jax._src.distributed.global_state.client"
    )
    client = importlib.import_module("jax._src.lib")._jax.DistributedRuntimeClient
    wanted = [name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")]
    missing = [name for name in wanted if not hasattr(client, name)]
    assert not missing, (
        f"learner.distributed.team needs {missing} of jax's coordination service, which has {dir(client)}"
    )


def test_a_missing_name_is_reported() -> None:
    for path in (("jax._src.distributed", "no_state"), ("jax._src.no_module", "client")):
        with pytest.raises(ProcessFailed, match=".".join(path)) as raised:
            jax_internals._internal(*path)
        assert "constraints.txt" in raised.value.fix
