"""Define the configuration of the learner process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from learner.objective.config import ObjectiveConfig
from rollcast.policy.config import LoraConfig, ModelConfig, OptimiserName, StateDtype
from rollcast.runtime.config import ConfigModel
from rollcast.runtime.errors import ConfigError
from rollcast.wire.limits import CHUNK_SIZE_BYTES_MIN
from rollcast.wire.version_swap import AtVersionSwap

BehaviourSource = Literal["recompute", "reported"]


class WarmStartConfig(ConfigModel):
    """A short supervised warm start that makes the reward nonzero before RL begins; it is reported apart from RL."""

    learning_rate: float = Field(0.02, gt=0.0)
    """Stage 1: learning rate of Muon for matrices, and a tenth of it of Adam for all other parameters; both fall
    linearly to a tenth over steps_max."""
    batch_size: int = Field(64, ge=1)
    """Examples per step."""
    examples: int = Field(16384, ge=1)
    """Examples fetched for each stage; steps sample from them with replacement."""
    accuracy_gate: float = Field(0.93, ge=0.0, le=1.0)
    """Stage 1 (correct answers) ends at this held-out accuracy."""
    steps_max: int = Field(800, ge=0)
    """Stage 1 ends after this many steps at the latest; 0: no warm start, which is the default with init_from, because
    a published model can do the task already."""
    check_every_steps: int = Field(100, ge=1)
    """Steps between two measurements of held-out accuracy in stage 1."""
    flawed_steps: int = Field(150, ge=0)
    """Stage 2: steps on the task's flawed teacher, which leave errors for RL to repair; 0: no stage 2. Only built-in
    tasks have such a teacher (sums: `chain_sum`); without one there is no stage 2."""
    flawed_learning_rate: float = Field(1e-3, gt=0.0)
    """Stage 2: constant learning rate of Adam."""


class OptimiserConfig(ConfigModel):
    """The optimiser of the RL steps."""

    name: OptimiserName = "adamw"
    """"adamw": AdamW for every tensor. "muon": Muon for the kernels of the layers, which keeps one moment of them
    instead of two, and AdamW for all other tensors; the same learning rate and weight decay suit both."""
    learning_rate: float = Field(1e-6, gt=0.0)
    """Highest learning rate; constant over the run unless a schedule is set. The default is that of published recipes
    for models of 7 to 32 billion parameters (DeepSeekMath, 2402.03300, section 4.2; DAPO, 2503.14476, section 4.1).
    Small models that start from random parameters need a higher one."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up: constant, or falling to end_share by a line or half a cosine."""
    warmup_steps: int = Field(0, ge=0)
    """Learner steps over which the learning rate rises linearly to learning_rate."""
    decay_steps: int = Field(0, ge=0)
    """Learner steps, warm-up included, after which a falling learning rate has reached its end and stays there; most
    often the steps of the run. Required unless the schedule is "constant"."""
    end_share: float = Field(0.1, ge=0.0, le=1.0)
    """Share of learning_rate that is left at the end of a falling schedule."""
    weight_decay: float = Field(0.0, ge=0.0)
    """Share of each kernel, times the learning rate, that a step subtracts. Norms, biases, embeddings do not decay."""
    b1: float = Field(0.9, ge=0.0, lt=1.0)
    """Decay of AdamW's first moment."""
    b2: float = Field(0.95, ge=0.0, lt=1.0)
    """Decay of AdamW's second moment."""
    epsilon: float = Field(1e-8, gt=0.0)
    """Number added to what updates are divided by: AdamW's root of the second moment, Muon's norm of a matrix."""
    max_grad_norm: float = Field(1.0, gt=0.0)
    """Global norm to which larger gradients are scaled down."""
    micro_batch_tokens: int = Field(2048, ge=1)
    """Tokens, padding included, whose activations are in memory at a time; never less than one row per device.
    Gradients of a batch's micro-batches are summed."""
    state_dtype: StateDtype = "float32"
    """Type of the moments, of which AdamW has two: together 8, 4 or about 2 bytes per parameter."""
    offload: bool = False
    """Keep the moments in host memory; each step then moves them to the device and back."""

    @model_validator(mode="after")
    def _schedule_ends(self) -> OptimiserConfig:
        if self.schedule != "constant" and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f'schedule = "{self.schedule}" must fall after the warm-up: set decay_steps above warmup_steps = '
                f"{self.warmup_steps}, most often to the steps of the run"
            )
        return self


class MeshConfig(ConfigModel):
    """Size of each axis of the device mesh; their product is the number of devices used."""

    data: int = Field(1, ge=1)
    """Replicas of the parameters, each with its own rows of a batch (data parallelism)."""
    fsdp: int = Field(1, ge=1)
    """Devices over which parameters and optimiser state are sharded, each with its own rows of a batch."""
    tensor: int = Field(1, ge=1)
    """Devices over which each layer's heads and inner size, and the vocabulary, are split (tensor parallelism)."""


class DistributedConfig(ConfigModel):
    """A learner of several processes, one per host, all started with the same file. Slurm, Open MPI and TPU slices
    number them; otherwise processes, process_id and coordinator_address do."""

    processes: int = Field(0, ge=0)
    """Number of processes. Several are each supervised, and restarted when one of them is lost. 0: as many as the
    launcher started, and one without a launcher."""
    process_id: int = Field(0, ge=0)
    """Index of this process, if processes is set. Process 0 leads: it alone connects to coordinator and origin and
    writes the run folder."""
    shared_run_folder: bool = False
    """Whether every process sees run_folder under the same path, on a shared file system. Each then writes its own part
    of a version while training goes on. Otherwise process 0 gathers versions and writes them, and training waits."""
    coordinator_address: str = ""
    """Address of process 0 for the other processes, as host:port; empty: the launcher's choice. Use a private network:
    this service has no authentication."""
    join_timeout_s: float = Field(300.0, gt=0.0)
    """Seconds for all processes to connect, and for each to take up an operation that the leader starts."""
    operation_timeout_s: float = Field(1800.0, gt=0.0)
    """Seconds for one operation of all processes, such as a training step with its compilation, or the reading of a
    checkpoint. A process that takes longer ends, and all are restarted."""
    lost_after_s: float = Field(30.0, ge=2.0)
    """Seconds without a heartbeat after which a process counts as lost."""
    restarts_per_hour: int = Field(20, ge=0)
    """Restarts after losses within one hour before the supervisor gives up."""
    stop_timeout_s: float = Field(120.0, gt=0.0)
    """Seconds for an orderly stop, with a checkpoint, before a process is killed."""

    @model_validator(mode="after")
    def _complete(self) -> DistributedConfig:
        if self.process_id >= max(1, self.processes):
            raise ValueError(f"process_id {self.process_id} is not below processes = {self.processes}: set both")
        if self.processes > 1 and not self.coordinator_address:
            raise ValueError("several processes must reach process 0: set coordinator_address to its host:port")
        return self


class CheckpointConfig(ConfigModel):
    """Checkpoints of parameters, optimiser and step."""

    folder: str = ""
    """Folder of this run's checkpoints alone, as a path or a URL such as gs://bucket/run; empty: in run_folder. Several
    processes write their own parts, so all of them must see it. Object stores need a client of etils: gcsfs or s3fs."""
    every_steps: int = Field(50, ge=1)
    """Most learner steps between two checkpoints; the last step is always saved."""
    every_s: float = Field(900.0, gt=0.0)
    """Most seconds of training between two checkpoints: the training that a killed learner has to repeat."""
    keep: int = Field(2, ge=2)
    """Number of newest checkpoints kept; at least two, because a power loss may damage the newest."""


class ResumeConfig(ConfigModel):
    """Behaviour when training resumes from a checkpoint."""

    on_mismatch: Literal["epoch", "stop"] = "epoch"
    """Action if repeated steps give other weights than were published: continue in a new epoch, or stop with RC601."""


class PublishConfig(ConfigModel):
    """Encoding of versions and their division into chunks."""

    chunk_size_bytes: int = Field(0, ge=0, le=1048576)
    """Unit of hashing, relay and resume in bytes, at least 1024; 0: between 8 KiB and 1 MiB, chosen by the size of each
    encoding."""
    deltas: bool = True
    """Whether to publish the difference from the previous version too, where it is shorter than half of the version."""
    squash_versions: int = Field(8, ge=0, le=64)
    """Publish a second delta that starts this many publications earlier, for peers that missed some; below 2: none."""
    states_in_memory: bool = True
    """Whether states that follow from others by deltas are kept in memory, as many as fit, and not written to disk. A
    learner whose processes write versions into a run folder that they share writes all of them."""
    newest_in_memory_only: bool = False
    """Whether only the newest version's state is kept in memory. A step then needs memory for one state, because the
    version before gives its own back while the new one is written; older versions are made from the disk again when
    their rollouts are trained on, which costs a pass over the state for each."""
    timeout_s: float = Field(60.0, gt=0.0)
    """Seconds within which the origin must acknowledge one version as durable. One that answers that it cannot store
    it, for example because its disk is full, is waited for up to an hour."""
    keep_versions: int = Field(16, ge=2)
    """Versions that the learner keeps for behaviour log-probabilities and deltas; never fewer than S + 2 or
    squash_versions."""

    @property
    def keeps_states_in_memory(self) -> bool:
        """Return whether states stay in memory if one process writes them."""
        return self.states_in_memory and self.deltas

    def versions_kept(self, staleness_limit: int) -> int:
        """Return the number of versions that the learner keeps in a run with this staleness limit S."""
        return max(self.keep_versions, staleness_limit + 2, self.squash_versions)

    @field_validator("chunk_size_bytes")
    @classmethod
    def _large_enough(cls, value: int) -> int:
        if 0 < value < CHUNK_SIZE_BYTES_MIN:
            raise ValueError(f"{value} is too small: give at least {CHUNK_SIZE_BYTES_MIN}, or 0 to let it be chosen")
        return value


class EvaluationConfig(ConfigModel):
    """Evaluations during training, on every evaluation set that the coordinator has."""

    every_steps: int = Field(0, ge=0)
    """Learner steps between two evaluations; the last step is evaluated too. 0: evaluate only before and after RL, with
    one completion per held-out problem."""
    samples: int = Field(4, ge=1, le=1024)
    """Completions per problem."""
    deadline_s: float = Field(1800.0, ge=0.0)
    """Seconds for the peers to complete an evaluation, after which the learner samples it itself, as it also does where
    no peer can. 0: it always does."""
    pass_at: list[int] = Field(default_factory=lambda: [1, 4], min_length=1, max_length=8)
    """Values of k for which pass@k is estimated, none above samples."""

    @model_validator(mode="after")
    def _enough_samples(self) -> EvaluationConfig:
        if not all(1 <= k <= self.samples for k in self.pass_at):
            raise ValueError(f"pass_at = {self.pass_at}: each must be from 1 to samples = {self.samples}")
        return self


class MismatchConfig(ConfigModel):
    """Thresholds above which log-probabilities reported by a peer raise an alarm."""

    kl_k3_max: float = Field(0.02, gt=0.0)
    """Highest k3 estimate of KL(engine, learner), in nats per token. bfloat16 engines of one model differ by less than
    0.001."""
    ratio_mean_off_max: float = Field(0.05, gt=0.0)
    """Greatest distance from 1 of the mean probability ratio learner / engine."""
    outside_share_max: float = Field(0.05, gt=0.0, le=1.0)
    """Highest share of tokens whose ratio is outside [0.8, 1.28]."""


class SamplingCheckConfig(ConfigModel):
    """Thresholds above which a peer's tokens count as likelier than honest sampling allows, which raises an alarm."""

    lacking_share_max: float = Field(0.1, gt=0.0, lt=1.0)
    """Highest share of the expected randomness that a peer's tokens may lack. Greedy sampling lacks most of it."""
    sigmas: float = Field(5.0, gt=0.0)
    """Standard errors by which the shortfall must exceed zero before it counts."""
    keep: float = Field(0.95, ge=0.0, lt=1.0)
    """Weight that a peer's earlier batches keep with each new one: 0.95 averages over about 20 batches."""


class AuditConfig(ConfigModel):
    """How rollouts are judged by the tokens that their seeds sample (docs/trust.md)."""

    enabled: bool = True
    """Whether rollouts are judged: those beyond their bound have weight 0, and the coordinator gets all findings."""
    allow_unseeded: bool = False
    """Whether rollouts of engines that do not sample from the seeds of leases (SGLang) are trained on, unjudged. Only
    for fleets under one owner: any peer can claim to have such an engine."""
    bounds_nats: dict[str, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """The highest margin of an honest sampler by its name, such as "jax-gpu", where the shipped table has none or
    another."""


class TrainingConfig(ConfigModel):
    """The settings that RL and supervised training share: model, devices, numerics, checkpoints."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the initial parameters, and of the noise of lora.noise_start."""
    init_from: Path | None = None
    """Folder of a published model (config.json, safetensors, tokenizer.json) to start from; none: random parameters."""
    model: ModelConfig = ModelConfig()
    """Architecture; the vocabulary size comes from the run's tokenizer. With init_from only precision and carrier are
    taken from here."""
    lora: LoraConfig | None = None
    """Adapters of low rank, which alone are trained and published over a frozen base; none: all weights are trained. A
    warm start trains the base before it is frozen."""
    mesh: MeshConfig = MeshConfig()
    """Devices."""
    matmul_precision: Literal["highest", "high", "default"] = "highest"
    """Precision of products of float32 matrices, for models that compute or carry float32. highest: float32's own; high
    and default are faster and coarser (docs/precision.md)."""
    deterministic: bool = True
    """Whether a GPU uses only operations that give the same bits in every process. Without it GPUs are faster, and a
    learner that resumes may compute other weights than were published, which starts a new epoch."""
    remat: Literal["none", "blocks"] = "none"
    """Rematerialisation. "blocks" keeps only the input of each transformer block and recomputes its activations in the
    backward pass, which takes less memory and more time."""
    distributed: DistributedConfig = DistributedConfig()
    """Processes."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    compilation_cache: Path | None = None
    """Folder of jax's persistent compilation cache; without one jax's own setting holds (JAX_COMPILATION_CACHE_DIR)."""
    run_folder: Path = Path("runs/learner")
    """Folder for checkpoints and versions."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainingConfig:
        if self.model.lora is not None:
            raise ValueError("model.lora follows from the section lora: set that instead")
        if self.distributed.processes > 1 and not (self.checkpoint.folder or self.distributed.shared_run_folder):
            raise ValueError(
                "several processes write their own parts of a checkpoint: set checkpoint.folder to a place that all of "
                "them see, or distributed.shared_run_folder if they share run_folder"
            )
        return self


class TeacherConfig(ConfigModel):
    """A larger or better model whose log-probabilities of the policy's own tokens are learned from."""

    folder: Path | None = None
    """Folder of a published model with the run's tokenizer. The learner holds it on its devices, rounded as versions
    are, and runs one forward pass of it on every batch."""
    endpoint: str = ""
    """Address of an OpenAI-compatible server that returns the log-probabilities of prompts, up to /v1, such as
    http://teacher:8000/v1 (vLLM). Rollouts must then be sampled at temperature 1."""
    model: str = ""
    """Name of the model at the endpoint; empty: the only one it has."""
    key_file: Path | None = None
    """File with the endpoint's API key; none: no key is sent."""
    concurrency: int = Field(16, ge=1, le=256)
    """Rollouts that the endpoint scores at the same time."""
    timeout_s: float = Field(300.0, gt=0.0)
    """Seconds for the endpoint to score one rollout, tries included, before the learner ends with RC203."""

    @model_validator(mode="after")
    def _one_place(self) -> TeacherConfig:
        if (self.folder is None) == (not self.endpoint):
            raise ValueError("a teacher is a folder or an endpoint: set one of the two")
        return self


class LearnerConfig(TrainingConfig):
    """The learner: trains, checkpoints, publishes signed versions."""

    warm_start: WarmStartConfig = WarmStartConfig()
    """Supervised warm start."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """RL optimiser."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """RL objective."""
    teacher: TeacherConfig | None = None
    """Teacher of on-policy distillation; required by objective.teacher_coefficient."""
    behaviour: BehaviourSource = "recompute"
    """Source of the log-probabilities that rollouts were generated with. "recompute": the learner computes them from
    its own copy of each version. "reported": peers report them, which saves a forward pass and the reading of older
    versions. It is for fleets under one owner, because the peers' numbers then enter the loss."""
    audited_rollouts: int = Field(8, ge=0)
    """With behaviour = "reported": rollouts of each batch, all of one version, that are recomputed all the same and
    compared with what was reported; 0: none."""
    mismatch: MismatchConfig = MismatchConfig()
    """Alarms about log-probabilities that peers report."""
    sampling_check: SamplingCheckConfig = SamplingCheckConfig()
    """Alarms about peers whose tokens are not sampled at random."""
    audit: AuditConfig = AuditConfig()
    """Judgement of rollouts by the tokens that their seeds sample."""
    packed_row_tokens: int = Field(0, ge=0)
    """Length in tokens of rows that several rollouts share, at least the longest rollout; 0: one row per rollout."""
    resume: ResumeConfig = ResumeConfig()
    """Resuming."""
    publish: PublishConfig = PublishConfig()
    """Publishing."""
    evaluation_problems: int = Field(512, ge=1)
    """Most problems of each set that an evaluation uses."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluations during training."""
    identity_file: Path = Path("learner.key")
    """File of the Ed25519 key that signs versions; `rollcast identity FILE` creates one."""
    invite: SecretStr = SecretStr("")
    """Learner invite string."""
    invite_file: Path | None = None
    """File that holds the invite; if it does not exist at startup, the learner waits for it."""
    join_timeout_s: float = Field(60.0, gt=0.0)
    """Seconds to reach the coordinator and the origin at startup."""
    batch_timeout_s: float = Field(7200.0, gt=0.0)
    """Seconds to wait for a batch before giving up with RC201; more than a coordinator waits for a peer."""
    reconnect_timeout_s: float = Field(900.0, gt=0.0)
    """Seconds to retry when the connection to the coordinator is lost, or its store does not answer. A coordinator
    waits `store.outage_max_s` for its store, so this is longer.
    """

    def check_swap(self, at_version_swap: AtVersionSwap) -> None:
        """Check that the configured source of log-probabilities goes with what rollouts do at a version swap.

        Raises:
            ConfigError: rollouts keep keys and values of older versions, and the learner would compute their tokens'
                log-probabilities under one version.
        """
        if at_version_swap == "keep" and (self.behaviour != "reported" or self.audited_rollouts):
            raise ConfigError(
                "the coordinator's lease.at_version_swap is keep, and the learner recomputes log-probabilities",
                cause="a token then attends to keys and values of several versions, so that no version alone gives "
                "the probability with which it was sampled",
                fix='set the learner\'s behaviour = "reported" and audited_rollouts = 0, if all peers are your own; '
                "or lease.at_version_swap to finish or continue",
            )

    @model_validator(mode="before")
    @classmethod
    def _published_models_need_no_warm_start(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("init_from") is None:
            return values
        warm_start = values.get("warm_start", {})
        return values | {"warm_start": {"steps_max": 0} | warm_start} if isinstance(warm_start, dict) else values

    @model_validator(mode="after")
    def _teacher_is_used(self) -> LearnerConfig:
        if (self.teacher is not None) != (self.objective.teacher_coefficient > 0.0):
            raise ValueError(
                f"objective.teacher_coefficient = {self.objective.teacher_coefficient:g} and "
                f"{'a' if self.teacher else 'no'} section teacher do not go together: give both or none"
            )
        return self

    @model_validator(mode="after")
    def _adapters_possible(self) -> LearnerConfig:
        if self.lora is not None and self.objective.advantage == "critic":
            raise ValueError(
                "the critic of ppo trains all of its weights, for which a run with adapters has no room: choose "
                "another objective.algorithm, or remove the section lora"
            )
        return self
