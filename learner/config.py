"""Configuration of the learner process."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from learner.objective.config import ObjectiveConfig
from rollcast.policy.config import ModelConfig
from rollcast.runtime.config import ConfigModel
from rollcast.wire.limits import CHUNK_SIZE_BYTES_MIN


class WarmStartConfig(ConfigModel):
    """Short supervised start, so that reward is not zero at the start; reported apart from RL."""

    learning_rate: float = Field(0.02, gt=0.0)
    """Stage 1: Muon for matrices, a tenth of it Adam for the rest; falls linearly to a tenth over steps_max."""
    batch_size: int = Field(64, ge=1)
    """Examples a step."""
    examples: int = Field(16384, ge=1)
    """Examples fetched for each stage; steps draw from them with repetition."""
    accuracy_gate: float = Field(0.93, ge=0.0, le=1.0)
    """Stage 1 (correct answers) ends at this held-out accuracy."""
    steps_max: int = Field(800, ge=0)
    """Stage 1 ends after this many steps at the latest; 0: no warm start."""
    check_every_steps: int = Field(100, ge=1)
    """Steps between two looks at held-out accuracy in stage 1."""
    flawed_steps: int = Field(150, ge=0)
    """Stage 2: steps on the task's flawed teacher, so that RL has something to repair; 0: none."""
    flawed_learning_rate: float = Field(1e-3, gt=0.0)
    """Stage 2: Adam, constant."""


class OptimiserConfig(ConfigModel):
    """Adam for the RL steps."""

    learning_rate: float = Field(5e-4, gt=0.0)
    """Constant."""
    b1: float = Field(0.9, ge=0.0, lt=1.0)
    """First moment's decay."""
    b2: float = Field(0.95, ge=0.0, lt=1.0)
    """Second moment's decay."""
    max_grad_norm: float = Field(1.0, gt=0.0)
    """Gradients are scaled down to this global norm."""
    micro_batch_tokens: int = Field(2048, ge=1)
    """Tokens, padding included, whose activations are in memory at a time; at least one row a device is. Gradients of a
    batch's parts are added up."""
    state_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """Adam's two moments: 8, 4 or about 2 bytes for each parameter."""
    offload: bool = False
    """Keep the moments in the host's memory; each step then moves them to the device and back."""


class MeshConfig(ConfigModel):
    """How many devices do what; the product is the number of devices used."""

    data: int = Field(1, ge=1)
    """Copies of the parameters, each with its own rows of a batch."""
    fsdp: int = Field(1, ge=1)
    """Devices that share parameters and optimiser states, each with its own rows of a batch."""
    tensor: int = Field(1, ge=1)
    """Devices that share each layer's heads and inner size, and the vocabulary."""


class DistributedConfig(ConfigModel):
    """A learner of several processes, one on each host, each started with the same file but for process_id."""

    processes: int = Field(1, ge=1)
    """Processes; with several, each is supervised, and started again when one is lost."""
    process_id: int = Field(0, ge=0)
    """Of this process; 0 leads: it alone talks to coordinator and origin and writes the run folder."""
    coordinator_address: str = ""
    """host:port under which process 0 is reached by the others, on a private network: the service has no protection."""
    join_timeout_s: float = Field(300.0, gt=0.0)
    """Seconds for all processes to meet, and for each to take part in what the leader begins."""
    lost_after_s: float = Field(30.0, ge=2.0)
    """Seconds without a sign of life after which a process counts as lost."""
    restarts_per_hour: int = Field(20, ge=0)
    """Starts after losses within an hour, before the supervisor gives up."""
    stop_timeout_s: float = Field(120.0, gt=0.0)
    """Seconds to stop in good order, with a checkpoint, before a process is killed."""

    @model_validator(mode="after")
    def _complete(self) -> DistributedConfig:
        if self.process_id >= self.processes:
            raise ValueError(f"process_id {self.process_id} is not below processes = {self.processes}")
        if self.processes > 1 and not self.coordinator_address:
            raise ValueError("several processes need coordinator_address, host:port of process 0")
        return self


class CheckpointConfig(ConfigModel):
    """Checkpoints of parameters, optimiser and step."""

    every_steps: int = Field(50, ge=1)
    """Learner steps between two checkpoints, at most; the last step is always saved."""
    every_s: float = Field(900.0, gt=0.0)
    """Seconds of training between two, at most: what a killed learner has to train again."""
    keep: int = Field(2, ge=2)
    """Newest checkpoints kept; two at least, because a power loss may tear the newest."""


class ResumeConfig(ConfigModel):
    """What happens when training from a checkpoint again."""

    on_mismatch: Literal["epoch", "stop"] = "epoch"
    """Where it gives other weights than were published: go on in a new epoch, or stop with RC601."""


class PublishConfig(ConfigModel):
    """How versions are encoded and cut into chunks."""

    chunk_size_bytes: int = Field(0, ge=0, le=1048576)
    """Unit of hashing, relay and resume, at least 1024; 0: from 8 KiB to 1 MiB, as suits the size of each encoding."""
    deltas: bool = True
    """Publish the difference from the version before too, where it is shorter than half of the version."""
    squash_versions: int = Field(8, ge=0, le=64)
    """A second delta starts from this many publications before, for peers that were away; below 2: none."""
    timeout_s: float = Field(60.0, gt=0.0)
    """Deadline for the origin's durable acknowledgement of one version."""
    keep_versions: int = Field(16, ge=2)
    """Own copies kept for behaviour log-probabilities and deltas; at least S + 2 and squash_versions are."""

    @field_validator("chunk_size_bytes")
    @classmethod
    def _large_enough(cls, value: int) -> int:
        if 0 < value < CHUNK_SIZE_BYTES_MIN:
            raise ValueError(f"at least {CHUNK_SIZE_BYTES_MIN}, or 0")
        return value


class EvaluationConfig(ConfigModel):
    """Evaluations beside training, of every evaluation set that the coordinator has."""

    every_steps: int = Field(0, ge=0)
    """Learner steps between two, and after the last step; 0: only before and after RL, once a held-out problem."""
    samples: int = Field(4, ge=1, le=1024)
    """Completions of each problem."""
    pass_at: list[int] = Field(default_factory=lambda: [1, 4], min_length=1, max_length=8)
    """pass@k is estimated for each of these k, none above samples."""

    @model_validator(mode="after")
    def _enough_samples(self) -> EvaluationConfig:
        if not all(1 <= k <= self.samples for k in self.pass_at):
            raise ValueError(f"pass_at = {self.pass_at}: each must be from 1 to samples = {self.samples}")
        return self


class MismatchConfig(ConfigModel):
    """When reported log-probabilities are so far off that people should know."""

    kl_k3_max: float = Field(0.02, gt=0.0)
    """k3 estimate of KL(engine, learner), nats a token. bfloat16 engines of one model differ by less than 0.001."""
    ratio_mean_off_max: float = Field(0.05, gt=0.0)
    """Distance of the mean ratio learner / engine from 1."""
    outside_share_max: float = Field(0.05, gt=0.0, le=1.0)
    """Share of tokens whose ratio is outside [0.8, 1.28]."""


class SamplingCheckConfig(ConfigModel):
    """When a peer's tokens are so much likelier than chance allows that people should know."""

    lacking_share_max: float = Field(0.1, gt=0.0, lt=1.0)
    """Share of the randomness that its tokens should have and lack. Greedy sampling lacks most of it."""
    sigmas: float = Field(5.0, gt=0.0)
    """How improbable it must be, in standard errors."""
    keep: float = Field(0.95, ge=0.0, lt=1.0)
    """Weight that earlier batches of a peer keep with each new one: 0.95 remembers some 20."""


class LearnerConfig(ConfigModel):
    """The learner: trains, checkpoints, publishes signed versions."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Initial parameters."""
    init_from: Path | None = None
    """A published model's folder (config.json, safetensors, tokenizer.json) to start from; none: fresh parameters."""
    model: ModelConfig = ModelConfig()
    """Architecture; the vocabulary size comes from the run's tokenizer. With init_from only precision and carrier are
    taken from here."""
    warm_start: WarmStartConfig = WarmStartConfig()
    """Supervised start."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """RL optimiser."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """RL objective."""
    mismatch: MismatchConfig = MismatchConfig()
    """Alarms about log-probabilities that peers report."""
    sampling_check: SamplingCheckConfig = SamplingCheckConfig()
    """What is said of peers that do not draw at random."""
    mesh: MeshConfig = MeshConfig()
    """Devices."""
    remat: Literal["none", "blocks"] = "none"
    """blocks: keep only what enters each transformer block, and compute the rest again in the backward pass."""
    distributed: DistributedConfig = DistributedConfig()
    """Processes."""
    packed_row_tokens: int = Field(0, ge=0)
    """Several rollouts share a row of this many tokens, at least the longest rollout; 0: each has its own row."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    resume: ResumeConfig = ResumeConfig()
    """Resuming."""
    publish: PublishConfig = PublishConfig()
    """Publishing."""
    evaluation_problems: int = Field(512, ge=1)
    """Problems of each set that is evaluated, at most."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluations while training goes on."""
    identity_file: Path = Path("learner.key")
    """Ed25519 key that signs versions; made by `rollcast identity FILE`."""
    invite: SecretStr = SecretStr("")
    """Learner invite string."""
    invite_file: Path | None = None
    """File that holds the invite; waited for at start."""
    run_folder: Path = Path("runs/learner")
    """Checkpoints and versions."""
    compilation_cache: Path | None = None
    """Folder of jax's persistent compilation cache; none: no cache."""
    join_timeout_s: float = Field(60.0, gt=0.0)
    """Seconds to reach the coordinator and the origin at start."""
    batch_timeout_s: float = Field(600.0, gt=0.0)
    """Seconds to wait for a batch before giving up with RC201."""
    reconnect_timeout_s: float = Field(120.0, gt=0.0)
    """Seconds to keep trying when the coordinator is away."""
