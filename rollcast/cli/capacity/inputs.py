"""Read the inputs of the planner's commands: a pool and a demand, from files, options, a running run or its records."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from capacity.catalogue.gpus import gpu_named
from capacity.catalogue.models import models
from capacity.defaults import DEMAND, POOL, default_text
from capacity.inputs.bandwidth import mbit_per_second
from capacity.inputs.demand_file import MODEL_MEASURED, DemandFile, Encoding
from capacity.inputs.pool.checks import CheckedPool, check_pool
from capacity.inputs.pool.files import Row, assumed_values, read_pool, rows_of_csv
from capacity.inputs.pool.live import LiveRun, live_run, merged
from capacity.model.roofline import Weights
from capacity.questions.scenario import Scenario, scenario_of
from rollcast.cli.options import THIS_RUN, Settings
from rollcast.runtime.config import override, parse_config, read_toml
from rollcast.runtime.errors import ConfigError, MalformedMessage, PoolError

_OTHER_MODEL = (
    "the run's model is not in the catalogue, so this plans for {}, the demand's; --model names another one, and "
    "--from-run RUN_FOLDER plans for the run's own model by what a run of it measured"
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Sources of the workers.

    Parameters
    ----------
    pool
        CSV or TOML file of workers; the shipped example if there is no other source.
    assume
        Value for rows that leave a column empty, as column=value. May be repeated.
    rentable
        Add machines for rent, looked up with gpuhunt over the network.
    provider
        Only add machines for rent from this provider. May be repeated.
    hardware
        Only use workers with this hardware. May be repeated.
    coordinator
        Address of a running coordinator, for example http://127.0.0.1:7401. Its peers and its demand are used as
        measured; a pool file adds what was not measured, matched by the peers' names.
    ca_file
        Certificate (PEM) of the run's CA, for an https address.
    from_run
        Run folder whose records are used like a running coordinator; a pool file is matched by the peers' ids.
    """

    pool: Path | None = None
    assume: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    rentable: Annotated[bool, Parameter(negative=())] = False
    provider: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    hardware: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    coordinator: str = ""
    ca_file: Path | None = None
    from_run: Path | None = None


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions:
    """The run's demand. Options override the file.

    Parameters
    ----------
    demand
        TOML file with [demand], [lengths] and [engine]; the shipped example if not given.
    run
        Configuration of `rollcast up` or of a coordinator. Its batches, groups, limits, rules and token limits replace
        those of the demand file, so that the plan matches the run.
    model
        Model that generates the rollouts, for example qwen3-8b.
    staleness
        S: maximum age of a rollout at batch formation in learner steps.
    kappa
        Learner steps between two published versions.
    uplink
        Upload rate of the origin, for example 1000Mbit/s, 2.5Gbit/s or 125MB/s; a bare number is in Mbit/s.
    topology
        Topology of a broadcast: stripes=N, tree, chain or star.
    encoding
        Encoding in which workers receive a version.
    usd_per_hour_max
        Budget for workers and their traffic in US dollars per hour.
    tensor_parallel
        Accelerators of a machine that share one copy of the model; a pool's column counts more.
    weights
        Precision of the weights that workers generate with; a pool's column counts more.
    setting
        Override one setting of the file, for example demand.t_train_s=60. May be repeated.
    """

    demand: Path | None = None
    run: Path | None = None
    model: str | None = None
    staleness: int | None = None
    kappa: int | None = None
    uplink: str | None = None
    topology: str | None = None
    encoding: Encoding | None = None
    usd_per_hour_max: float | None = None
    tensor_parallel: int | None = None
    weights: Weights | None = None
    setting: Settings = ()


def today() -> str:
    """Return today's date as YYYY-MM-DD, UTC."""
    return datetime.now(UTC).date().isoformat()


def now() -> str:
    """Return the time in ISO 8601, UTC, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def scenario(pool: PoolOptions | None, demand: DemandOptions | None) -> Scenario:
    """Read and check the inputs, and combine them to a scenario.

    Raises:
        PoolError, ConfigError: see the modules of capacity.inputs.pool, and scenario.
        MissingExtra, OffersUnavailable: machines for rent cannot be looked up.
        RollcastError: a coordinator or a run's records cannot be read.
    """
    pool, demand = pool or PoolOptions(), demand or DemandOptions()
    live = _live(pool)
    checked, pool_source = checked_pool(pool, live)
    measured = all(row.rollouts_per_second is not None for row in checked.taken)
    file, demand_source = demand_file(demand, live, measured=measured)
    return scenario_of(file, checked, demand_source=demand_source, pool_source=pool_source)


def checked_pool(options: PoolOptions, live: LiveRun | None = None) -> tuple[CheckedPool, str]:
    """Return the plausible rows of the requested hardware, and their sources in words.

    Raises:
        PoolError: see the modules of capacity.inputs.pool.
        MissingExtra, OffersUnavailable: machines for rent cannot be looked up.
    """
    rows, sources = [], []
    if options.pool is not None:
        rows, sources = read_pool(options.pool), [str(options.pool)]
    elif not options.rentable and live is None:
        rows, sources = rows_of_csv(default_text(POOL), POOL), ["the shipped example (configs/pool.csv)"]
    if live is not None:
        rows = merged(rows, live.rows)
        sources.append(f"measurements of run {live.run_name}")
    if options.rentable:
        from capacity.inputs.pool.gpuhunt_offers import OfferFilter, rentable

        rows = rows + rentable(OfferFilter(providers=options.provider), today())
        sources.append("machines for rent")
    elif options.provider:
        raise ConfigError("--provider narrows machines for rent, and none are looked up", fix="add --rentable")
    source = " and ".join(sources)
    return check_pool(_with_hardware(rows, options, source), assumed_values(options.assume)), source


def _with_hardware(rows: list[Row], options: PoolOptions, source: str) -> list[Row]:
    """Return the rows of the requested hardware.

    Raises:
        PoolError: no row has it.
    """
    wanted = {_hardware(name) for name in options.hardware}
    kept = [row for row in rows if not wanted or _hardware(str(row.values.get("hardware", ""))) in wanted]
    if rows and not kept:
        has = sorted({_hardware(str(row.values.get("hardware", ""))) for row in rows} - {""})
        raise PoolError(
            f"no worker of {source} has the hardware {' or '.join(options.hardware)}",
            cause=f"it has {', '.join(has)}" if has else "its rows name no hardware",
            fix="correct --hardware, or leave it out",
        )
    return kept


def demand_file(
    options: DemandOptions, live: LiveRun | None = None, *, measured: bool = False
) -> tuple[DemandFile, str]:
    """Return the demand and its source in words: options override measurements, which override the file.

    Args:
        measured: whether the speed of every worker was measured, so that a live run's own model needs no catalogue.

    Raises:
        ConfigError: a key is unknown or a value is out of range.
    """
    if options.demand is None:
        values, source = tomllib.loads(default_text(DEMAND)), "the shipped example (configs/demand.toml)"
    else:
        values, source = read_toml(options.demand), str(options.demand)
    found = dict(live.demand) if live is not None else {}
    if live is not None:
        source += f" with measurements of run {live.run_name}"
        if measured:
            found |= _of_own_model(options, live)
    changes = _set_options(options)
    if options.run is not None:
        values, source = merged_run(values, options.run), f"{source} with the run of {options.run}"
        if live is None and options.model is None and not _names_its_model(options.run):
            source += f" ({_OTHER_MODEL.format(values['demand'].get('model', 'its'))})"
    section = dict(values.get("demand", {})) | found | changes
    if "model" in changes or "encoding" in changes:
        section.pop("update_bytes", None)  # its value belongs to another model or encoding
    given = {"tensor_parallel": options.tensor_parallel, "weights": options.weights}
    engine = dict(values.get("engine", {})) | {name: value for name, value in given.items() if value is not None}
    values = override(values | {"demand": section, "engine": engine}, options.setting)
    if changes or any(value is not None for value in given.values()) or options.setting:
        source += " with options"
    try:
        return parse_config(values, DemandFile, source=source), source
    except ConfigError as error:
        if "coordinator" in values:  # the file of `rollcast up`, where `--run` was meant
            raise ConfigError(
                f"{options.demand} is the configuration of a run, not a demand",
                cause="it has the section coordinator; a demand has demand, lengths and engine",
                fix=f"plan for this run with --run {options.demand}; `rollcast init plan` writes a demand",
            ) from error
        error.fix = error.fix.replace("rollcast config show", "rollcast capacity offers demand")
        raise


def _of_own_model(options: DemandOptions, live: LiveRun) -> dict[str, Any]:
    """Return the demand's values for the model that a run trains, where the speed of every worker was measured.

    A measured speed is over whole turnarounds, so it contains what swaps to new versions cost. The shipped example's
    model is another one, whose size and learner would make up the bill.
    """
    found: dict[str, Any] = {"t_swap_s": 0.0}
    named = options.demand is not None or options.model is not None
    if options.run is not None:
        named = named or ("coordinator" in read_toml(options.run) and _names_its_model(options.run))
    if not named and {"t_train_s", "update_bytes"} <= live.demand.keys():
        found["model"] = MODEL_MEASURED
    return found


def merged_run(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a demand file's values with those that a run's configuration decides.

    Raises:
        ConfigError: the configuration cannot be read, or a value of it is out of range.
    """
    from coordinator.config.config import CoordinatorConfig  # these import much that a plan without a run does not need
    from rollcast.cli.up_config import UpConfig

    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder, and --run takes the configuration of a run",
            fix=f"plan with the measurements of the run in it, --from-run {path}, or give the file it was started with",
        )
    content = read_toml(path)
    whole = parse_config(content, UpConfig, source=str(path)) if "coordinator" in content else None
    coordinator = whole.coordinator if whole is not None else parse_config(content, CoordinatorConfig, source=str(path))
    run, lease = coordinator.run, coordinator.lease
    decided: dict[str, Any] = {
        "rollouts_per_step": run.groups_per_step * run.samples_per_group,
        "samples_per_group": run.samples_per_group,
        "staleness_limit": run.staleness_limit,
        "at_version_swap": lease.at_version_swap,
        "lead_margin_steps": lease.lead_margin_steps,
        "prefetch_batches": lease.prefetch_batches,
        "prefetch_s": lease.prefetch_s,
        "reconnect_grace_s": lease.reconnect_grace_s,
    }
    if run.publish_every_steps != "auto":
        decided["publish_every_steps"] = run.publish_every_steps
    if whole is not None:
        decided["learning_rate"] = whole.learner.optimiser.learning_rate
        if _names_its_model(path):
            decided["model"] = _preset(content)
        lora = whole.learner.lora
        if lora is not None and not lora.targets:
            decided |= {"adapter_rank": lora.rank, "adapter_noise": lora.noisy}
    lengths = dict(values.get("lengths", {})) | {"tokens_max": coordinator.sampling.new_tokens_max}
    return values | {"demand": dict(values.get("demand", {})) | decided, "lengths": lengths}


def _preset(content: dict[str, Any]) -> str:
    return str(content.get("learner", {}).get("model", {}).get("preset", ""))  # empty once it is parsed


def _names_its_model(path: Path) -> bool:
    """Return whether a run's configuration names a model of the catalogue; one of a coordinator alone has no model."""
    content = read_toml(path)
    return "coordinator" not in content or _preset(content) in models()


def _set_options(options: DemandOptions) -> dict[str, Any]:
    given = {
        "model": options.model,
        "staleness_limit": options.staleness,
        "publish_every_steps": options.kappa,
        "learner_upload_mbit_per_second": None if options.uplink is None else _uplink(options.uplink),
        "topology": options.topology,
        "encoding": options.encoding,
        "usd_per_hour_max": options.usd_per_hour_max,
    }
    return {name: value for name, value in given.items() if value is not None}


def _uplink(text: str) -> float:
    """Return the Mbit/s of --uplink.

    Raises:
        ConfigError: it is no bandwidth.
    """
    try:
        return mbit_per_second(text)
    except ValueError as error:
        raise ConfigError("--uplink cannot be read", cause=str(error), fix="give a number with its unit") from None


def _live(options: PoolOptions) -> LiveRun | None:
    if options.coordinator and options.from_run is not None:
        raise ConfigError("--coordinator and --from-run cannot be used together", fix="leave out one of them")
    if options.coordinator:
        return fetch_live(options.coordinator, options.ca_file)
    if options.from_run is not None:
        return recorded(options.from_run)
    return None


def _hardware(name: str) -> str:
    found = gpu_named(name)
    return found.name if found is not None else name.lower()


def fetch_live(url: str, ca_file: Path | None) -> LiveRun:
    """Fetch demand and workers from a coordinator over its HTTP API.

    Raises:
        RollcastError: see coordinator_api; MalformedMessage: it is not a coordinator of this version.
    """
    from rollcast.cli.coordinator_api import Target, fetch_sync  # imports aiohttp, which is slow and needed only here

    coordinator = Target(THIS_RUN.run_folder, url, ca_file)
    status, broadcast = fetch_sync(coordinator, "/api/v1/status"), fetch_sync(coordinator, "/api/v1/broadcast")
    steps = fetch_sync(coordinator, "/api/v1/steps")
    try:
        return live_run(status, broadcast, steps)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedMessage(
            "the answer is not a run's status", cause=repr(error), fix="check the address, and upgrade"
        ) from None


def recorded(run_folder: Path) -> LiveRun:
    """Calibrate the records of a run.

    Raises:
        RunFolderError: the run has no records, or too few.
    """
    from capacity.reports.calibrated_pool import calibrated_run
    from rollcast.cli.capacity.calibrate import calibration_of

    return calibrated_run(calibration_of(run_folder), run_folder.name)
