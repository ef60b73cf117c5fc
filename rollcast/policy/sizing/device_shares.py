"""Divide the accelerators of one machine among a learner and the peers that run beside it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollcast.policy.sizing.hardware import GIB

_ALONE_SHARE = 0.95  # of a GPU's memory for a process that has it for itself; the driver needs the rest
_MEMORY_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # docs.jax.dev/en/latest/gpu_memory_allocation.html

#: Chips of a process on a TPU host -> their arrangement, as libtpu wants it. Other numbers are not a rectangle.
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The accelerators that this machine has: GPU indices, or the numbers of TPU chips."""

    kind: Literal["gpu", "tpu"]
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """The devices of one process."""

    environment: dict[str, str]
    """Variables that make the process use these devices only."""
    memory_share: float | None
    """The share of each GPU's memory, 0 to 1; None: the devices have no shares."""
    text: str
    """The same for people, for example "GPU 0, 55 % of its memory"."""


def share_devices(
    found: Accelerators, learner_devices: int, peers: Sequence[str], learner_share: float, peer_devices: int = 1
) -> dict[str, DeviceShare]:
    """Return the devices of the learner and of each peer, by name.

    The learner gets the first devices, as many as its mesh has places, and each peer ``peer_devices`` of the others,
    or all of them where there are fewer. Where none is left, peers share GPUs, with the learner too: it then takes
    ``learner_share`` of their memory and the peers of a GPU divide the rest evenly. A TPU chip belongs to one process,
    so that peers without one compute on the processor.
    """
    own, others = found.numbers[:learner_devices], found.numbers[learner_devices:]
    free = _groups(others, peer_devices)
    if found.kind == "tpu":
        shares = {"learner": _chips(own)}
        return shares | {
            name: _chips(free[place]) if place < len(free) else _PROCESSOR for place, name in enumerate(peers)
        }
    room = free or _groups(own, peer_devices)
    places = {name: room[index % len(room)] for index, name in enumerate(peers)}
    users = Counter(places.values())
    is_shared = not others and bool(peers)
    shares = {"learner": _gpus(own, learner_share if is_shared else _ALONE_SHARE)}
    left = _ALONE_SHARE - learner_share if is_shared else _ALONE_SHARE
    return shares | {name: _gpus(group, left / users[group]) for name, group in places.items()}


def _groups(numbers: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Return whole groups of neighbours; one smaller group if there are fewer, and none of nothing."""
    size = max(1, min(size, len(numbers)))
    return [tuple(numbers[start : start + size]) for start in range(0, len(numbers) - size + 1, size)]


def small_shares(shares: Mapping[str, DeviceShare], memory_bytes: int, needed: Mapping[str, int]) -> list[str]:
    """Return a sentence for each process whose share of a GPU's memory is below what it needs.

    Args:
        memory_bytes: the memory of the smallest GPU.
        needed: bytes of each process on one device, by name, as estimated.
    """
    found = []
    for name, share in shares.items():
        room = memory_bytes * (share.memory_share or 1.0)
        if needed.get(name, 0) > room:
            found.append(
                f"{name} needs about {needed[name] / GIB:.0f} GiB by plan-memory, and its share is "
                f"{room / GIB:.0f} GiB: lower peer.engine.concurrent_rollouts, "
                "change devices.learner_memory_share, or use more GPUs"
            )
    return found


_PROCESSOR = DeviceShare({"JAX_PLATFORMS": "cpu"}, None, "the processor, because every TPU chip is taken")


def _gpus(numbers: Sequence[str], share: float) -> DeviceShare:
    # Rounded down: the shares of a GPU must not add up to more than it has.
    rounded = math.floor(share * 1000 + 1e-6) / 1000
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(numbers), _MEMORY_SHARE: f"{rounded:.3f}"}
    whose = "its memory" if len(numbers) == 1 else "their memory"
    return DeviceShare(environment, rounded, f"GPU {', '.join(numbers)}, {rounded:.0%} of {whose}")


def _chips(numbers: Sequence[str]) -> DeviceShare:
    environment = {"TPU_VISIBLE_CHIPS": ",".join(numbers)}
    if len(numbers) in _TPU_BOUNDS:
        environment |= {"TPU_CHIPS_PER_PROCESS_BOUNDS": _TPU_BOUNDS[len(numbers)], "TPU_PROCESS_BOUNDS": "1,1,1"}
    return DeviceShare(environment, None, f"TPU chip {', '.join(numbers)}")
