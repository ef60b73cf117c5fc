"""Print how much of a tensor any one device ever held while a model was loaded, published and read back.

    python -m tests.learner.training.largest_shares MODEL_FOLDER RUN_FOLDER

This runs on 8 virtual devices in a process of its own, because their number is fixed when jax starts.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.config import LearnerConfig, MeshConfig
from learner.publishing.versions import RetainedVersions
from learner.training import trainer as trainer_module
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.config import ModelConfig
from rollcast.wire.ids import Version
from tests.learner.tiny import tiny_batch

MODEL = ModelConfig(
    vocabulary_size=512, layers=1, width=64, query_heads=8, key_value_heads=8, head_size=16, feed_forward_width=512
)
LARGE_BYTES = 32 << 10  # every kernel is, and neither a shard of one nor a scale of a norm, which is on every device


def largest_share() -> float:
    """Return the largest share of a large live array that lies on one device."""
    arrays = [array for array in jax.live_arrays() if array.nbytes >= LARGE_BYTES]
    return max((math.prod(array.sharding.shard_shape(array.shape)) / array.size for array in arrays), default=0.0)


def main() -> None:
    model_folder, run_folder = map(Path, sys.argv[1:])
    shares: list[float] = []
    place = trainer_module.placed_params

    def watched(*arguments: Any) -> Any:
        shares.append(largest_share())
        params = place(*arguments)
        shares.append(largest_share())
        return params

    trainer_module.placed_params = watched
    mesh = MeshConfig(data=1, fsdp=4, tensor=2)
    loaded = Trainer(MODEL, LearnerConfig(mesh=mesh, init_from=model_folder)).params()
    sums = {name: float(np.asarray(leaf).sum()) for name, leaf in loaded.items()}
    del loaded
    trainer = Trainer(MODEL, LearnerConfig(mesh=mesh))
    retained = RetainedVersions(run_folder, mapped=2)
    retained.stand_in(Version(0), retained.freeze(Version(0), trainer.freeze_into))
    behaviour_by_version(trainer, tiny_batch([1.0, 0.0]), lambda version: retained.host_params(Version(version), MODEL))
    print(json.dumps({"sums": sums, "calls": len(shares), "largest_share": max(shares)}))


if __name__ == "__main__":
    main()
