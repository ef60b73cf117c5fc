"""Run one learner process of several, or a learner on several devices, on a scripted course.

    python -m tests.learner.distributed.several FOLDER --mesh 1,2,1 [--processes 2 --process-id 0 --address
    HOST:PORT] [--resume]

Prints what the leader saw as one JSON object: metrics of each step, the snapshot's hash and the state's digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from learner.checkpoints.checkpoint import Checkpoints, HostState
from learner.config import DistributedConfig, LearnerConfig, MeshConfig
from learner.distributed.leader import Follower, LeadTrainer
from learner.distributed.processes import join
from learner.training import mesh as mesh_module
from learner.training.packing import PackedBatch
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.snapshot import freeze, tensor_specs, thaw, views
from tests.learner.tiny import CONFIG, tiny_batch

MODEL = ModelConfig(
    vocabulary_size=12, layers=1, width=16, query_heads=4, key_value_heads=2, head_size=8, feed_forward_width=16
)
WITH_EXPERTS = MODEL.model_copy(
    # Loads are measured on the rows of a micro-batch, which are others on another mesh.
    update={"experts": 6, "experts_per_token": 2, "expert_width": 8, "balance_coefficient": 0.0}
)
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]


NOISY = LoraConfig(rank=2, noise_start=0.05, noise_end=0.01, noise_stages=3, noise_steps=3)


def host_state(step: int) -> HostState:
    return HostState(step, step, "run", 0, 1, "{}", MODEL.model_dump_json(), "", {}, 8, [], {})


def config_for(mesh: tuple[int, ...]) -> LearnerConfig:
    data, fsdp, tensor = mesh
    return CONFIG.model_copy(update={"mesh": MeshConfig(data=data, fsdp=fsdp, tensor=tensor)})


def with_routes(batch: PackedBatch, model: ModelConfig) -> PackedBatch:
    """Give every token of a batch random experts, recorded under the version of its rollouts."""
    random = np.random.default_rng(1).random((*batch.tokens.shape, model.layers, model.experts))
    routes = random.argsort(-1)[..., : model.experts_per_token].astype(np.uint8)
    return replace(batch, routes=routes, route_versions=np.zeros(batch.tokens.shape, np.int64))


def course(trainer: Trainer, folder: Path, *, resume: bool, steps: int = 2) -> dict[str, object]:
    """Train on a batch of rollouts of the trainer's own version, from the start or from the folder's checkpoint."""
    checkpoints = Checkpoints(folder, keep=2)
    if trainer.model_config.lora is not None:
        keep_base(trainer, folder / "base", resume=resume)
    restored = checkpoints.restore(lambda _, saved: trainer.load(saved)) if resume else None
    model, batch = trainer.model_config, tiny_batch(REWARDS)
    if model.experts:
        batch = with_routes(batch, model)
    apart = np.random.default_rng(0).normal(0.0, 0.2, batch.tokens.shape).astype(np.float32) * batch.loss_mask
    metrics = []
    for number in range(steps):
        print(f"step {number}", file=sys.stderr, flush=True)
        snapshot = trainer.snapshot(number + 1)
        assert model.lora is not None or snapshot == freeze(model, trainer.params())
        params = thaw(model, snapshot.tensors, snapshot.state_bytes)
        behaviour = behaviour_by_version(trainer, batch, lambda _, params=params: params).logprobs  # type: ignore[misc]
        metrics.append(trainer.train_step(batch, behaviour - apart))
    start = 0 if restored is None else restored.host.step
    checkpoints.begin(host_state(start + steps), trainer.begin_save).commit()
    saved = checkpoints.restore(lambda _host, _saved: None)
    assert saved is not None
    return {
        "metrics": metrics,
        "snapshot": hashlib.sha256(trainer.snapshot(steps).state_bytes).hexdigest(),
        "digest": saved.digest,
        "restored": None if restored is None else restored.digest,
    }


def keep_base(trainer: Trainer, path: Path, *, resume: bool) -> None:
    """Write the base of adapters into a file, or read it from there."""
    if not resume:
        trainer.set_params(trainer.params())
        with path.open("wb") as file:
            trainer.write_base(file)
        return
    model = trainer.model_config
    trainer.set_base(views(model, tensor_specs(model), path.read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mesh", action="append", required=True, help="data,fsdp,tensor; may be repeated")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process-id", type=int, default=0)
    parser.add_argument("--address", default="")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--shared", action="store_true", help="both processes write the versions' files")
    parser.add_argument("--traced", action="store_true", help="both processes trace what they compute")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--init-from", type=Path, help="a model's folder, which only the leader receives")
    parser.add_argument("--experts", action="store_true", help="a model with experts, and batches with routes")
    parser.add_argument("--adapters", action="store_true", help="train adapters over a frozen base, with noise")
    parser.add_argument("--then", help="one more mesh, which resumes from the last one's checkpoint")
    arguments = parser.parse_args()
    meshes = [tuple(map(int, text.split(","))) for text in arguments.mesh]
    model, from_folder = WITH_EXPERTS if arguments.experts else MODEL, {"init_from": arguments.init_from}
    model = adapted(model, NOISY) if arguments.adapters else model
    if arguments.processes == 1:
        found = [
            course(
                Trainer(model, config_for(mesh).model_copy(update=from_folder)),
                arguments.folder / str(number),
                resume=arguments.resume,
            )
            for number, mesh in enumerate(meshes)
        ]
        if arguments.then:
            mesh = tuple(map(int, arguments.then.split(",")))
            last = arguments.folder / str(len(meshes) - 1)
            found.append(course(Trainer(MODEL, config_for(mesh)), last, resume=True, steps=0))
        print(json.dumps(found))
        return
    mesh_module.PIECE_BYTES = 500  # so that the larger tensors go from process to process in pieces
    place = {
        "processes": arguments.processes,
        "process_id": arguments.process_id,
        "coordinator_address": arguments.address,
    }
    team = join(DistributedConfig.model_validate(place | {"join_timeout_s": 60, "lost_after_s": 10}))
    if arguments.process_id:
        follows = config_for(meshes[0]).model_copy(update={"run_folder": arguments.folder})
        status = Follower(follows, team).follow()
    else:
        distributed = {"distributed": DistributedConfig(shared_run_folder=arguments.shared)}
        config = config_for(meshes[0]).model_copy(update=from_folder | distributed)
        trainer = LeadTrainer(model, config, team)
        if arguments.traced:
            trainer.begin_trace(arguments.folder / "profiles" / "step-000001", python_tracer=False)
        print(json.dumps([course(trainer, arguments.folder / "0", resume=arguments.resume, steps=arguments.steps)]))
        if arguments.traced:
            trainer.end_trace()
        status = 0
        trainer.end(status)
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
