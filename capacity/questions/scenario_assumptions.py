"""List the figures that a scenario rests on, which people read first, with unit, source and uncertainty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from capacity.catalogue.prices import other_price
from capacity.catalogue.served import UNTIMED_INTERVAL, efficiencies
from capacity.inputs.demand_file import DemandFile
from capacity.inputs.pool.rows import PoolRow
from capacity.inputs.pool.speeds import MEASURED_INTERVAL, Pool, Rollouts
from capacity.model.assumptions import Assumption
from capacity.model.broadcast_bound import stripe_factor
from capacity.model.demand import Demand
from capacity.model.units import BYTES_PER_GB, BYTES_PER_MBIT
from capacity.model.version_bytes import RELATIVE_UNCERTAINTY
from capacity.questions.central_machines import CentralMachines, price_source

GIVEN, DEFAULT = "given", "by default"
STEP = "learner step, T_train"
_PRICE_UNCERTAINTY = 0.5  # capacity/catalogue/data/prices/README.md
_SIGMAS_OF_INTERVAL = 1.645  # standard deviations within which 90 % of a normal quantity lie
_UNCERTAINTY_MAX = 0.3  # of a speed in a forecast: the speeds of a whole fleet are seldom twice those estimated
_LENGTHS_UNCERTAINTY = 0.5  # another model's lengths stand for this one's


def assumptions_of(
    file: DemandFile, demand: Demand, central: CentralMachines, rollouts: Rollouts, pool: Pool, rows: Sequence[PoolRow]
) -> tuple[Assumption, ...]:
    """Return the assumptions in the order in which people read them: learner, version, rollouts, workers."""
    return (
        *_of_learner(file, demand, central),
        *_of_central(file, central),
        *_of_versions(file, demand, rollouts),
        *_of_rollouts(file, rollouts, pool, rows),
        *_of_rows(rows),
    )


def _of_learner(file: DemandFile, demand: Demand, central: CentralMachines) -> Iterator[Assumption]:
    yield Assumption("model", file.demand.model, "", GIVEN)
    yield Assumption("rollouts per step, R", demand.rollouts_per_step, "rollouts", GIVEN)
    yield _of_step(file, central)
    yield Assumption("staleness limit, S", demand.staleness_limit, "learner steps", GIVEN)
    yield Assumption(
        "steps between versions, kappa",
        demand.publish_every_steps,
        "learner steps",
        _source(file, "publish_every_steps"),
    )
    if file.demand.headroom is not None:
        yield Assumption("headroom, phi, at least", demand.headroom, "bought / needed", GIVEN)
    if demand.usd_per_hour_max is not None:
        yield Assumption("budget", demand.usd_per_hour_max, "$/h", GIVEN)
    if demand.share_without_a_region:
        yield Assumption("rate left without any one region", demand.share_without_a_region, "of the needed rate", GIVEN)
    if demand.chance_z:
        yield Assumption("rate must hold at", demand.chance_z, "standard deviations", GIVEN)
        source = _source(file, "region_correlation")
        yield Assumption("losses of workers of one region", demand.region_correlation, "correlation", source)


def _of_step(file: DemandFile, central: CentralMachines) -> Assumption:
    learner = central.learner
    if file.demand.t_train_s is not None or learner is None:
        return Assumption(STEP, central.t_train_s, "s", GIVEN, 0.1)
    source = f"{learner.tokens_per_second:,.0f} tokens/s: {learner.pace_source}"
    return Assumption(STEP, central.t_train_s, "s", source, learner.relative_uncertainty)


def _of_central(file: DemandFile, central: CentralMachines) -> Iterator[Assumption]:
    """Return the prices of what is no worker; their sources where the catalogue supplied them."""
    learner, values = central.learner, file.demand
    if values.learner_usd_per_hour is not None:
        source = GIVEN
    elif learner is None or learner.usd_per_hour is None:
        source = "not known: give learner_usd_per_hour"
    else:
        source = f"{learner.name}, {learner.price_source}"
    yield Assumption("learner's machine", central.learner_usd_per_hour, "$/h", source)
    source = GIVEN if values.coordinator_usd_per_hour is not None else price_source(other_price("coordinator"))
    yield Assumption("coordinator's machine", central.coordinator_usd_per_hour, "$/h", source)
    source = GIVEN
    if values.storage_usd_per_hour is None:
        stored = f"{central.stored_bytes / BYTES_PER_GB:,.0f} GB of checkpoints and versions"
        source = f"{stored}, {price_source(other_price('storage'))}"
    yield Assumption("storage", central.storage_usd_per_hour, "$/h", source)


def _of_versions(file: DemandFile, demand: Demand, rollouts: Rollouts) -> Iterator[Assumption]:
    if file.demand.update_bytes is not None:
        yield Assumption("version, M", demand.update_bytes / 1e9, "GB", GIVEN)
    elif file.demand.adapter_rank is not None:
        noise = ", and noisy scales of norms" if file.demand.adapter_noise else ""
        source = f"adapters of rank {file.demand.adapter_rank} on every linear layer{noise}"
        yield Assumption("version as adapters, M", demand.update_bytes / 1e9, "GB", source)
    elif file.demand.encoding == "delta" and rollouts.model is not None:
        share = demand.update_bytes / rollouts.model.weight_bytes
        why = "as given" if file.demand.delta_share else f"at a learning rate of {file.demand.learning_rate:g}"
        source = f"{share:.2%} of the model's {rollouts.model.weight_bytes / 1e9:.2f} GB, {why}"
        yield Assumption("version as a delta, M", demand.update_bytes / 1e9, "GB", source, RELATIVE_UNCERTAINTY)
    else:
        yield Assumption("version as a keyframe, M", demand.update_bytes / 1e9, "GB", "the model's weights")
    if demand.join_bytes:
        yield Assumption("received once by a worker that joins", demand.join_bytes / 1e9, "GB", "the model's weights")
    uplink = demand.learner_upload_bytes_per_second / BYTES_PER_MBIT
    yield Assumption("origin's uplink, U0", uplink, "Mbit/s", GIVEN, 0.1)
    price = _source(file, "learner_egress_usd_per_gb")
    yield Assumption("origin's traffic", demand.learner_egress_usd_per_gb, "$/GB", price)
    yield Assumption("copies travel in", str(demand.topology), "", _source(file, "topology"))
    if demand.topology.shape == "stripes":  # the other shapes count whole copies
        eta = stripe_factor(demand.topology)
        yield Assumption("loss of that shape, eta", eta, "x the fluid bound", "measured", 0.03)
    receiving = "stop generating" if demand.pauses_while_receiving else "keep generating"
    yield Assumption("workers that receive", receiving, "", _source(file, "pauses_while_receiving"))
    yield Assumption("pause to swap versions", demand.t_swap_s, "s", _source(file, "t_swap_s"), 0.5)
    if demand.t_load_s or demand.t_score_s:
        yield Assumption("loading and scoring", demand.t_load_s + demand.t_score_s, "s", GIVEN, 0.5)


def _of_rollouts(file: DemandFile, rollouts: Rollouts, pool: Pool, rows: Sequence[PoolRow]) -> Iterator[Assumption]:
    timed = all(row.rollouts_per_second is not None and row.t_gen_p90_s is not None for row in rows)
    if rollouts.model is not None or not timed:  # otherwise no figure follows from the lengths
        source = f"{file.lengths.distribution}, cut at {file.lengths.tokens_max:,} tokens"
        mean, p90 = round(rollouts.lengths.mean), round(rollouts.lengths.quantile(0.9))
        yield Assumption("rollout, mean", mean, "tokens", source, _LENGTHS_UNCERTAINTY)
        yield Assumption("rollout, p90", p90, "tokens", source, _LENGTHS_UNCERTAINTY)
    estimated = len(pool.workers) - pool.measured
    if pool.measured:
        yield Assumption("workers with measured speeds", pool.measured, "workers", "the pool", 0.1)
    if estimated:
        yield from _of_estimates(pool)
        yield Assumption("prompt, mean", file.lengths.prompt_tokens, "tokens", _source(file, "prompt_tokens"))
        given = rollouts.efficiency
        speeds = f"{min(efficiencies().values()):.2f} to {max(efficiencies().values()):.2f}" if given is None else given
        source = "by hardware, from published timings; 1 without one" if given is None else GIVEN
        yield Assumption("engine's efficiency", speeds, "of vLLM as fitted", source)


def _of_estimates(pool: Pool) -> Iterator[Assumption]:
    """Return the number of workers of each interval of estimated speeds."""
    intervals = Counter(one.speed_interval for one in pool.workers)
    intervals.pop(MEASURED_INTERVAL, None)
    for interval, count in sorted((interval, count) for interval, count in intervals.items() if interval is not None):
        narrow = interval <= UNTIMED_INTERVAL
        source = (
            "roofline of their hardware" if narrow else "roofline; few or no measurements of such models: calibrate"
        )
        sigma = min(interval / _SIGMAS_OF_INTERVAL, _UNCERTAINTY_MAX)
        yield Assumption("workers with estimated speeds", count, "workers", source, sigma)


def _of_rows(rows: Sequence[PoolRow]) -> Iterator[Assumption]:
    """Return prices by source; only rows that cost anything."""
    sources = Counter((row.price_source, row.price_date) for row in rows if not row.donated)
    for (source, date), count in sources.most_common():
        where = ", ".join(filter(None, (source or "the pool, which names no source", date and f"of {date}")))
        yield Assumption("prices", count, "rows", where, _PRICE_UNCERTAINTY)


def _source(file: DemandFile, key: str) -> str:
    sections = (file.demand, file.lengths, file.engine)
    return GIVEN if any(key in section.model_fields_set for section in sections) else DEFAULT
