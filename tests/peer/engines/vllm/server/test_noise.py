"""Test that the noise inside vLLM is the noise of every engine."""

from __future__ import annotations

import numpy as np
import pytest

from rollcast.policy.noise import gumbel_numpy

torch = pytest.importorskip("torch")

from peer.engines.vllm.server.noise import gumbel, seed_bits  # noqa: E402


def test_the_noise_equals_its_definition() -> None:
    seeds, positions = [0, 2**64 - 1, 2**63 + 12345, 2**31], [0, 7, 2**20, 3]
    bits = seed_bits(seeds, torch.device("cpu"))
    found = gumbel(bits, torch.tensor(positions, dtype=torch.int32), 100_003).numpy()
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        np.testing.assert_allclose(found[row], gumbel_numpy(seed, position, 100_003), rtol=1e-5, atol=1e-6)
