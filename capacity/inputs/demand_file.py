"""Define the TOML file that states what a run needs of its workers: sections [demand], [lengths] and [engine]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from capacity.model.roofline import Weights
from capacity.model.topologies import Shape, Topology
from rollcast.runtime.config import ConfigModel
from rollcast.wire.version_swap import AtVersionSwap

Encoding = Literal["keyframe", "delta"]

MODEL_MEASURED = "measured"
_TOPOLOGY = re.compile(r"stripes=([1-9]\d{0,3})|tree|chain|star")

#: Another system's name for S -> that system. All of these count learner steps; docs/capacity.md has the dictionary.
STALENESS_SYNONYMS: Mapping[str, str] = {
    "max_off_policy_steps": "prime-rl",
    "async_level": "INTELLECT-2",
    "max_off_policy_threshold": "verl",
    "max_head_offpolicyness": "AReaL",
    "max_staleness_steps": "SkyRL",
    "max_trajectory_age_steps": "NeMo-RL",
    "max_staleness_versions": "NeMo-RL",
    "max_policy_age": "torchforge",
    "off_policy_steps": "Tunix",
    "max_rollout_step_delay": "Marin",
    "max_steps_off_policy": "Tinker cookbook",
}
_NOT_STEPS: Mapping[str, str] = {
    "staleness_threshold": "verl fully_async counts a share of the batch",
    "max_batches_offpolicy": "Atropos counts queued batches",
    "async_queue_size": "OpenRLHF counts queued batches",
    "max_rollout_timestamp_delay": "Marin's is in seconds",
}


class DemandSection(ConfigModel):
    """The learner, the staleness limit, and how versions travel."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str
    """The model that generates: a name of the catalogue, for example qwen3-8b; `rollcast capacity offers models` lists
    them. `measured`: every worker has a measured speed, and update_bytes is given."""
    rollouts_per_step: int = Field(ge=1)
    """R: rollouts in one batch."""
    t_train_s: float | None = Field(None, gt=0)
    """T_train: seconds of one learner step, waiting not counted; none: from the step times of the catalogue, for the
    learner's hardware and the mean tokens of R rollouts with their prompts."""
    learner_hardware: str = ""
    """GPUs of the learner, for example h100-sxm, from which T_train and its price follow where they are not given;
    none: those of the catalogue's step times that train a token for the least money."""
    staleness_limit: int = Field(ge=1)
    """S: hard limit on a rollout's age at batch formation, in learner steps."""
    publish_every_steps: int = Field(1, ge=1)
    """kappa: learner steps between two published versions."""
    samples_per_group: int = Field(8, ge=1)
    """G: rollouts of one prompt. A group is trained when its last rollout is scored, and is as late as that one."""
    at_version_swap: AtVersionSwap = "continue"
    """What rollouts in flight do at a new version, as the coordinator's lease.at_version_swap."""
    lead_margin_steps: float = Field(0.5, ge=0)
    """Prompt groups kept open beyond one batch and the work in flight, in batches: the coordinator's lease setting."""
    prefetch_batches: float = Field(2.0, ge=1)
    """Most generation batches whose slots a worker may hold: the coordinator's lease setting."""
    prefetch_s: float = Field(3.0, gt=0)
    """Seconds of work that a worker may hold besides the running batch: the coordinator's lease setting."""
    reconnect_grace_s: float = Field(3.0, ge=0)
    """Seconds after which the slots of a disconnected worker go to another one: the coordinator's lease setting."""
    t_publish_s: float | None = Field(None, ge=0)
    """Seconds from the end of a learner step to the announcement of its version; none: as long as the learner's and the
    origin's links of learner_upload_mbit_per_second take to move update_bytes one after the other."""
    t_turn_s: float = Field(0.8, ge=0)
    """Seconds from a rollout's end until the worker holds another lease: the rest of a slice, and a round trip."""
    encoding: Encoding = "keyframe"
    """Encoding that workers receive: the whole version, or the difference from an earlier one."""
    adapter_rank: int | None = Field(None, ge=1)
    """Rank of the adapters that the run trains on every linear layer: a version is these alone, whatever the encoding
    unless delta_share is given, because nearly all of their values change. A worker receives the model once, when it
    joins. None: all weights are trained."""
    adapter_noise: bool = False
    """Whether the learner's lora.noise_start is above 0: each version then has scales of norms beside its adapters."""
    learning_rate: float = Field(1e-6, gt=0)
    """Highest learning rate of Adam: it decides how large a delta is."""
    delta_share: float | None = Field(None, gt=0, le=1)
    """Bytes of a delta / bytes of a keyframe, if it was measured; none: estimated from the learning rate."""
    update_bytes: float | None = Field(None, gt=0)
    """M: bytes of what each worker receives for one version; none: from the model and the encoding."""
    learner_upload_mbit_per_second: float = Field(gt=0)
    """U0: uplink of the origin, or of what serves the first copies."""
    learner_egress_usd_per_gb: float = Field(0.0, ge=0)
    """Price of what the origin sends; 1 GB = 1e9 bytes."""
    topology: str = "stripes=8"
    """Shape in which copies travel: stripes=N, tree, chain or star."""
    pauses_while_receiving: bool = False
    """Whether workers stop generating while they receive; Rollcast's peers do not."""
    t_swap_s: float = Field(1.0, ge=0)
    """Seconds for which a worker generates nothing while it swaps to a new version."""
    t_load_s: float = Field(0.0, ge=0)
    """Seconds from the verified copy to its use; the worker generates meanwhile."""
    t_score_s: float = Field(0.0, ge=0)
    """Seconds from a rollout's end to its score."""
    headroom: float | None = Field(None, ge=1)
    """phi: least rate bought / rate needed; none: whatever makes the whole bill least, learner included."""
    share_without_a_region: float = Field(0.0, ge=0, le=1)
    """Share of the needed rate that must be left when any one region is lost; 0: not asked for."""
    chance_z: float = Field(0.0, ge=0, le=6)
    """The rate must hold at so many standard deviations of losses (2.33: 99 %); 0: not asked for."""
    region_correlation: float = Field(0.59, ge=0, le=1)
    """Correlation of the losses of two workers of one region, for chance_z; 0.59 is the largest that was recorded
    between spot zones of one region."""
    usd_per_hour_max: float | None = Field(None, gt=0)
    """Budget for workers and their traffic; none: no limit."""
    learner_usd_per_hour: float | None = Field(None, ge=0)
    """Price of the learner's machine; none: the catalogue's for its hardware, 0 where the model is measured."""
    coordinator_usd_per_hour: float | None = Field(None, ge=0)
    """Price of the machine of the coordinator and the origin; none: the catalogue's for 8 virtual CPUs."""
    storage_usd_per_hour: float | None = Field(None, ge=0)
    """Price of the storage of checkpoints and versions; none: of the catalogue, by the model's size."""

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, values: Any) -> Any:
        """Accept S under another system's name where that name counts learner steps too, and reject it otherwise."""
        if not isinstance(values, dict):
            return values
        for name, system in STALENESS_SYNONYMS.items():
            if name in values and "staleness_limit" in values:
                raise ValueError(f"{name} ({system}) and staleness_limit are the same: give one")
        for name, why in _NOT_STEPS.items():
            if name in values:
                raise ValueError(f"{name} does not count learner steps ({why}): give staleness_limit")
        return {("staleness_limit" if name in STALENESS_SYNONYMS else name): value for name, value in values.items()}

    @field_validator("topology")
    @classmethod
    def _known_topology(cls, value: str) -> str:
        topology_named(value)
        return value

    @model_validator(mode="after")
    def _size_is_known(self) -> DemandSection:
        if self.model == MODEL_MEASURED and self.update_bytes is None:
            raise ValueError('model = "measured" needs update_bytes')
        return self


class LengthsSection(ConfigModel):
    """Lengths of rollouts; not used for workers whose rollouts a second and p90 were measured."""

    model_config = ConfigDict(allow_inf_nan=False)

    distribution: str = "deepseek-r1"
    """A distribution of the catalogue (`rollcast capacity offers lengths` lists them), or a CSV file with
    low,high,weight in tokens."""
    tokens_max: int = Field(8192, ge=1)
    """Most generated tokens of a rollout; longer ones are cut there."""
    prompt_tokens: float = Field(512.0, ge=0)
    """Mean length of a prompt."""


class EngineSection(ConfigModel):
    """Estimate of the speed of hardware without a measurement."""

    efficiency: float | None = Field(None, gt=0, le=10, allow_inf_nan=False)
    """Speed of the engine / that of vLLM as fitted, from one timed decode; none: the catalogue's."""
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    """Rollouts in flight on one accelerator, among which the planner chooses."""
    tensor_parallel: int | None = Field(None, ge=1, le=72)
    """Accelerators that share one copy of the model; none: one each where the model fits, else all of the machine."""
    weights: Weights = "bf16"
    """Precision of the weights that workers generate with: bf16, fp8 or int4; versions are sent as the demand says."""


class DemandFile(ConfigModel):
    """The demand file: all of its sections."""

    demand: DemandSection
    lengths: LengthsSection = LengthsSection()
    engine: EngineSection = EngineSection()


def topology_named(text: str) -> Topology:
    """Parse a topology: ``stripes=N`` with N from 1 to 9999, ``tree``, ``chain`` or ``star``.

    Raises:
        ValueError: it is none of these.
    """
    found = _TOPOLOGY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"no topology is called {text!r}: stripes=N, tree, chain or star")
    if found[1]:
        return Topology("stripes", int(found[1]))
    shapes: dict[str, Shape] = {"tree": "tree", "chain": "chain", "star": "star"}
    return Topology(shapes[found[0]])
