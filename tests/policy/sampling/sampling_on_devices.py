"""Sample on several virtual devices and on one, and print how far the completions are apart, as JSON.

tests/policy/sampling/test_sampling_on_devices.py starts this program.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.mesh import engine_shardings, tensor_mesh
from rollcast.policy.params import initial_params
from rollcast.policy.sampling.sampler import Completion, Sampler, SampleRequest
from rollcast.wire.rollouts import Sampling
from tests.policy.tiny import TINY, TINY_EXPERTS

WIDER = {"layers": 1, "query_heads": 8, "vocabulary_size": 16}
DENSE, EXPERTS = (one.model_copy(update=WIDER) for one in (TINY, TINY_EXPERTS))
SAMPLING = Sampling(temperature=0.7, max_new_tokens=9, stop_token_ids=(1,))
REQUESTS = [SampleRequest(tuple(range(2, 3 + index % 5)), seed=index) for index in range(6)]

#: The model, the number of devices.
CASES = {"repeated heads": (DENSE, 4), "undivided heads": (DENSE, 3), "experts": (EXPERTS, 2)}


@functools.cache
def generated(config: ModelConfig, devices: int) -> tuple[list[Completion], dict[str, Any]]:
    """Return completions, and how the arrays lie on the devices."""
    mesh = tensor_mesh(jax.devices()[:devices]) if devices > 1 else None
    params = {name: np.asarray(value) for name, value in initial_params(config, 0).items()}
    where = {} if mesh is None else engine_shardings(mesh, config, params)
    placed = {name: jax.device_put(value, where.get(name)) for name, value in params.items()}
    sampler = Sampler(config, 8, 9, 4, record_routes=config.experts > 0, mesh=mesh)
    kernel = next(name for name in sorted(params) if name.endswith(("gate.kernel", "expert_gate.kernel")))
    layout = {
        "kernel_share": placed[kernel].addressable_shards[0].data.nbytes / placed[kernel].nbytes,
        "page_heads": sampler.new_pages().keys[0].addressable_shards[0].data.shape[1],
        "forms": None,
    }
    made = sampler.generate(placed, REQUESTS, SAMPLING)
    return made, layout | {"forms": sampler.compiled_forms()}


def compared(config: ModelConfig, devices: int) -> dict[str, Any]:
    """Return whether tokens and routes are those of one device, and the largest difference of log-probabilities."""
    (alone, _), (divided, layout) = generated(config, 1), generated(config, devices)
    pairs = list(zip(divided, alone, strict=True))
    return layout | {
        "same_tokens": all(one.token_ids == other.token_ids for one, other in pairs),
        "same_routes": all(np.array_equal(one.routes, other.routes) for one, other in pairs if one.routes is not None),
        "difference": max(float(np.max(np.abs(np.subtract(one.logprobs, other.logprobs)))) for one, other in pairs),
    }


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    print(json.dumps({name: compared(*case) for name, case in CASES.items()}))
