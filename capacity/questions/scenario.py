"""Put together one question to the planner: a demand, workers with their speeds, and the sources of both."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capacity.catalogue.models import model_named, models
from capacity.catalogue.token_lengths import LENGTH_NAMES, lengths_named
from capacity.inputs.demand_file import MODEL_MEASURED, DemandFile, LengthsSection, topology_named
from capacity.inputs.pool.checks import CheckedPool, Skipped, skipped_lines
from capacity.inputs.pool.rows import PoolRow
from capacity.inputs.pool.speeds import Rollouts, workers_of
from capacity.model.assumptions import Assumption
from capacity.model.demand import NOTICE_S, Conduct, Demand, publish_seconds
from capacity.model.lengths import LengthDistribution
from capacity.model.roofline import ModelShape
from capacity.model.units import BYTES_PER_MBIT
from capacity.model.version_bytes import delta_share
from capacity.model.workers import Worker
from capacity.questions.central_machines import CentralMachines, central_machines_of
from capacity.questions.plan_json import Inputs
from capacity.questions.scenario_assumptions import assumptions_of
from rollcast.runtime.errors import ConfigError, PoolError
from rollcast.wire.version_swap import AtVersionSwap

LENGTH_QUANTILES = 400
"""Quantiles that stand for the lengths of rollouts in predictions and simulations."""
HEADROOM_USUAL = 1.1
"""phi where none is given: `plan` begins its search with it, `what-if` and `replan` take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A demand and the workers to choose from.

    Args:
        headroom_least: least phi; the demand has it, or a usual one to begin with where it was not given.
        central: machines of the learner and the coordinator, and storage.
        rollouts: lengths and model of what is generated, for questions about other models.
        machines: rows of the pool that state what starts their workers.
    """

    demand: Demand
    headroom_least: float
    central: CentralMachines
    workers: tuple[Worker, ...]
    assumptions: tuple[Assumption, ...]
    inputs: Inputs
    rollouts: Rollouts
    machines: tuple[PoolRow, ...] = ()


def scenario_of(file: DemandFile, pool: CheckedPool, *, demand_source: str, pool_source: str) -> Scenario:
    """Put a demand and a pool together.

    Raises:
        ConfigError: the model or the lengths are not known.
        PoolError: no row can be used; the reasons are in it.
    """
    rollouts = rollouts_of(file)
    made = workers_of(pool.taken, rollouts)
    skipped = (*pool.skipped, *made.skipped)
    if not made.workers:
        every = "the only row" if pool.rows == 1 else f"every one of the {pool.rows} rows"
        raise PoolError(
            f"{every} of {pool_source} has a problem",
            cause=" ".join(skipped_lines(skipped)),
            fix=_fix_of(skipped),
        )
    central = central_machines_of(file, rollouts.model, file.lengths.prompt_tokens + rollouts.lengths.mean)
    demand = demand_of(file, rollouts.model, central, rollouts.lengths if rollouts.model is not None else None)
    return Scenario(
        demand=demand,
        headroom_least=file.demand.headroom or 1.0,
        central=central,
        workers=made.workers,
        assumptions=assumptions_of(file, demand, central, rollouts, made, pool.taken),
        inputs=Inputs(
            pool=pool_source,
            demand=demand_source,
            model=file.demand.model,
            rows=pool.rows,
            skipped=skipped,
            filled=pool.filled,
            defaults=defaults_of(file, demand),
        ),
        rollouts=rollouts,
        machines=tuple(row for row in pool.taken if row.start),
    )


def _fix_of(skipped: Sequence[Skipped]) -> str:
    """Return how rows become usable; where they all lack the same columns, with the options that fill these in."""
    lacking = {one.column for one in skipped if one.reason == "missing"}
    if len(lacking) != 1 or any(one.reason != "missing" for one in skipped):
        return "correct them, or set a value for all of them with --assume column=value"
    columns = lacking.pop().split(", ")
    options = " ".join(f"--assume {column}=VALUE" for column in columns)
    free = "; --assume donated=yes for machines that cost nothing" if "usd_per_hour" in columns else ""
    return f"add {'them' if len(columns) > 1 else 'it'} to the pool, or give one value for all rows: {options}{free}"


def defaults_of(file: DemandFile, demand: Demand) -> tuple[str, ...]:
    """Return the settings that a demand file leaves out, each as ``key value``; None is what another key decides."""
    given = file.demand.model_fields_set
    found = [
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in file.demand
        if key not in given and value not in (None, "")
    ]
    if file.demand.t_publish_s is None:
        found.append(f"t_publish_s {demand.conduct.t_publish_s:.3g} (from update_bytes and the uplink)")
    return tuple(found)


def demand_of(
    file: DemandFile, model: ModelShape | None, central: CentralMachines, lengths: LengthDistribution | None = None
) -> Demand:
    """Return the demand of a file; the bytes of a version come from the model where they are not given.

    Args:
        lengths: of the rollouts; None where only measured times of workers count.
    """
    values = file.demand
    return Demand(
        conduct=conduct_of(file, model),
        length_quantiles=lengths.quantiles(LENGTH_QUANTILES) if lengths is not None else (),
        rollouts_per_step=values.rollouts_per_step,
        t_train_s=central.t_train_s,
        staleness_limit=values.staleness_limit,
        publish_every_steps=values.publish_every_steps,
        update_bytes=update_bytes(file, model),
        join_bytes=join_bytes(file, model),
        learner_upload_bytes_per_second=values.learner_upload_mbit_per_second * BYTES_PER_MBIT,
        learner_egress_usd_per_gb=values.learner_egress_usd_per_gb,
        topology=topology_named(values.topology),
        pauses_while_receiving=values.pauses_while_receiving,
        t_swap_s=values.t_swap_s,
        t_load_s=values.t_load_s,
        t_score_s=values.t_score_s,
        headroom=values.headroom or HEADROOM_USUAL,
        share_without_a_region=values.share_without_a_region,
        chance_z=values.chance_z,
        region_correlation=values.region_correlation,
        usd_per_hour_max=values.usd_per_hour_max,
        learner_usd_per_hour=central.learner_usd_per_hour,
        coordinator_usd_per_hour=central.coordinator_usd_per_hour,
        storage_usd_per_hour=central.storage_usd_per_hour,
    )


def conduct_of(file: DemandFile, model: ModelShape | None) -> Conduct:
    """Return how the run of a file is operated."""
    values = file.demand
    uplink = values.learner_upload_mbit_per_second * BYTES_PER_MBIT
    publish_s = values.t_publish_s
    return Conduct(
        samples_per_group=values.samples_per_group,
        lead_margin_steps=values.lead_margin_steps,
        prefetch_batches=values.prefetch_batches,
        prefetch_s=values.prefetch_s,
        at_version_swap=_at_version_swap(file),
        t_publish_s=publish_seconds(update_bytes(file, model), uplink) if publish_s is None else publish_s,
        t_notice_s=NOTICE_S,
        t_turn_s=values.t_turn_s,
        reconnect_grace_s=values.reconnect_grace_s,
    )


def _at_version_swap(file: DemandFile) -> AtVersionSwap:
    """Return the rule at new versions by what it costs.

    Over one base workers have the adapters of two versions at a time: rollouts that finish delay no other, and nothing
    is read again, as with "keep". Versions with noise have norms of their own and take turns.
    """
    values = file.demand
    beside = values.adapter_rank is not None and not values.adapter_noise
    return "keep" if beside and values.at_version_swap == "finish" else values.at_version_swap


def join_bytes(file: DemandFile, model: ModelShape | None) -> float:
    """Return what a worker receives once when it joins, besides versions: the model, where a version is not whole."""
    whole = file.demand.encoding == "keyframe" and file.demand.adapter_rank is None
    return 0.0 if whole or model is None else model.weight_bytes


def update_bytes(file: DemandFile, model: ModelShape | None) -> float:
    """Return M, as given, else the model's weights or a delta's share of them, or else the adapters'.

    Raises:
        ConfigError: the catalogue does not know the size of the model's adapters.
    """
    values = file.demand
    if values.update_bytes is not None:
        return values.update_bytes
    assert model is not None, "a demand without a model needs update_bytes"
    if values.adapter_rank is not None:
        return _adapter_bytes(model, values.adapter_rank, values.adapter_noise) * (values.delta_share or 1.0)
    return model.weight_bytes * (share_of_keyframe(file) if file.demand.encoding == "delta" else 1.0)


def _adapter_bytes(model: ModelShape, rank: int, noisy: bool) -> float:
    if not model.adapter_parameters:
        raise ConfigError(
            f"the catalogue does not know the size of adapters for {model.name}",
            fix="give update_bytes: 2 x rank x the inputs and outputs of every layer with an adapter",
        )
    return model.adapter_bytes(rank, noisy=noisy)


def share_of_keyframe(file: DemandFile) -> float:
    """Return a delta's share of a keyframe's bytes, as given, else by the learning rate and kappa."""
    values = file.demand
    return values.delta_share or delta_share(values.learning_rate, values.publish_every_steps)


def rollouts_of(file: DemandFile) -> Rollouts:
    """Return the lengths and the model of what is generated.

    Raises:
        ConfigError: the model or the lengths are not known.
    """
    return Rollouts(
        model=model_of(file.demand.model),
        lengths=lengths_of(file.lengths),
        prompt_tokens=file.lengths.prompt_tokens,
        efficiency=file.engine.efficiency,
        concurrencies=file.engine.concurrencies,
        tensor_parallel=file.engine.tensor_parallel,
        weights=file.engine.weights,
    )


def model_of(name: str) -> ModelShape | None:
    """Return a model of the catalogue; None where speeds are measured.

    Raises:
        ConfigError: the catalogue does not have it.
    """
    found = model_named(name)
    if found is None and name != MODEL_MEASURED:
        raise ConfigError(
            f"the catalogue has no model {name!r}",
            cause=f"it has {', '.join(models())}",
            fix=f'{_nearest(name)}give model = "measured" with update_bytes, and workers with measured speeds',
        )
    return found


def _nearest(name: str) -> str:
    found = difflib.get_close_matches(name.lower(), models(), n=1)
    return f"did you mean {found[0]!r}? Otherwise " if found else ""


def lengths_of(section: LengthsSection) -> LengthDistribution:
    """Return the lengths of rollouts, cut at ``tokens_max``.

    Raises:
        ConfigError: neither the catalogue nor a file has them.
    """
    found = lengths_named(section.distribution)
    if found is None:
        found = _lengths_file(Path(section.distribution))
    return found.capped(section.tokens_max)


def _lengths_file(path: Path) -> LengthDistribution:
    fix = f"name one of the catalogue ({', '.join(LENGTH_NAMES)}), or a CSV file with low,high,weight in tokens"
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        return LengthDistribution.from_bins(
            (float(row["low"]), float(row["high"]), float(row["weight"])) for row in rows
        )
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"no lengths of rollouts in {path}", cause=str(error) or repr(error), fix=fix) from None
