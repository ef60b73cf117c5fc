"""Test how a learner and peers on one machine divide its devices."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest

from rollcast.policy.sizing.device_shares import Accelerators, share_devices, small_shares
from rollcast.policy.sizing.hardware import GIB


def gpus(count: int) -> Accelerators:
    return Accelerators("gpu", tuple(map(str, range(count))))


def test_one_gpu_is_shared_by_all() -> None:
    shares = share_devices(gpus(1), 1, ["peer-1", "peer-2"], learner_share=0.5)
    assert {name: share.environment["CUDA_VISIBLE_DEVICES"] for name, share in shares.items()} == {
        "learner": "0",
        "peer-1": "0",
        "peer-2": "0",
    }
    assert [share.memory_share for share in shares.values()] == [0.5, 0.225, 0.225]
    assert shares["learner"].environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.500"
    assert shares["peer-1"].text == "GPU 0, 22% of its memory"


def test_with_gpus_enough_each_process_has_its_own() -> None:
    shares = share_devices(gpus(8), 4, ["peer-1", "peer-2"], learner_share=0.5)
    assert [share.environment["CUDA_VISIBLE_DEVICES"] for share in shares.values()] == ["0,1,2,3", "4", "5"]
    assert {share.memory_share for share in shares.values()} == {0.95}


def test_a_peer_gets_as_many_gpus_as_its_engine_is_to_use() -> None:
    shares = share_devices(gpus(8), 3, ["peer-1", "peer-2", "peer-3"], learner_share=0.5, peer_devices=2)
    assert [share.environment["CUDA_VISIBLE_DEVICES"] for share in shares.values()] == ["0,1,2", "3,4", "5,6", "3,4"]
    assert [share.memory_share for share in shares.values()] == [0.95, 0.475, 0.95, 0.475]
    (_, peer) = share_devices(gpus(4), 1, ["peer-1"], learner_share=0.5, peer_devices=8).values()
    assert peer.environment["CUDA_VISIBLE_DEVICES"] == "1,2,3"
    chips = share_devices(Accelerators("tpu", tuple("01234567")), 4, ["peer-1"], 0.5, peer_devices=4)
    assert chips["peer-1"].environment["TPU_VISIBLE_CHIPS"] == "4,5,6,7"


@pytest.mark.parametrize(
    ("devices", "mesh", "peers", "each"), list(product((1, 2, 3, 8), (1, 2, 8), (1, 3, 5), (1, 2, 3)))
)
def test_no_gpu_is_promised_twice(devices: int, mesh: int, peers: int, each: int) -> None:
    names = [f"peer-{number}" for number in range(peers)]
    taken: dict[str, float] = defaultdict(float)
    for share in share_devices(gpus(devices), mesh, names, 0.4, each).values():
        assert share.memory_share is not None
        assert share.memory_share > 0
        for number in share.environment["CUDA_VISIBLE_DEVICES"].split(","):
            taken[number] += share.memory_share
    assert all(total <= 0.951 for total in taken.values())


def test_a_tpu_chip_belongs_to_one_process() -> None:
    found = Accelerators("tpu", ("0", "1", "2", "3"))
    shares = share_devices(found, 2, ["peer-1", "peer-2", "peer-3"], learner_share=0.5)
    assert shares["learner"].environment == {
        "TPU_VISIBLE_CHIPS": "0,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,2,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
    assert [shares[f"peer-{n}"].environment.get("TPU_VISIBLE_CHIPS") for n in (1, 2, 3)] == ["2", "3", None]
    assert shares["peer-3"].environment == {"JAX_PLATFORMS": "cpu"}
    assert "the processor" in shares["peer-3"].text


def test_a_share_below_the_estimate_is_named() -> None:
    shares = share_devices(gpus(1), 1, ["peer-1"], learner_share=0.5)
    found = small_shares(shares, 80 * GIB, {"learner": 42 * GIB, "peer-1": 30 * GIB})
    assert len(found) == 1
    assert found[0].startswith("learner needs about 42 GiB by plan-memory, and its share is 40 GiB")
    assert small_shares(shares, 96 * GIB, {"learner": 42 * GIB, "peer-1": 30 * GIB}) == []
