"""Configuration of the coordinator process."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from coordinator.config.activation import CapacityConfig
from coordinator.config.fleet import ProvidersConfig
from coordinator.config.sinks import MetricsConfig
from coordinator.config.tasks import (
    SET_NAME,
    TWO_DIGIT_SUMS,
    CodeCheck,
    EvaluationSetConfig,
    MixtureTask,
    ReasoningGymTask,
    RowsConfig,
    TaskConfig,
)
from rollcast.runtime.config import ConfigModel
from rollcast.wire import limits
from rollcast.wire.joining.bootstrap import PLACE_PATTERN, PLACES_MOST
from rollcast.wire.text.tokenizer import UNKNOWN

StopString = Annotated[str, Field(min_length=1, max_length=limits.STOP_STRING_LENGTH_MAX)]


class RunConfig(ConfigModel):
    """What is trained, in learner steps and rollouts."""

    name: str = Field("local", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    """Name of the run; part of its folder's name."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Everything random about prompts and sampling seeds follows from it."""
    steps: int = Field(200, ge=1)
    """Learner steps until the run is finished."""
    staleness_limit: int = Field(4, ge=0)
    """S: learner steps by which a rollout's oldest segment may lag at batch formation. Hard limit."""
    publish_every_steps: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """kappa: learner steps between two published versions; auto: as many as a broadcast takes (p95), if S allows."""
    late_policy: Literal["drop", "wait", "correct"] = "drop"
    """What becomes of rollouts older than S: dropped; dropped, but a batch waits for them a while; or trained still."""
    late_wait_s: float = Field(5.0, ge=0.0)
    """wait: seconds for which a batch is held back for a group that would be too old for the next one."""
    late_steps_max: int = Field(1, ge=0)
    """correct: learner steps beyond S up to which rollouts are trained; importance ratios correct for their age."""
    groups_per_step: int = Field(32, ge=1)
    """Prompt groups in a batch."""
    samples_per_group: int = Field(8, ge=2)
    """Rollouts of one prompt."""

    @property
    def age_max(self) -> int:
        """Age in learner steps up to which rollouts are trained."""
        return self.staleness_limit + (self.late_steps_max if self.late_policy == "correct" else 0)

    @model_validator(mode="after")
    def _some_version_is_young_enough(self) -> RunConfig:
        if self.publish_every_steps != "auto" and self.publish_every_steps > self.staleness_limit + 1:
            raise ValueError(
                f"staleness_limit = {self.staleness_limit} cannot be kept with publish_every_steps = "
                f"{self.publish_every_steps}: the newest version is up to publish_every_steps - 1 steps old when a "
                "batch is formed; raise the first or lower the second"
            )
        return self


class SamplingConfig(ConfigModel):
    """How rollouts are sampled."""

    temperature: float = Field(1.0, gt=0.0, le=10.0)
    """Divides the logits."""
    prompt_tokens_max: int = Field(9, ge=1)
    """Longest prompt in tokens; longer problems are skipped and counted. All rows are padded to it: keep it tight."""
    new_tokens_max: int = Field(4, ge=1)
    """Longest completion in tokens, end of sequence included. Rows are padded to it as well."""
    stop_strings: tuple[StopString, ...] = Field((), max_length=limits.STOP_STRINGS_MAX)
    """A completion also ends with the token that completes one of these in its text; that text is part of it."""

    @field_validator("stop_strings")
    @classmethod
    def _text_that_tokens_have(cls, strings: tuple[str, ...]) -> tuple[str, ...]:
        if any(UNKNOWN in text for text in strings):
            raise ValueError("U+FFFD stands for tokens without text, and is no stop string")
        return strings


class TokenizerConfig(ConfigModel):
    """How text becomes tokens."""

    folder: Path | None = None
    """A published model's folder with tokenizer.json; none: a small tokenizer made of the task's wording."""
    chat_template: bool = True
    """Whether problems are put into the model's chat template, where it has one."""
    system_prompt: str = Field("", max_length=65_536)
    """System message of the chat; empty: none."""
    arguments: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Further arguments of the template, for example { enable_thinking = false }."""


class ServeConfig(ConfigModel):
    """Addresses that the coordinator binds."""

    host: str = "127.0.0.1"
    """Interface for both ports. Beyond loopback the HTTP port is served with TLS too, and reading needs a token."""
    open_reading: bool = True
    """Whether reading needs no token on loopback; acts always need one."""
    grpc_port: int = Field(7400, ge=0, le=65535)
    """Control port (gRPC over mutual TLS); 0 lets the system choose at the first start of a run."""
    http_port: int = Field(7401, ge=0, le=65535)
    """Joins, page, metrics and API; 0 lets the system choose at the first start of a run."""
    advertise_host: str = ""
    """Name or address that invites carry; empty: host."""
    advertise_further: list[Annotated[str, Field(pattern=PLACE_PATTERN)]] = Field([], max_length=PLACES_MOST - 1)
    """Further places at which we are reached, for new invites: host, or host:control port:HTTP port. Peers try them in
    turn with advertise_host."""
    observe_port: int = Field(0, ge=0, le=65535)
    """Port that peers and `rollcast peer check` dial so that kinds of routers can be told apart; 0: any free one each
    time, which a firewall will not let in."""

    @property
    def hosts(self) -> list[str]:
        """Names and addresses of all places, without ports."""
        further = (re.sub(r":[0-9]+:[0-9]+$", "", place).strip("[]") for place in self.advertise_further)
        return [host for host in (self.host, self.advertise_host, *further) if host]


class LeaseConfig(ConfigModel):
    """How work is handed out."""

    deadline_s: float = Field(30.0, gt=0.0)
    """A lease not finished after this many seconds is given to another peer."""
    prefetch_batches: float = Field(2.0, ge=1.0)
    """Generation batches that a peer may hold leases for, the running one included."""
    prefetch_s: float = Field(10.0, gt=0.0)
    """Of those, what a peer of known speed does in so many seconds, and never less than one generation batch."""
    reconnect_grace_s: float = Field(3.0, ge=0.0)
    """Seconds after which the slots of a peer that is away are open to a second one; the first keeps its leases."""
    pacing: Literal["predict", "count", "none"] = "predict"
    """What work is held back: what measured times say would be too old, or only what counting does, or nothing."""
    lead_margin_steps: float = Field(0.5, ge=0.0)
    """Prompt groups kept open beyond a batch and what is under way meanwhile, in batches."""
    duplicate_share: float = Field(0.05, ge=0.0, le=1.0)
    """Share of attempts that may be second ones, for slots whose peers are slow."""
    on_new_version: Literal["finish", "continue"] = "finish"
    """Whether a rollout that runs when a version arrives is finished with the old one, or goes on with the new one."""
    partial_interval_s: float = Field(10.0, ge=0.0)
    """Seconds between two messages of what a running rollout drew, for whoever must go on with it; 0: never sent."""
    partial_tokens_max: int = Field(1_000_000, ge=0)
    """Tokens of unfinished rollouts kept in memory in all."""


class MembershipConfig(ConfigModel):
    """When a peer counts as gone."""

    heartbeat_interval_s: float = Field(1.0, gt=0.0)
    """Seconds between two heartbeats of a peer."""
    heartbeat_timeout_s: float = Field(5.0, gt=0.0)
    """A peer silent for this long has left; its leases are given out again."""
    no_peer_timeout_s: float = Field(120.0, gt=0.0)
    """Seconds with no peer that may work, counted once there is a version, after which the run stops with RC202."""
    start_timeout_s: float = Field(3600.0, gt=0.0)
    """Seconds with no origin, or with no call of the learner since the start, after which the run stops with RC201."""
    learner_timeout_s: float = Field(1800.0, gt=0.0)
    """Seconds since the learner's last call after which the run stops with RC201."""


class RelayConfig(ConfigModel):
    """How versions travel from the origin to the peers."""

    mesh_peers_max: int = Field(24, ge=1, le=64)
    """Up to this many peers each relays to all others; more are served along trees."""
    stripes: int = Field(8, ge=1, le=64)
    """Trees above that number. More come closer to what the links allow, and keep more connections open."""
    fallbacks_max: int = Field(3, ge=0, le=16)
    """Further peers named to each peer, to ask when its neighbours do not help."""
    unknown_uplink_bytes_per_second: float = Field(1.25e6, gt=0.0)
    """Taken for uplinks that were not measured yet, unless most of those measured are slower."""
    mirrors: list[str] = Field(default_factory=list, max_length=16)
    """https URLs of mirrors that hold the run's versions: the last fallbacks of every peer."""
    lan_preferred: bool = True
    """Whether peers behind one address, or in one private network, prefer each other and ignore caps between them."""
    probe_bytes_max: int = Field(limits.PROBE_BYTES_MAX, ge=0, le=limits.PROBE_BYTES_MAX)
    """Bytes of padding that a peer sends at most to measure its uplink; 0: peers are never asked to."""
    probe_seconds_max: float = Field(2.0, gt=0.0, le=30.0)
    """Seconds that such a measurement takes at most."""
    dial_back: bool = True
    """Whether peers are dialled, by the coordinator and up to three others, to see that they can be."""
    dial_back_networks: list[str] = Field(default_factory=list, max_length=64)
    """Networks (203.0.113.0/24) where peers are dialled back whose sessions come from other addresses."""

    @field_validator("dial_back_networks")
    @classmethod
    def _networks_are_networks(cls, networks: list[str]) -> list[str]:
        for one in networks:
            ip_network(one, strict=False)
        return networks

    @field_validator("mirrors")
    @classmethod
    def _mirrors_are_https(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith("https://"):
                raise ValueError(f"mirror {url!r} is no https:// URL")
        return urls


class SelectionConfig(ConfigModel):
    """Which prompts and groups are worth training on."""

    drop_without_advantage: bool = False
    """Whether groups whose rewards are all the same are dropped and replaced until the batch is full."""
    drops_per_step_max: float = Field(4.0, ge=0.0)
    """How many at most for one batch, as a multiple of groups_per_step; beyond it they are trained on."""
    by_volatility: bool = False
    """Whether problems of files are drawn again with a chance that grows with how much their rewards vary."""
    chance_least: float = Field(0.1, gt=0.0, le=1.0)
    """by_volatility: chance of a problem whose rewards do not vary."""


class VerifierConfig(ConfigModel):
    """Processes that score rollouts."""

    processes: int = Field(1, ge=1, le=64)
    """How many verifier processes."""
    timeout_s: float = Field(10.0, gt=0.0)
    """A completion that takes longer scores 0 and its process is replaced."""
    queue_max: int = Field(4096, ge=1)
    """Rollouts that may wait for scoring before intake answers `busy`."""


class JoinConfig(ConfigModel):
    """Who may join, and for how long."""

    peers_max: int = Field(1000, ge=1)
    """Identities that may join with the peers' invite."""
    origins_max: int = Field(4, ge=1)
    """Identities that may join with the origin's invite."""
    invite_lifetime_s: float = Field(30 * 86400.0, gt=0.0)
    """Seconds until an invite expires."""
    certificate_lifetime_s: float = Field(86400.0, ge=60.0)
    """Seconds until a certificate expires; peers renew theirs over the open session."""


class StoreConfig(ConfigModel):
    """How much of a long run is kept, and what happens when the disk fills up."""

    margin_steps: int = Field(256, ge=0)
    """Steps whose batches are kept beyond what the learner's oldest checkpoint could ask for again."""
    compaction_interval_s: float = Field(10.0, gt=0.0)
    """Seconds between two looks for what can be compacted."""
    events_kept: int = Field(20_000, ge=0)
    """Newest entries of the run's story in the store; older ones go to compressed files in the run folder."""
    segments_bytes_max: int = Field(1 << 30, ge=0)
    """Bytes of those files, all together; the oldest are deleted."""
    steps_kept: int = Field(10_000, ge=1)
    """Newest learner steps whose figures stay in the store; metrics.jsonl has all."""
    samples_bytes_max: int = Field(64 << 20, ge=0)
    """Bytes of the files of completions of evaluations that are kept for reading; the oldest are deleted."""
    free_bytes_min: int = Field(256 << 20, ge=0)
    """Free bytes on the run folder's disk below which uploads are refused as `busy`; peers keep their rollouts."""
    ballast_bytes: int = Field(16 << 20, ge=0)
    """Size of a file that is deleted then, so that the store can still be compacted and closed."""


class RecordConfig(ConfigModel):
    """The flight record: what the coordinator was told and decided, for `rollcast replay`."""

    enabled: bool = True
    """Whether it is kept."""
    bytes_max: int = Field(1 << 30, ge=1 << 20)
    """Bytes of all its segments together; the oldest are deleted."""


class CoordinatorConfig(ConfigModel):
    """The coordinator: who is here, who does what, which rollouts count."""

    run: RunConfig = RunConfig()
    """What is trained."""
    task: TaskConfig = ReasoningGymTask(parameters=TWO_DIGIT_SUMS)
    """Where problems come from and how answers are checked."""
    held_out_problems: int = Field(512, ge=1)
    """Problems for evaluation, split off by a hash of their text and never trained on: the set `held_out`."""
    evaluation_sets: dict[Annotated[str, Field(pattern=SET_NAME)], EvaluationSetConfig] = Field(
        default_factory=dict, max_length=16
    )
    """Further sets by name."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes tokens."""
    sampling: SamplingConfig = SamplingConfig()
    """How rollouts are sampled."""
    serve: ServeConfig = ServeConfig()
    """Addresses."""
    join: JoinConfig = JoinConfig()
    """Invites and certificates."""
    lease: LeaseConfig = LeaseConfig()
    """Leases."""
    membership: MembershipConfig = MembershipConfig()
    """Heartbeats and leaving."""
    relay: RelayConfig = RelayConfig()
    """Relay plans."""
    selection: SelectionConfig = SelectionConfig()
    """Online selection."""
    capacity: CapacityConfig = CapacityConfig()
    """Which peers are worth having on."""
    providers: ProvidersConfig = ProvidersConfig()
    """Workers that are started and stopped at providers."""
    verifier: VerifierConfig = VerifierConfig()
    """Scoring."""
    store: StoreConfig = StoreConfig()
    """The ledger."""
    record: RecordConfig = RecordConfig()
    """The flight record."""
    metrics: MetricsConfig = MetricsConfig()
    """Where the figures of steps go."""
    learner_public_key: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """Ed25519 key (hex) that signs versions; `rollcast identity FILE` prints it. Required to start."""
    run_folder: Path = Path("runs/coordinator")
    """Where the ledger, keys, invites, metrics and summary are kept."""

    @model_validator(mode="after")
    def _sets_and_checks_fit(self) -> CoordinatorConfig:
        if "held_out" in self.evaluation_sets:
            raise ValueError("evaluation_sets.held_out: this name is that of held_out_problems; choose another")
        tasks = [part.task for part in self.task.parts] if isinstance(self.task, MixtureTask) else [self.task]
        for task in (*tasks, *(one.task for one in self.evaluation_sets.values())):
            check = task.check if isinstance(task, RowsConfig) else None
            if isinstance(check, CodeCheck) and check.total_timeout_s >= self.verifier.timeout_s:
                raise ValueError(
                    f"check.total_timeout_s = {check.total_timeout_s:g} must be less than verifier.timeout_s = "
                    f"{self.verifier.timeout_s:g}, after which a completion scores 0 whatever it has passed"
                )
        return self
