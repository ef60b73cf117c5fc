"""Choose the machines besides the workers, with their prices: the learner's, the coordinator's, and storage.

The learner's pace is that of prime-rl's step times (capacity/catalogue/data/prime-rl). A dense model that was not
measured takes as many times longer as it has more parameters than the nearest one that was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from capacity.catalogue.gpus import gpu_named, gpus
from capacity.catalogue.models import model_named
from capacity.catalogue.prices import OtherPrice, other_price, rented_for_long
from capacity.catalogue.step_times import StepTime, step_times
from capacity.inputs.demand_file import DemandFile
from capacity.model.roofline import ModelShape
from capacity.model.units import BYTES_PER_GB
from rollcast.runtime.errors import ConfigError

MEASURED_UNCERTAINTY = 0.1  # capacity/catalogue/data/prime-rl/README.md: across machines
SCALED_UNCERTAINTY = 0.3  # assumed: of a model whose step was not measured
_TUNED = "-Instruct-2507"  # a model's instruct variant has its size
_TRAINING_BYTES = 16.0  # of a parameter: float32 master and two moments, bf16 weights and gradients
_ADAPTED_BYTES = 2.0  # of a parameter where only adapters are trained
_TRAINING_SHARE = 0.8  # of the memory, which activations share
_CHECKPOINT_BYTES = 12.0  # of a parameter: float32 master and AdamW's two moments
_CHECKPOINTS = 3  # learner's checkpoint.keep, and the one that is being written
_VERSIONS = 2  # the origin's keep_versions
_HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMachine:
    """A machine that a learner can run on.

    Args:
        tokens_per_second: that it trains, prompts and rollouts alike.
        usd_per_hour: of all its GPUs; None where no price is known.
        pace_source, price_source: in words.
        relative_uncertainty: of the pace.
    """

    hardware: str
    gpus: int
    tokens_per_second: float
    usd_per_hour: float | None
    pace_source: str
    price_source: str
    relative_uncertainty: float

    @property
    def name(self) -> str:
        return f"{self.gpus} x {self.hardware}"

    @property
    def usd_per_token(self) -> float:
        """USD per token trained in an hour; inf where no price is known."""
        return math.inf if self.usd_per_hour is None else self.usd_per_hour / self.tokens_per_second


def learner_machines(model: ModelShape, tokens_max: float, adapters: bool) -> tuple[LearnerMachine, ...]:
    """Return the machines with a known pace for a model, the cheapest for each token first.

    Args:
        tokens_max: longest prompt and rollout together; a micro-batch that was measured must hold them.
        adapters: whether only adapters are trained.
    """
    best: dict[str, LearnerMachine] = {}
    for machine in _measured(model, tokens_max, adapters):
        known = best.get(machine.hardware)
        if known is None or machine.tokens_per_second > known.tokens_per_second:
            best[machine.hardware] = machine
    return tuple(sorted(best.values(), key=lambda one: (one.usd_per_token, -one.tokens_per_second)))


def _measured(model: ModelShape, tokens_max: float, adapters: bool) -> Iterator[LearnerMachine]:
    """Yield the settings of the model whose size is nearest, of those that hold the longest rollout and the model."""
    timed = [
        (one, shape)
        for one in step_times()
        if one.kind == "rl" and (one.lora_rank is not None) == adapters and one.sequence_tokens >= tokens_max
        if (shape := model_named(one.model.removesuffix(_TUNED))) is not None and _alike(shape, model)
    ]
    nearest = min((_distance(shape, model) for _, shape in timed), default=math.inf)
    for one, shape in timed:
        if _distance(shape, model) == nearest and _fits(one, model, adapters):
            yield _machine(one, shape, model)


def _alike(first: ModelShape, second: ModelShape) -> bool:
    """Return whether one pace says something of the other: both dense, or the same mixture of experts."""
    return first.name == second.name or not (first.active_parameters or second.active_parameters)


def _distance(first: ModelShape, second: ModelShape) -> float:
    return abs(math.log(first.parameters / second.parameters))


def _fits(one: StepTime, model: ModelShape, adapters: bool) -> bool:
    memory = one.gpus * gpus()[one.hardware].memory_bytes
    return model.parameters * (_ADAPTED_BYTES if adapters else _TRAINING_BYTES) <= _TRAINING_SHARE * memory


def _machine(one: StepTime, shape: ModelShape, model: ModelShape) -> LearnerMachine:
    offer = rented_for_long(one.hardware)
    scale = shape.parameters / model.parameters
    scaled = "" if shape.name == model.name else f" times {scale:.2f}, as it has fewer parameters"
    how = "all parameters" if one.lora_rank is None else f"adapters of rank {one.lora_rank}"
    return LearnerMachine(
        hardware=one.hardware,
        gpus=one.gpus,
        tokens_per_second=one.tokens_per_second * scale,
        usd_per_hour=None if offer is None else offer.usd_per_gpu_hour * one.gpus,
        pace_source=f"prime-rl, {shape.name} on {one.gpus} x {one.hardware}, {how}{scaled}",
        price_source="" if offer is None else f"{offer.provider} {offer.kind}, {offer.usd_per_gpu_hour:g} $/h each",
        relative_uncertainty=MEASURED_UNCERTAINTY if shape.name == model.name else SCALED_UNCERTAINTY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralMachines:
    """The machines of one run besides the workers, prices in USD/h.

    Args:
        learner: chosen from the catalogue, of which pace and price count where they are not given; None where the
            catalogue has none.
        others: faster machines that could take its place, cheapest first; empty where the file decides.
        stored_bytes: of checkpoints and versions; 0 where the price of storage is given or the size is not known.
    """

    t_train_s: float
    learner: LearnerMachine | None
    others: tuple[LearnerMachine, ...]
    learner_usd_per_hour: float
    coordinator_usd_per_hour: float
    storage_usd_per_hour: float
    stored_bytes: float


def central_machines_of(file: DemandFile, model: ModelShape | None, tokens_per_rollout: float) -> CentralMachines:
    """Return the machines of a demand file: as given, else from the catalogue.

    Args:
        model: None where speeds are measured, which leaves nothing to estimate from.
        tokens_per_rollout: mean of a prompt and a rollout together.

    Raises:
        ConfigError: T_train is not given, and the catalogue has no step time for the model, or not on that hardware.
    """
    values = file.demand
    every = () if model is None else _learners(file, model)
    found = every[0] if every else None
    t_train_s = values.t_train_s
    if t_train_s is None:
        if found is None:
            raise ConfigError(
                f"the catalogue has no step time of a learner for {values.model}"
                + (f" on {values.learner_hardware}" if values.learner_hardware else ""),
                fix="give demand.t_train_s, the seconds of one learner step",
            )
        t_train_s = values.rollouts_per_step * tokens_per_rollout / found.tokens_per_second
    learner_usd = values.learner_usd_per_hour
    if learner_usd is None:
        learner_usd = (found.usd_per_hour if found is not None else None) or 0.0
    coordinator_usd, storage_usd = values.coordinator_usd_per_hour, values.storage_usd_per_hour
    stored = 0.0 if model is None or storage_usd is not None else stored_bytes(model, values.adapter_rank)
    return CentralMachines(
        t_train_s=t_train_s,
        learner=found,
        others=_faster(every) if values.t_train_s is None and values.learner_usd_per_hour is None else (),
        learner_usd_per_hour=learner_usd,
        coordinator_usd_per_hour=other_price("coordinator").usd if coordinator_usd is None else coordinator_usd,
        storage_usd_per_hour=_storage_usd_per_hour(stored) if storage_usd is None else storage_usd,
        stored_bytes=stored,
    )


def _learners(file: DemandFile, model: ModelShape) -> tuple[LearnerMachine, ...]:
    """Return the machines of the given hardware, or of any, the cheapest for each token first."""
    tokens_max = file.lengths.prompt_tokens + file.lengths.tokens_max
    found = learner_machines(model, tokens_max, file.demand.adapter_rank is not None)
    named = gpu_named(file.demand.learner_hardware)
    wanted = named.name if named is not None else file.demand.learner_hardware
    return tuple(one for one in found if not wanted or one.hardware == wanted)


def _faster(machines: tuple[LearnerMachine, ...]) -> tuple[LearnerMachine, ...]:
    priced = (one for one in machines[1:] if one.usd_per_hour is not None)
    return tuple(one for one in priced if one.tokens_per_second > machines[0].tokens_per_second)


def stored_bytes(model: ModelShape, adapter_rank: int | None) -> float:
    """Return the bytes that a run keeps: the newest checkpoints, and the newest versions as whole ones."""
    trained = model.parameters if adapter_rank is None else adapter_rank * model.adapter_parameters
    version = model.weight_bytes if adapter_rank is None else model.adapter_bytes(adapter_rank)
    return _CHECKPOINTS * _CHECKPOINT_BYTES * trained + _VERSIONS * version


def _storage_usd_per_hour(stored: float) -> float:
    return stored / BYTES_PER_GB * other_price("storage").usd / _HOURS_PER_MONTH


def price_source(price: OtherPrice) -> str:
    """Return the offer behind a price in words."""
    return f"{price.provider} {price.offer}, {price.usd:g} $/{price.per}"
