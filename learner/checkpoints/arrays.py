"""Write and read the arrays of a checkpoint with orbax, each process its own shards.

With several processes all of them must call these functions in the same order, with the same path on storage that they
share. orbax writes in the background and joins the processes' parts when all have written theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from learner.checkpoints.fingerprints import ArrayRecord, begin_fingerprints, held_fingerprints, records_of

WRITE_TIMEOUT_S = 3600.0  # seconds in which the slowest store must have taken the arrays

_ITEM = "state"


class TornCheckpoint(Exception):
    """A checkpoint that cannot be read, or whose arrays are not those that were saved."""


@dataclass(frozen=True, slots=True)
class SavedArrays:
    """The arrays of a checkpoint: where they are, and what they are by name."""

    path: str
    records: Mapping[str, ArrayRecord]

    @classmethod
    def from_values(cls, path: str, records: Mapping[str, Mapping[str, Any]]) -> SavedArrays:
        """Return what `record_values` was made of.

        Raises:
            TypeError, ValueError, KeyError: the values are others.
        """
        return cls(
            path,
            {
                name: ArrayRecord(str(found["dtype"]), tuple(map(int, found["shape"])), str(found["fingerprint"]))
                for name, found in records.items()
            },
        )

    def record_values(self) -> dict[str, dict[str, Any]]:
        """Return the records as values of JSON."""
        return {name: asdict(record) for name, record in self.records.items()}

    def belongs_to(self, like: Mapping[str, Any]) -> bool:
        """Return whether names, dtypes and shapes are those of ``like``."""
        expected = {name: (np.dtype(leaf.dtype).name, tuple(leaf.shape)) for name, leaf in like.items()}
        return expected == {name: (record.dtype, record.shape) for name, record in self.records.items()}

    def like(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return what `read_arrays` needs to read all arrays onto the default device."""
        here = SingleDeviceSharding(jax.devices()[0])
        return {
            name: jax.ShapeDtypeStruct(record.shape, jnp.dtype(record.dtype), sharding=here)
            for name, record in self.records.items()
        }


class ArrayWrite:
    """Arrays that are copied to the host and being written."""

    def __init__(self, path: str, state: Mapping[str, jax.Array]) -> None:
        # Shapes and dtypes outlive the arrays, which the next step reuses.
        self._like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in state.items()}
        self._fingerprints = _fingerprints(state)
        with _context():
            self._response = ocp.save_checkpointables_async(path, {_ITEM: dict(state)})
        self._path = path

    def finish(self) -> SavedArrays:
        """Wait until every process has written its shards. It raises what orbax raises if one could not.

        Call it once.

        Raises:
            TimeoutError: they were not written within WRITE_TIMEOUT_S.
        """
        try:
            self._response.result(WRITE_TIMEOUT_S)
        except TimeoutError as error:
            raise TimeoutError(f"the arrays were not written within {WRITE_TIMEOUT_S:.0f} s {error}".rstrip()) from None
        return SavedArrays(self._path, records_of(self._like, self._fingerprints()))


def _fingerprints(state: Mapping[str, jax.Array]) -> Callable[[], Mapping[str, Any]]:
    """Return what waits for the fingerprints of a state, which may be donated afterwards.

    A device with memory of its own computes them at once, at that memory's speed. On a CPU that takes longer than the
    next step's delay otherwise, so they are computed from the memory that is being written, once it is written. Sums
    of several processes are added up by a program, which must have the same place in the order of all processes.
    """
    if all(array.is_fully_addressable and _on_processor(array) for array in state.values()):
        return held_fingerprints(state)
    begun = begin_fingerprints(state)
    return lambda: begun


def _on_processor(array: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in array.devices())


def read_arrays(saved: SavedArrays, like: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Read arrays to where ``like`` says, which may name only some of them, and check their fingerprints.

    Raises:
        TornCheckpoint: in every process, if one of them cannot read its shards or an array is not what was saved.
    """
    problem, state = "", {}
    try:
        with _context():
            state = ocp.load_checkpointables(saved.path, {_ITEM: dict(like)})[_ITEM]
    except Exception as error:  # orbax raises many kinds; each means that the checkpoint cannot be read
        problem = f"{type(error).__name__}: {str(error)[:300]}"
    if not _everywhere(not problem):
        raise TornCheckpoint(problem or "another process cannot read it")
    found = records_of(like, begin_fingerprints(state))
    if any(found[name] != saved.records[name] for name in like):
        raise TornCheckpoint("its arrays are not those that were saved")
    return state


def _everywhere(here: bool) -> bool:
    if jax.process_count() == 1:
        return here
    return bool(np.all(multihost_utils.process_allgather(np.array(here))))


def _context() -> Any:
    """Configure orbax for one tree of arrays, of which some may be left out when it is read."""
    registry = ocp.handlers.local_registry(include_global_registry=False)
    registry.add(ocp.handlers.PyTreeHandler, checkpointable_name=_ITEM)
    context = ocp.Context()
    context.checkpointables.registry = registry
    context.pytree.loading.partial_load = True
    # The replicas of an array divide its writing, but each cut is a program to compile: not for norms and the like.
    context.array.saving.min_slice_bytes_for_replica_parallel = 1 << 20
    context.array.saving.use_compression = False  # trained float32 numbers hardly compress, and it takes processor time
    context.multiprocessing.barrier_sync_key_prefix = "rollcast"
    return context
