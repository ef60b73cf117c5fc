"""Compare a plan's bill with that of generating everything on the learner's own class of GPUs.

Two ways of doing so are computed with the same prices, lengths and speeds as the plan:

- synchronous: the learner's GPUs generate a batch, then train on it. The step lasts as long as both together;
- asynchronous: more GPUs of that class beside the learner generate, chosen by the planner under the same S.

Whatever is not known is decided in favour of these two: exchanging weights and changing between generating and training
takes no time, GPUs can be rented one by one at the price of the learner's, the learner's host needs no other machine
for coordination, traffic within the data centre is free at 10 Gbit/s, and no GPU of the class is taken back.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import mean
from typing import Literal

from capacity.catalogue.gpus import gpus
from capacity.catalogue.served import efficiency_of
from capacity.model.demand import Demand, publish_seconds
from capacity.model.roofline import WEIGHT_BYTES, Gpu, ModelShape, concurrency_max, decode_ms_per_token, speeds_of
from capacity.model.units import BYTES_PER_MBIT
from capacity.model.workers import Worker
from capacity.planner.plans import Plan
from capacity.questions.batch_time import batch_seconds
from capacity.questions.bill import Bill, bill_of
from capacity.questions.central_machines import LearnerMachine
from capacity.questions.promise import promised
from capacity.questions.scenario import Scenario
from capacity.questions.scenario_assumptions import STEP
from rollcast.runtime.errors import ConfigError

DATA_CENTRE_MBIT_PER_SECOND = 10_000.0
_BATCHES = 16  # sampled for the mean seconds of a synchronous batch
_POOL_FACTOR = 3.0  # GPUs offered to the asynchronous way / those that the rate needs, at the slowest concurrency

Way = Literal["plan", "rented", "synchronous", "asynchronous"]
WORDS: dict[Way, str] = {
    "plan": "this plan",
    "rented": "this plan without donated workers",
    "synchronous": "synchronous, on the learner's GPUs",
    "asynchronous": "asynchronous, on more GPUs like the learner's",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way of generating the rollouts of a run.

    Args:
        machines: those beside the learner, in words.
        step_s: seconds of a learner step, waiting included.
        utilisation: share of the time in which the learner trains.
        plan: of the workers; None where the learner's GPUs generate.
    """

    way: Way
    machines: str
    step_s: float
    utilisation: float
    bill: Bill
    plan: Plan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The ways of one model. Those without a feasible set are left out.

    Args:
        learner: in words.
    """

    model: str
    learner: str
    alternatives: tuple[Alternative, ...]

    def of(self, way: Way) -> Alternative | None:
        """Return one way; None if it has no feasible set."""
        return next((one for one in self.alternatives if one.way == way), None)

    def saving(self, way: Way, than: Way) -> float | None:
        """Return the share by which a step costs less one way than another; None if either is not feasible."""
        ours, theirs = self.of(way), self.of(than)
        if ours is None or theirs is None or theirs.bill.usd_per_step <= 0:
            return None
        return 1.0 - ours.bill.usd_per_step / theirs.bill.usd_per_step


def compared(asked: Scenario, *, seed: int) -> Comparison:
    """Compare the plan of a scenario with both ways of generating on the learner's class of GPUs.

    Args:
        seed: of the lengths of synchronous batches.

    Raises:
        ConfigError: the learner's hardware or the model is not known, or the GPU is too small for the model.
    """
    model, learner = asked.rollouts.model, asked.central.learner
    if model is None or learner is None:
        raise ConfigError(
            f"the learner's GPUs for {asked.inputs.model} are not known",
            cause="the catalogue has no step time of it",
            fix="compare a model of `rollcast capacity offers models`, or set demand.learner_hardware",
        )
    rented = tuple(worker for worker in asked.workers if worker.usd_per_hour > 0)
    ways = [_planned("plan", asked.demand, asked.workers, asked.headroom_least)]
    if 0 < len(rented) < len(asked.workers):
        ways.append(_planned("rented", asked.demand, rented, asked.headroom_least))
    ways.append(synchronous(asked, model, learner, seed=seed))
    ways.append(asynchronous(asked, model, learner))
    return Comparison(
        model=model.name,
        learner=f"{learner.name}, {step_in_words(asked)}",
        alternatives=tuple(one for one in ways if one is not None),
    )


def step_in_words(asked: Scenario) -> str:
    """Return T_train with its source and uncertainty: it may be another model's, scaled."""
    step = next(one for one in asked.assumptions if one.name == STEP)
    return f"a step of {asked.demand.t_train_s:.1f} s, ±{step.relative_uncertainty:.0%} ({step.source})"


def _planned(way: Way, demand: Demand, workers: Sequence[Worker], headroom_least: float) -> Alternative | None:
    made = promised(demand, workers, headroom_least=headroom_least)
    if not made.feasible:
        return None
    return Alternative(
        way=way,
        machines=f"{len(made.chosen)} workers",
        step_s=demand.t_train_s / made.utilisation,
        utilisation=made.utilisation,
        bill=bill_of(made.demand, made.workers_usd_per_hour, made.egress_usd_per_hour, made.utilisation),
        plan=made,
    )


def synchronous(asked: Scenario, model: ModelShape, learner: LearnerMachine, *, seed: int) -> Alternative:
    """Return what it costs if the learner's GPUs generate and train in turn, on an even share of the batch each.

    Raises:
        ConfigError: the model does not fit into one GPU.
    """
    demand, random = replace(asked.demand, coordinator_usd_per_hour=0.0), Random(seed)
    generating_s = mean(_batch_s(asked, model, learner, random) for _ in range(_BATCHES))
    step_s = demand.t_train_s + generating_s
    utilisation = demand.t_train_s / step_s
    return Alternative(
        way="synchronous",
        machines="none",
        step_s=step_s,
        utilisation=utilisation,
        bill=bill_of(demand, 0.0, 0.0, utilisation),
        plan=None,
    )


def _batch_s(asked: Scenario, model: ModelShape, learner: LearnerMachine, random: Random) -> float:
    """Return the seconds until the slowest of the learner's GPUs has generated its share of one sampled batch."""
    rollouts, demand = asked.rollouts, asked.demand
    gpu, held = gpus()[learner.hardware], _held(asked, model)
    context = rollouts.prompt_tokens + rollouts.lengths.mean_made_so_far
    fitting = concurrency_max(gpu, held, context)
    if fitting < 1:
        raise ConfigError(f"{model.name} does not fit into one {learner.hardware}", fix="compare a smaller model")
    pace = functools.partial(
        _pace_s, gpu, held, _efficiency(asked, gpu), rollouts.prompt_tokens / rollouts.lengths.mean
    )
    share = math.ceil(demand.rollouts_per_step / learner.gpus)
    times = []
    for begun in range(0, demand.rollouts_per_step, share):
        count = min(share, demand.rollouts_per_step - begun)
        lengths = [max(1.0, rollouts.lengths.quantile(random.random())) for _ in range(count)]
        seconds = batch_seconds(lengths, pace, concurrency_max=fitting, prompt_tokens=rollouts.prompt_tokens)
        times.append(seconds)
    return max(times)


def _pace_s(
    gpu: Gpu, model: ModelShape, efficiency: float, prompt_per_token: float, concurrency: float, context: float
) -> float:
    ms = decode_ms_per_token(gpu, model, concurrency, context, efficiency, prompt_per_token=prompt_per_token)
    return ms / 1000.0


def asynchronous(asked: Scenario, model: ModelShape, learner: LearnerMachine) -> Alternative | None:
    """Return what it costs if more GPUs of the learner's class generate; None if no number of them is enough for S."""
    gpu, rollouts = gpus()[learner.hardware], asked.rollouts
    uplink = DATA_CENTRE_MBIT_PER_SECOND * BYTES_PER_MBIT
    demand = replace(
        asked.demand,
        coordinator_usd_per_hour=0.0,
        learner_upload_bytes_per_second=uplink,
        learner_egress_usd_per_gb=0.0,
        conduct=replace(asked.demand.conduct, t_publish_s=publish_seconds(asked.demand.update_bytes, uplink)),
    )
    speeds = speeds_of(
        gpu,
        _held(asked, model),
        rollouts.lengths,
        rollouts.concurrencies,
        _efficiency(asked, gpu),
        prompt_tokens=rollouts.prompt_tokens,
    )
    if not speeds:
        return None
    worker = Worker(
        worker_id="",
        speeds=speeds,
        usd_per_hour=demand.learner_usd_per_hour / learner.gpus,
        upload_bytes_per_second=uplink,
        download_bytes_per_second=uplink,
        hardware=learner.hardware,
        region="data centre",
    )
    needed = demand.rollouts_per_step / demand.t_train_s / speeds[-1].rollouts_per_second
    count = math.ceil(_POOL_FACTOR * needed) + learner.gpus
    pool = [replace(worker, worker_id=f"{learner.hardware}-{number + 1}") for number in range(count)]
    found = _planned("asynchronous", demand, pool, asked.headroom_least)
    return None if found is None else replace(found, machines=f"{found.machines.split()[0]} x {learner.hardware}")


def _held(asked: Scenario, model: ModelShape) -> ModelShape:
    """Return the model with weights in the precision in which workers hold it."""
    return replace(model, bytes_per_parameter=WEIGHT_BYTES[asked.rollouts.weights])


def _efficiency(asked: Scenario, gpu: Gpu) -> float:
    return asked.rollouts.efficiency or efficiency_of(gpu)
