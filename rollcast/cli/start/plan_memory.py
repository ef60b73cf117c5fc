"""`rollcast plan-memory CONFIG`: estimate memory and disk of learner and peers, and which hardware fits them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rich.console import Console
from rich.table import Table

from rollcast.cli.files import guess_role, load
from rollcast.cli.options import Json, Settings
from rollcast.policy.config import ModelConfig, adapted
from rollcast.policy.lora import adapter_shapes
from rollcast.policy.shapes import active_parameter_count, parameter_count
from rollcast.policy.sizing.disk import LearnerRetention, StoreRetention, learner_disk, store_disk, supervised_disk
from rollcast.policy.sizing.fitting import LearnerFit, PeerFit, learner_fits, peer_fits
from rollcast.policy.sizing.hardware import GIB
from rollcast.policy.sizing.memory import (
    Bytes,
    Estimate,
    LearnerShape,
    PeerShape,
    learner_memory,
    learner_states,
    peer_memory,
    store_memory,
)
from rollcast.runtime.errors import ConfigError

if TYPE_CHECKING:
    from learner.config import LearnerConfig
    from learner.supervised.config import SftConfig
    from rollcast.cli.up_config import UpConfig

#: Tokens of a tokenizer that the coordinator builds from a task's wording at the start: whole pieces and single
#: characters. That of configs/local.toml has fewer than 20; 256 cover any Latin text, and cost less than a megabyte.
_SMALL_VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The estimates and the fitting hardware of one configuration."""

    model: ModelConfig
    learner: Estimate
    peer: Estimate | None  # None: supervised training has no peers
    learner_fits: list[LearnerFit]
    peer_fits: list[PeerFit]
    devices: int  # of the configured mesh
    hosts: int  # of these devices
    rollouts: int  # that a peer generates at once, as configured
    disks: Mapping[str, Bytes]  # bytes by component of learner, origin and each peer
    origin_host: Bytes = field(default_factory=dict)  # memory of the origin's host by component; it has no device
    learner_states: Bytes = field(default_factory=dict)  # states in the memory of its first host, where they fit
    trainer: str = "learner"  # what the learner is called: "sft" for supervised training
    vocabulary_assumed: int = 0  # tokens assumed for a tokenizer that is built at the start; 0: the size is known


def plan_memory(
    config: Path,
    /,
    *,
    attention: Literal["fused", "plain"] = "fused",
    setting: Settings = (),
    json_output: Json = False,
) -> int:
    """Print memory and disk of learner and peer by component, and the hardware that fits.

    Parameters
    ----------
    config
        Configuration file (TOML) of `rollcast up`, of `rollcast sft`, or of a learner, for which the coordinator's
        default lengths of rollouts are assumed.
    attention
        fused: the attention scores are never materialised. plain: they are, as for short rows without a fused kernel.
    setting
        Override one setting of the file, as section.key=value. May be repeated.
    json_output
        Print one JSON object.
    """
    with Console(stderr=True).status("reading the model and comparing hardware"):
        plan = plan_of(config, setting, fused=attention == "fused")
    if json_output:
        print(json.dumps(as_json(plan)))
    else:
        _show(plan)
    return 0


def plan_of(path: Path, settings: tuple[str, ...] = (), *, fused: bool = True) -> MemoryPlan:
    """Return the plan of a configuration file.

    Raises:
        ConfigError: the file is for neither `rollcast up`, `rollcast sft` nor a learner, or see plan_of_up.
        ModelError: the model in learner.init_from cannot be read.
    """
    if guess_role(path) == "sft":
        return _supervised_plan(cast("SftConfig", load(path, "sft", settings)), fused=fused)
    return plan_of_up(_whole(path, settings), fused=fused)


def plan_of_up(up: UpConfig, *, fused: bool = True) -> MemoryPlan:
    """Return the plan of a configuration of `rollcast up`.

    Raises:
        ConfigError: the vocabulary's size is not known, and the run takes a published tokenizer.
        ModelError: the model in learner.init_from cannot be read.
    """
    learner, sampling = up.learner, up.coordinator.sampling
    row_tokens = sampling.prompt_tokens_max + sampling.new_tokens_max
    assumed = _assumed_vocabulary(up)
    model = _model(learner, assumed)
    shape = learner_shape(learner, row_tokens, fused=fused)
    engine = up.peer.engine
    peer_shape = PeerShape(
        engine.concurrent_rollouts,
        row_tokens,
        engine.cache_tokens,
        up.peer.spool_bytes_max,
        engine.versions_on_device_min,
        1 if engine.devices == "all" else engine.devices,
        up.peer.states_in_memory,
    )
    return MemoryPlan(
        model,
        learner_memory(model, shape),
        peer_memory(model, peer_shape),
        learner_fits(model, shape),
        peer_fits(model, peer_shape),
        shape.devices,
        shape.processes,
        engine.concurrent_rollouts,
        _disks(up, model, shape),
        store_memory(model, up.origin.states_in_memory),
        _learner_states(up, model),
        vocabulary_assumed=assumed,
    )


def _supervised_plan(sft: SftConfig, *, fused: bool) -> MemoryPlan:
    learner = sft.learner()
    is_known = learner.init_from is not None or learner.model.vocabulary_size or sft.tokenizer is not None
    assumed = 0 if is_known else _SMALL_VOCABULARY
    model = _model(learner, assumed, setting="model")
    shape = replace(learner_shape(learner, sft.row_tokens, fused=fused), recomputes=False, publishes=False)
    disk = supervised_disk(model, shape, sft.checkpoint.keep, exports=sft.export is not None)
    estimate, fits = learner_memory(model, shape), learner_fits(model, shape)
    return MemoryPlan(
        *(model, estimate, None, fits, [], shape.devices, shape.processes, 0, {"sft": disk}),
        trainer="sft",
        vocabulary_assumed=assumed,
    )


def learner_shape(learner: LearnerConfig, row_tokens: int, *, fused: bool = True) -> LearnerShape:
    """Return the settings of a learner that determine its memory.

    Args:
        row_tokens: the longest prompt and completion.
        fused: whether the attention kernel never materialises the scores of whole rows.
    """
    optimiser, mesh, objective = learner.optimiser, learner.mesh, learner.objective
    return LearnerShape(
        row_tokens=max(row_tokens, learner.packed_row_tokens),
        micro_batch_tokens=optimiser.micro_batch_tokens,
        state_dtype=optimiser.state_dtype,
        offload=optimiser.offload,
        optimiser=optimiser.name,
        remat=learner.remat == "blocks",
        reference=objective.kl not in (None, "none"),
        critic=objective.advantage == "critic",
        recomputes=learner.behaviour == "recompute" or learner.audited_rollouts > 0,
        data=mesh.data,
        fsdp=mesh.fsdp,
        tensor=mesh.tensor,
        fused_attention=fused,
        processes=max(1, learner.distributed.processes),  # 0 leaves the number to a launcher
        warm_start=learner.warm_start.steps_max > 0,
        teacher=_teacher(learner),
    )


def _disks(up: UpConfig, model: ModelConfig, shape: LearnerShape) -> dict[str, Bytes]:
    publish, staleness = up.learner.publish, up.coordinator.run.age_max
    kept, checkpoints = publish.versions_kept(staleness), up.learner.checkpoint.keep
    retention = LearnerRetention(kept, checkpoints, staleness, _keeps_states(up))
    found = {"learner": learner_disk(model, shape, retention)}
    for name, store in (("origin", up.origin.store), ("peer", up.peer.store)):
        found[name] = store_disk(model, StoreRetention(store.keep_versions, store.keep_deltas, store.keep_bytes))
    return found


def _learner_states(up: UpConfig, model: ModelConfig) -> Bytes:
    if not _keeps_states(up):
        return {}
    return learner_states(model, up.coordinator.run.age_max + 2, squashes=up.learner.publish.squash_versions > 1)


def _keeps_states(up: UpConfig) -> bool:
    return up.learner.publish.keeps_states_in_memory and not up.learner.distributed.shared_run_folder


def as_json(plan: MemoryPlan) -> dict[str, Any]:
    """Return the plan as plain values: sizes in bytes, hardware by name."""
    return {
        "parameters": parameter_count(plan.model),
        "active_parameters": active_parameter_count(plan.model),
        "adapter_parameters": _adapter_parameters(plan.model),
        "vocabulary_assumed": plan.vocabulary_assumed or None,
        plan.trainer: _estimate_json(plan.learner)
        | {"host_states_where_they_fit": dict(plan.learner_states), "devices": plan.devices, "hosts": plan.hosts},
        **({} if plan.peer is None else {"peer": _estimate_json(plan.peer) | {"concurrent_rollouts": plan.rollouts}}),
        **({} if plan.peer is None else {"origin": {"host": dict(plan.origin_host)}}),
        f"{plan.trainer}_fits": {
            fit.hardware.name: {"as_configured": fit.as_configured, "fsdp": fit.fsdp, "peak_bytes": fit.peak_bytes}
            for fit in plan.learner_fits
        },
        "peer_fits": {
            fit.hardware.name: {
                "as_configured": fit.as_configured,
                "rollouts_max": fit.rollouts_max,
                "devices": fit.devices,
            }
            for fit in plan.peer_fits
        },
        "disk": {name: dict(parts) for name, parts in plan.disks.items()},
    }


def summary(plan: MemoryPlan) -> list[str]:
    """Return the fitting hardware in lines short enough for a configuration file to quote."""
    mesh = f"on the configured {plan.devices} device{'s' if plan.devices > 1 else ''}"
    learner = [fit.hardware.name for fit in plan.learner_fits if fit.as_configured]
    spread: dict[int, list[str]] = {}
    for fit in plan.learner_fits:
        if not fit.as_configured and fit.fsdp:
            spread.setdefault(fit.fsdp, []).append(fit.hardware.name)
    lines = [f"{plan.trainer}, {_size(plan.learner.peak)} {mesh}: {', '.join(learner) or 'none'}"]
    lines += [f"{plan.trainer} with mesh.fsdp = {fsdp}: {', '.join(names)}" for fsdp, names in sorted(spread.items())]
    each = f" on each of {plan.hosts} hosts" if plan.hosts > 1 else ""
    host = f"host memory: {plan.trainer} {_size(plan.learner.host_peak)}{each}"
    if plan.learner_states:
        host += f" and up to {_size(sum(plan.learner_states.values()))} of published states where they fit"
    if plan.peer is not None:
        lines += _peer_lines(plan, plan.peer)
        host += f", origin {_size(sum(plan.origin_host.values()))}, peer {_size(plan.peer.host_peak)}"
    sizes = ", ".join(f"{name} {_size(sum(parts.values()))}" for name, parts in plan.disks.items())
    return [*lines, host, f"disk: {sizes}"]


def _peer_lines(plan: MemoryPlan, peer: Estimate) -> list[str]:
    peers = [fit.hardware.name for fit in plan.peer_fits if fit.as_configured]
    lines = [f"peer, {_size(peer.peak)} with {plan.rollouts} rollouts: {', '.join(peers) or 'none'}"]
    fewer = [
        f"{fit.hardware.name} ({fit.rollouts_max})"
        for fit in plan.peer_fits
        if not fit.as_configured and fit.rollouts_max
    ]
    if fewer:
        lines.append(f"peer with fewer rollouts: {', '.join(fewer)}")
    divided: dict[int, list[str]] = {}
    for one in plan.peer_fits:
        if not one.as_configured and one.devices > 1:
            divided.setdefault(one.devices, []).append(one.hardware.name)
    return lines + [f"peer over {devices} devices: {', '.join(names)}" for devices, names in sorted(divided.items())]


def _whole(path: Path, settings: tuple[str, ...]) -> Any:
    from rollcast.cli.up_config import UpConfig

    role = guess_role(path)
    if role == "up":
        return load(path, "up", settings)
    if role == "learner":
        return UpConfig.model_validate({"learner": load(path, "learner", settings)})
    raise ConfigError(
        f"{path} is the configuration of a {role}",
        cause="only those of `rollcast up`, of `rollcast sft` and of the learner have a model",
        fix="give one of these",
    )


def _assumed_vocabulary(up: UpConfig) -> int:
    """Return the tokens to assume where the run builds its tokenizer at the start; 0: the size is configured."""
    learner = up.learner
    is_known = learner.init_from is not None or learner.model.vocabulary_size or up.coordinator.tokenizer.folder
    return 0 if is_known else _SMALL_VOCABULARY


def _model(learner: Any, assumed_vocabulary: int = 0, setting: str = "learner.model") -> ModelConfig:
    from rollcast.policy.hub.config import model_config

    model = cast(ModelConfig, learner.model)
    if assumed_vocabulary:
        model = model.model_copy(update={"vocabulary_size": assumed_vocabulary})
    if learner.init_from is not None and learner.init_from.is_dir():
        model = model_config(learner.init_from, precision=model.precision, carrier=model.carrier)
    if not model.vocabulary_size:
        raise ConfigError(
            "the size of the vocabulary is not known",
            cause="it comes from the published tokenizer once the run starts",
            fix=f"set {setting}.vocabulary_size or {setting}.preset",
        )
    return adapted(model, learner.lora)


def _teacher(learner: Any) -> ModelConfig | None:
    """Return the model that the learner holds besides its own; None if there is none, or its folder is elsewhere."""
    if learner.teacher is None or learner.teacher.folder is None or not learner.teacher.folder.is_dir():
        return None
    from learner.training.teacher import teacher_model

    return teacher_model(learner.teacher.folder, learner)


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    return {
        "resident": estimate.resident,
        "phases": {name: dict(parts) for name, parts in estimate.phases.items()},
        "peak_bytes": estimate.peak,
        "host": estimate.host,
    }


def _show(plan: MemoryPlan) -> None:
    console = Console()
    active = f", {_count(active_parameter_count(plan.model))} active" if plan.model.experts else ""
    count = f"{_count(parameter_count(plan.model))} parameters{active}"
    if plan.model.lora is not None:
        count += f", {_adapter_parameters(plan.model) / 1e6:.1f} million in adapters of rank {plan.model.lora.rank}"
    form = ", base in NVFP4" if plan.model.has_packed_base else ""
    console.print(f"{count}, precision {plan.model.precision}{form}")
    if plan.vocabulary_assumed:
        of_sft = plan.trainer == "sft"
        built = "sft builds from the file" if of_sft else "the coordinator builds from the task's wording"
        section = "" if of_sft else "learner."
        console.print(
            f"assumed: {plan.vocabulary_assumed} tokens, more than the tokenizer has that {built}; for a published one"
            f" set {section}init_from, or {section}model.vocabulary_size",
            soft_wrap=True,
        )
    console.print(_table(f"{plan.trainer}, each device", plan.learner, plan.learner_states))
    if plan.peer is not None:
        console.print(_table("peer", plan.peer))
        console.print(_table("origin", Estimate({}, {}, plan.origin_host)))
    console.print(_disk_table(plan.disks))
    for line in summary(plan):
        console.print(line, soft_wrap=True)


def _adapter_parameters(model: ModelConfig) -> int:
    return sum(map(math.prod, adapter_shapes(model).values()))


def _disk_table(disks: Mapping[str, Bytes]) -> Table:
    table = Table("where", "what", "GiB", title="disk")
    for name, parts in disks.items():
        for what, size in parts.items():
            table.add_row(name, what, _gib(size))
    return table


def _table(title: str, estimate: Estimate, where_they_fit: Bytes | None = None) -> Table:
    table = Table("when", "what", "GiB", title=title)

    def add(when: str, parts: Mapping[str, int] | Bytes) -> None:
        for name, size in parts.items():
            table.add_row(when, name, _gib(size))

    add("always", estimate.resident)
    for phase, parts in estimate.phases.items():
        add(phase, parts)
    if estimate.peak:
        table.add_row("peak", "", _gib(estimate.peak))
    add("host", estimate.host)
    add("host, if it fits", where_they_fit or {})
    return table


def _gib(size_bytes: int) -> str:
    """Return a size for a column of GiB, in which what is small does not look like nothing."""
    return "< 0.01" if 0 < size_bytes < GIB / 200 else f"{size_bytes / GIB:.2f}"


def _size(size_bytes: int) -> str:
    """Return a size with its unit: "25 GiB", "61 MiB"."""
    return f"{size_bytes / GIB:.0f} GiB" if size_bytes >= GIB / 2 else f"{size_bytes / 2**20:.0f} MiB"


def _count(parameters: int) -> str:
    """Return a number of parameters in words: "4.02 billion", "0.30 million"."""
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.2f} million"
