"""Train with several processes: the leader has its calls repeated in all of them.

Each method of `LeadTrainer` that computes on all devices posts an order first; `Follower` carries it out in the other
processes. The time of both is limited. All then run the same method of `Trainer`: the leader with the values, the
followers with zeros of the same shapes, since the leader's values are sent to them on the devices
(learner.training.mesh.placed).
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np
import structlog

from learner.checkpoints.arrays import ArrayWrite, SavedArrays, TornCheckpoint
from learner.config import LearnerConfig
from learner.distributed.team import Order, Team
from learner.publishing.growth import Progress, Write, nothing_left
from learner.training.freezing import gather_into
from learner.training.mesh import gathered, pieces
from learner.training.micro_batches import BoolArray, FloatArray
from learner.training.packing import PackedBatch
from learner.training.tracing import TRACE_ERRORS
from learner.training.trainer import Trainer
from rollcast.policy.compilation import use_matmul_precision
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import TokenStatistics
from rollcast.policy.params import Params, abstract_params, abstract_snapshot
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.versions.tensors import TensorSpec

# Settings on which all processes must agree; the leader sends its own.
SHARED = ("seed", "optimiser", "objective", "teacher", "mesh", "remat", "packed_row_tokens", "matmul_precision")

_log = structlog.get_logger()


class LeadTrainer(Trainer):
    """A trainer over the devices of all processes, for the leader."""

    def __init__(self, model_config: ModelConfig, learner_config: LearnerConfig, team: Team) -> None:
        self._team = team
        self._built = False
        self._shared_run_folder = learner_config.distributed.shared_run_folder
        self._frozen = 0  # versions that all processes wrote together
        shared = learner_config.model_dump(mode="json", include=set(SHARED))
        use_matmul_precision(learner_config.matmul_precision, model_config.carrier_dtype)
        settings = {"model": model_config.model_dump(mode="json"), "shared": shared}
        with team.lead(Order("build", text=json.dumps(settings))):
            super().__init__(model_config, learner_config)
        self._built = True

    def params(self) -> Params:
        """Return the whole float32 parameters on the leader's first device, for warm starts and evaluations."""
        with self._team.lead(Order("gather")):
            return {name: jnp.asarray(gathered(value)) for name, value in self.layers().items()}

    def set_params(self, params: Params) -> None:
        with self._team.lead(Order("set_params")) if self._built else nullcontext():
            super().set_params(params)

    def set_base(self, tensors: Params) -> None:
        with self._team.lead(Order("set_base")):
            super().set_base(tensors)

    def write_base(self, file: BinaryIO | None) -> tuple[TensorSpec, ...]:
        with self._team.lead(Order("write_base")):
            return super().write_base(file)

    def train_step(
        self,
        batch: PackedBatch,
        behaviour_logprobs: FloatArray,
        on_policy: BoolArray | None = None,
        margins_max: FloatArray | None = None,
        teacher_logprobs: FloatArray | None = None,
    ) -> dict[str, float]:
        more: dict[str, Any] = {
            "behaviour_logprobs": behaviour_logprobs,
            "on_policy": np.zeros(batch.tokens.shape, bool) if on_policy is None else on_policy,
            "margins_max": np.full(batch.tokens.shape, np.inf, np.float32) if margins_max is None else margins_max,
        }
        if teacher_logprobs is not None:
            more["teacher_logprobs"] = teacher_logprobs
        with self._team.lead(_batch_order("train", batch, **more)):
            return super().train_step(batch, **more)

    def placed(self, params: Params) -> Params:
        tensors = {name: (str(leaf.dtype), leaf.shape) for name, leaf in params.items()}
        with self._team.lead(Order("place", text=json.dumps(tensors))):
            return super().placed(params)

    def behaviour(self, params: Params, packed: PackedBatch) -> TokenStatistics:
        """Return the statistics of Trainer.behaviour; ``params`` must be the last ones that were `placed`."""
        with self._team.lead(_batch_order("score", packed)):
            return super().behaviour(params, packed)

    def current(self, packed: PackedBatch) -> TokenStatistics:
        with self._team.lead(_batch_order("score_current", packed)):
            return super().current(packed)

    def begin_freeze(self, path: Path, version: int) -> Write:
        """Begin to freeze into a file that all processes write if they share the folder; otherwise write it now."""
        if not self._shared_run_folder:
            with self._team.lead(Order("freeze", text=json.dumps(["", version]))), path.open("r+b") as file:
                tensors = gather_into(self.model_config, self.published_layers(version), file)
            return Write(tensors, nothing_left)
        path = path.absolute()
        with self._team.lead(Order("freeze", text=json.dumps([str(path), version]))):
            write = super().begin_freeze(path, version)
        self._frozen += 1
        number = self._frozen

        def write_with_the_others(_: Progress) -> None:
            write()
            self._team.meet(f"frozen/{number}")

        return Write(write.tensors, write_with_the_others)

    def begin_save(self, path: str) -> ArrayWrite:
        with self._team.lead(Order("save", text=path)):
            return super().begin_save(path)

    def begin_trace(self, folder: Path, *, python_tracer: bool) -> None:
        self._team.post(Order("begin_trace", text=json.dumps([folder.name, python_tracer])))
        super().begin_trace(folder, python_tracer=python_tracer)

    def end_trace(self) -> None:
        self._team.post(Order("end_trace"))
        super().end_trace()

    def load(self, saved: SavedArrays) -> None:
        self.check_state(saved)
        with self._team.lead(Order("load", text=json.dumps([saved.path, saved.record_values()]))):
            super().load(saved)

    def end(self, status: int) -> None:
        """End the other processes with this exit status."""
        self._team.post(Order("end", text=str(status)))


class Follower:
    """A process that carries out the leader's orders. Its methods block.

    Args:
        config: this process's configuration; shared settings come with the first order.
    """

    def __init__(self, config: LearnerConfig, team: Team) -> None:
        self._config = config
        self._team = team
        self._trainer: Trainer | None = None
        self._older: Params = {}
        self._frozen = 0  # versions that all processes wrote together
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="freeze")
        self._written: Future[None] | None = None
        self._saving: ArrayWrite | None = None

    def follow(self) -> int:
        """Carry out orders until the order to end, and return its exit status.

        Raises:
            ProcessFailed: another process was lost.
        """
        while (order := self._team.take()).name != "end":
            if self._written is not None and self._written.done():
                self._written.result()  # raises what went wrong
            with self._team.watched(order):
                if order.name == "build":
                    self._trainer = self._build(json.loads(order.text))
                else:
                    assert self._trainer is not None
                    self._carry_out(self._trainer, order)
        return int(order.text)

    def _freeze(self, trainer: Trainer, path: str, version: int) -> None:
        """Take part in freezing a version, into the file that all processes write or, without a path, the leader's."""
        if not path:
            gather_into(trainer.model_config, trainer.published_layers(version), None)
            return
        self._frozen += 1
        self._write_in_background(trainer.begin_freeze(Path(path), version), self._frozen)

    def _write_in_background(self, write: Write, number: int) -> None:
        if self._written is not None:
            self._written.result()

        def write_with_the_others() -> None:
            write()
            self._team.meet(f"frozen/{number}")

        self._written = self._writer.submit(write_with_the_others)

    def _build(self, settings: dict[str, Any]) -> Trainer:
        values = self._config.model_dump() | settings["shared"]
        model, config = ModelConfig.model_validate(settings["model"]), LearnerConfig.model_validate(values)
        use_matmul_precision(config.matmul_precision, model.carrier_dtype)
        return Trainer(model, config)

    def _trace(self, trainer: Trainer, order: Order) -> None:
        """Begin or end a trace in this process's run folder; training continues without one that fails."""
        try:
            if order.name == "end_trace":
                trainer.end_trace()
            else:
                name, python_tracer = json.loads(order.text)
                trainer.begin_trace(RunFolder(self._config.run_folder).profiles / name, python_tracer=python_tracer)
        except TRACE_ERRORS as error:
            _log.warning("this process is not in the profile", error=str(error)[:300])

    def _carry_out(self, trainer: Trainer, order: Order) -> None:
        match order.name:
            case "train":
                batch = _batch(order)
                names = ("behaviour_logprobs", "on_policy", "margins_max", "teacher_logprobs")
                trainer.train_step(batch, **{name: order.arrays[name] for name in names if name in order.arrays})
            case "score":
                trainer.behaviour(self._older, _batch(order))
            case "score_current":
                trainer.current(_batch(order))
            case "place":
                tensors = {
                    name: _nothing(tuple(shape), np.dtype(dtype))
                    for name, (dtype, shape) in json.loads(order.text).items()
                }
                self._older = {}  # freed first, so that only one older version is in memory
                self._older = trainer.placed(tensors)
            case "set_params":
                shapes = abstract_params(trainer.model_config)
                trainer.set_params({name: _nothing(leaf.shape, leaf.dtype) for name, leaf in shapes.items()})
            case "set_base":
                shapes = abstract_snapshot(trainer.model_config)
                trainer.set_base({name: _nothing(leaf.shape, leaf.dtype) for name, leaf in shapes.items()})
            case "write_base":
                trainer.write_base(None)
            case "gather":
                for value in trainer.layers().values():
                    for _ in pieces(value):
                        pass
            case "freeze":
                self._freeze(trainer, *json.loads(order.text))
            case "save":
                if self._saving is not None:
                    self._saving.finish()  # raises what went wrong
                self._saving = trainer.begin_save(order.text)
            case "begin_trace" | "end_trace":
                self._trace(trainer, order)
            case "load":
                with suppress(TornCheckpoint):  # the leader tries the checkpoint before
                    trainer.load(SavedArrays.from_values(*json.loads(order.text)))
            case _:
                raise AssertionError(f"no order is called {order.name}")


def _batch_order(name: str, batch: PackedBatch, **more: np.ndarray[Any, Any]) -> Order:
    """Return the order with a batch's arrays, except routes: as a weight's, their values are sent on the devices."""
    arrays = {key: getattr(batch, key) for key in _array_fields()} | more
    routes = None if batch.routes is None else (str(batch.routes.dtype), batch.routes.shape)
    return Order(name, arrays, json.dumps([batch.sequences_per_row, routes]))


def _batch(order: Order) -> PackedBatch:
    arrays: dict[str, Any] = {key: order.arrays[key] for key in _array_fields()}
    sequences_per_row, described = json.loads(order.text)
    routes = None if described is None else _nothing(tuple(described[1]), np.dtype(described[0]))
    return replace(PackedBatch(**arrays), sequences_per_row=sequences_per_row, routes=routes)


def _array_fields() -> list[str]:
    return [field.name for field in fields(PackedBatch) if field.type == "Array"]


def _nothing(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return zeros of a shape that take no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
