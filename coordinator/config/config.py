"""Declare the configuration of the coordinator process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from coordinator.config.activation import CapacityConfig
from coordinator.config.cell import CellConfig
from coordinator.config.checks import CodeCheck, single_checks
from coordinator.config.environments import EnvironmentPoolConfig, GymTask, VerifiersTask
from coordinator.config.fleet import ProvidersConfig
from coordinator.config.gateways import GatewaysConfig
from coordinator.config.sinks import MetricsConfig
from coordinator.config.stages import StageConfig, stage_errors
from coordinator.config.tasks import (
    SET_NAME,
    TWO_DIGIT_SUMS,
    EvaluationSetConfig,
    ReasoningGymTask,
    RowsConfig,
    TaskConfig,
    single_tasks,
)
from coordinator.core.staleness.policy import LatePolicy, PacingRule
from rollcast.runtime.config import ConfigModel, IpNetworkText
from rollcast.wire import limits
from rollcast.wire.joining.bootstrap import PLACE_PATTERN, PLACES_MOST
from rollcast.wire.joining.invite import QUOTA_DEFAULT
from rollcast.wire.joining.release import SHA256_PATTERN, URL_PATTERN, VERSION_PATTERN, Release
from rollcast.wire.text.tokenizer import UNKNOWN
from rollcast.wire.version_swap import AtVersionSwap

StopString = Annotated[str, Field(min_length=1, max_length=limits.STOP_STRING_LENGTH_MAX)]


class RunConfig(ConfigModel):
    """Length of the run, size of its batches, and limits on staleness."""

    name: str = Field("local", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    """Name of the run; part of its folder's name."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the order of prompts. Seeds of sampled tokens follow from it and from a secret of the run's ledger."""
    steps: int = Field(200, ge=1)
    """Learner steps until the run is finished."""
    staleness_limit: int = Field(4, ge=0)
    """S: most learner steps by which a rollout's oldest segment may lag at batch formation. A hard limit."""
    publish_every_steps: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """kappa: learner steps between two published versions; auto: as many as a broadcast takes (p95), if S allows."""
    late_policy: LatePolicy = "drop"
    """drop: discard rollouts older than S; wait: hold batches a while for late groups; correct: train on them too."""
    late_wait_s: float = Field(5.0, ge=0.0)
    """late_policy wait: most seconds to hold a batch for a group that would be too old for the next one."""
    late_steps_max: int = Field(1, ge=0)
    """late_policy correct: steps beyond S up to which rollouts are trained; importance ratios correct for their age."""
    groups_per_step: int = Field(32, ge=1)
    """Prompt groups per batch."""
    samples_per_group: int = Field(8, ge=2)
    """Rollouts per prompt."""

    @property
    def age_max(self) -> int:
        """Return the age in learner steps up to which rollouts are trained."""
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
    """Settings with which workers sample rollouts."""

    temperature: float = Field(1.0, gt=0.0, le=10.0)
    """Divisor of the logits."""
    prompt_tokens_max: int = Field(9, ge=1)
    """Longest prompt in tokens; longer problems are skipped and counted. All rows are padded to it: keep it small."""
    new_tokens_max: int = Field(4, ge=1)
    """Longest completion in tokens, the end-of-sequence token included. All rows are padded to it."""
    stop_strings: tuple[StopString, ...] = Field((), max_length=limits.STOP_STRINGS_MAX)
    """Strings that end a completion: it ends with the token that completes one of them, and keeps that text."""
    router_replay: bool = False
    """For models with experts: workers report which experts each generated token went through, and the learner sends it
    through the same ones (docs/learner.md). Adds layers x experts per token bytes to each token of an upload."""

    @field_validator("stop_strings")
    @classmethod
    def _text_that_tokens_have(cls, strings: tuple[str, ...]) -> tuple[str, ...]:
        if any(UNKNOWN in text for text in strings):
            raise ValueError("U+FFFD stands for tokens without text; remove it from stop_strings")
        return strings


class TokenizerConfig(ConfigModel):
    """The tokenizer, and the chat template that formats problems."""

    folder: Path | None = None
    """Folder of a published model with tokenizer.json; none: a small tokenizer is built from the task's wording."""
    chat_template: bool = True
    """Whether problems are formatted with the model's chat template, if it has one."""
    system_prompt: str = Field("", max_length=65_536)
    """System message of the chat; empty: none."""
    arguments: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Further arguments of the chat template, for example { enable_thinking = false }."""


class ServeConfig(ConfigModel):
    """Addresses that the coordinator listens on."""

    host: str = "127.0.0.1"
    """Interface of both ports; "::": all, for IPv6 and IPv4. Beyond loopback, the HTTP port uses TLS and reading
    requires a token.
    """
    open_reading: bool = True
    """Whether reading on loopback requires no token. Operator actions always require one."""
    grpc_port: int = Field(7400, ge=0, le=65535)
    """Control port (gRPC over mutual TLS); 0: the system chooses one at the first start of a run."""
    http_port: int = Field(7401, ge=0, le=65535)
    """Port for joins, dashboard, metrics and API; 0: the system chooses one at the first start of a run."""
    advertise_host: str = ""
    """Name or address that invites carry; empty: host."""
    advertise_further: list[Annotated[str, Field(pattern=PLACE_PATTERN)]] = Field([], max_length=PLACES_MOST - 1)
    """Further addresses of the coordinator for new invites: host, or host:control port:HTTP port.
    Peers try them in turn with advertise_host.
    """
    observe_port: int = Field(0, ge=0, le=65535)
    """Port that peers and `rollcast peer check` dial to find the kind of their router; 0: any free port each time,
    which a firewall will block.
    """
    page_url: str = Field("", pattern=r"^(https?://[A-Za-z0-9._:\[\]-]{1,255})?$")
    """Address under which people open the dashboard, where it is not the one that members use (https://HOST:PORT)."""
    stay_s: float = Field(0.0, ge=0.0)
    """Seconds for which the dashboard stays after the run has ended; a signal to stop ends them."""

    @property
    def hosts(self) -> list[str]:
        """Return the names and addresses at which the coordinator is reached, without ports."""
        further = (re.sub(r":[0-9]+:[0-9]+$", "", place).strip("[]") for place in self.advertise_further)
        page = urlsplit(self.page_url).hostname
        return [host for host in (self.host, self.advertise_host, *further, page) if host]


class LeaseConfig(ConfigModel):
    """Leases: the work that a peer may hold, and for how long."""

    deadline_s: float = Field(30.0, gt=0.0)
    """Seconds after which an unfinished lease is given to another peer, if the peer needs less for the longest
    completion, by the speeds measured so far; otherwise four times what it needs."""
    deadline_most_s: float = Field(1800.0, ge=0.0)
    """Most seconds after which an unfinished lease is given to another peer, however slow its holder is, and those of
    the first leases, before any speed is known. With less than deadline_s every lease has deadline_s."""
    prefetch_batches: float = Field(2.0, ge=1.0)
    """Most generation batches for which a peer may hold leases, including the running one."""
    prefetch_s: float = Field(3.0, gt=0.0)
    """Seconds of work that a peer of known speed may hold besides the running batch, within prefetch_batches."""
    reconnect_grace_s: float = Field(3.0, ge=0.0)
    """Seconds after which the slots of a disconnected peer also go to a second one; the first keeps its leases."""
    pacing: PacingRule = "predict"
    """Groups to hold back: predict: those likely to be too old once scored; count: those beyond S; none: no groups."""
    lead_margin_steps: float = Field(0.5, ge=0.0)
    """Prompt groups to keep open beyond one batch and the work in progress meanwhile, in batches."""
    duplicate_share: float = Field(0.05, ge=0.0, le=1.0)
    """Most attempts, as a share of all, that may be second attempts at slots of slow peers."""
    evaluation_share: float = Field(0.25, gt=0.0, le=1.0)
    """Share of the fleet, by slots, that may evaluate instead of generating for training; at least one peer."""
    at_version_swap: AtVersionSwap = "continue"
    """What a peer's running rollouts do when a newer version is active. "finish": they end with the old one first.
    "continue": they go on with the new one, which reads their tokens so far again. "keep": they go on with the new one
    over the old one's keys and values. No version alone then gives the tokens' probabilities, so the learner must take
    reported ones and audit none, and a lost peer's rollouts start anew."""
    partial_interval_s: float = Field(10.0, ge=0.0)
    """Seconds between two uploads of a running rollout's tokens, so that another peer can continue it; 0: never."""
    partial_tokens_max: int = Field(1_000_000, ge=0)
    """Most tokens of unfinished rollouts that are kept in memory, all peers together."""

    @property
    def is_continued_elsewhere(self) -> bool:
        """Whether another peer continues an unfinished rollout. With "keep" none does: the tokens pass on without the
        reported log-probabilities, and nothing else gives these."""
        return self.at_version_swap != "keep"


class MembershipConfig(ConfigModel):
    """Timeouts after which a peer or the learner counts as lost."""

    heartbeat_interval_s: float = Field(1.0, gt=0.0)
    """Seconds between two heartbeats of a peer."""
    heartbeat_timeout_s: float = Field(5.0, gt=0.0)
    """Seconds of silence after which a peer counts as disconnected, while its event loop and the coordinator's run."""
    no_peer_timeout_s: float = Field(3600.0, gt=0.0)
    """Seconds without a peer that may work, counted from the first version, after which the run stops with RC202."""
    start_timeout_s: float = Field(3600.0, gt=0.0)
    """Seconds without an origin, or without a learner's call since startup, after which the run stops with RC201."""
    learner_timeout_s: float = Field(1800.0, gt=0.0)
    """Seconds since the learner's last call after which the run stops with RC201."""


class RelayConfig(ConfigModel):
    """Broadcast of versions from the origin to the peers."""

    mesh_peers_max: int = Field(24, ge=1, le=64)
    """Most peers that relay to each other in a full mesh; more peers are served along trees."""
    stripes: int = Field(8, ge=1, le=64)
    """Number of relay trees, if there are more peers. More trees leave less of uplinks unused, but a broadcast takes
    longer to begin and to end, and more connections stay open."""
    fallbacks_max: int = Field(3, ge=0, le=16)
    """Further peers named to each peer, from which it requests chunks when its neighbours do not deliver."""
    unknown_uplink_bytes_per_second: float = Field(1.25e6, gt=0.0)
    """Assumed bytes per second of an unmeasured uplink, unless most measured uplinks are slower."""
    mirrors: list[str] = Field(default_factory=list, max_length=16)
    """https:// URLs of mirrors that hold the run's versions: every peer's last fallbacks."""
    lan_preferred: bool = True
    """Whether peers behind one address, or in one private network, prefer each other and ignore caps between them."""
    probe_bytes_max: int = Field(limits.PROBE_BYTES_MAX, ge=0, le=limits.PROBE_BYTES_MAX)
    """Most bytes of padding that a peer sends to measure its uplink; 0: uplinks are never probed."""
    probe_seconds_max: float = Field(2.0, gt=0.0, le=30.0)
    """Most seconds that such a probe takes."""
    dial_back: bool = True
    """Whether the coordinator and up to three peers dial each peer to test that it can be reached."""
    dial_back_networks: list[IpNetworkText] = Field(default_factory=list, max_length=64)
    """Networks (203.0.113.0/24) whose peers are dialled back although their sessions come from other addresses."""

    @field_validator("mirrors")
    @classmethod
    def _mirrors_are_https(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if not url.startswith("https://"):
                raise ValueError(f"mirror {url!r} does not start with https://; mirrors are read over HTTPS only")
        return urls


class SelectionConfig(ConfigModel):
    """Selection of the prompts and prompt groups that are trained on."""

    drop_without_advantage: bool = False
    """Whether groups whose rewards are all equal are dropped and replaced until the batch is full."""
    drops_per_step_max: float = Field(4.0, ge=0.0)
    """Most such groups to drop for one batch, as a multiple of groups_per_step; further ones are trained on."""
    by_volatility: bool = False
    """Whether problems of files are sampled again more often, the more their rewards vary."""
    chance_least: float = Field(0.1, gt=0.0, le=1.0)
    """by_volatility: probability of sampling a problem again whose rewards do not vary."""
    exploration: float = Field(0.0, ge=0.0, le=10.0)
    """by_volatility: weight of sqrt(ln(rollouts of all problems) / rollouts of this one), which is added to a problem's
    probability, so that problems of few rollouts are sampled again whatever their rewards were. This is the bonus of
    UCB1; it stands for the exploration term of DoPR, with whose own equation it has not been compared."""


class VerifierConfig(ConfigModel):
    """Processes that score rollouts."""

    pool: Literal["local", "ray"] = "local"
    """local: processes of this machine; ray: actors of a Ray cluster, which needs the extra `ray`, and Rollcast on its
    machines."""
    ray_address: str = "auto"
    """Address of the Ray cluster: `auto` (this machine is part of it), HOST:PORT or ray://HOST:PORT."""
    processes: int = Field(1, ge=1, le=1024)
    """Number of verifier processes; with Ray each reserves a CPU."""
    spare_processes: int = Field(3, ge=0, le=64)
    """Further processes where a check runs programs, so that programs which run until their timeout hold up few others:
    so many may do so at a time, and completions still do not wait for them."""
    timeout_s: float = Field(10.0, gt=0.0)
    """Timeout of scoring one completion, in seconds; after it the process is replaced and the completion retried."""
    queue_max: int = Field(4096, ge=1)
    """Most rollouts that may wait to be scored; beyond it uploads are refused as `busy`, and peers retry."""
    failed_share_max: float = Field(0.5, ge=0.0, le=1.0)
    """Share of failures among the newest 32 verdicts above which scoring is paused, and no more leases are issued,
    until it works again; 1: never."""


class ReleaseConfig(ConfigModel):
    """The release that invites name: a machine with another one refuses to join and prints what to install. `make
    release` writes these lines. The coordinator does not serve the wheel.
    """

    version: str = Field("", pattern=rf"^({VERSION_PATTERN})?$")
    """Version, for example 0.2.0; machines of the same series (0.2) may join. Empty: invites name no release."""
    sha256: str = Field("", pattern=rf"^({SHA256_PATTERN})?$")
    """Digest of the wheel in hex: machines with another build of the same version are refused. Empty: any build."""
    url: str = Field("", pattern=rf"^({URL_PATTERN})?$")
    """Where the wheel lies, for the command that is printed; needs sha256. Empty: donors ask the operator."""

    @model_validator(mode="after")
    def _whole(self) -> ReleaseConfig:
        if (self.sha256 or self.url) and not self.version:
            raise ValueError("version is needed beside sha256 and url")
        if self.url and not self.sha256:
            raise ValueError("url needs sha256, so that donors install the very wheel")
        return self

    def named(self) -> Release | None:
        """Return the release for invites; None if there is none to name."""
        return Release(self.version, self.sha256, self.url) if self.version else None


class JoinConfig(ConfigModel):
    """Limits on invites and certificates."""

    peers_max: int = Field(QUOTA_DEFAULT, ge=1)
    """Most identities that may join with the peers' invite of the run folder; `rollcast invite` makes others."""
    origins_max: int = Field(4, ge=1)
    """Most identities that may join with the origin's invite."""
    cells_max: int = Field(0, ge=0)
    """Most cells that may join with an invite in the run folder (docs/scale.md); 0: none is written there, and
    `rollcast invite --role cell` makes one."""
    invite_lifetime_s: float = Field(30 * 86400.0, gt=0.0)
    """Seconds until an invite expires."""
    certificate_lifetime_s: float = Field(86400.0, ge=60.0)
    """Seconds until a certificate expires; peers renew theirs over the open session."""
    release: ReleaseConfig = ReleaseConfig()
    """The release that invites name."""


class LimitsConfig(ConfigModel):
    """Limits on what members and strangers send, so that a few cannot stop the run. Honest ones stay far below."""

    uploads_per_second: float = Field(100.0, gt=0.0)
    """Upload calls of one identity per second, on average; further ones wait, then are refused with RC309."""
    upload_bytes_per_second: float = Field(1 << 20, gt=0.0)
    """Bytes that one identity uploads per second, on average; what comes faster is read later."""
    uploads_at_once: int = Field(4, ge=1, le=64)
    """Upload calls that one identity may have in progress."""
    together: float = Field(32.0, ge=1.0)
    """How many times as much all identities of one invite, or of one address, may upload as one identity."""
    connections_per_address: int = Field(128, ge=1)
    """Connections to the HTTP port that one IPv4 address, or IPv6 /64, may keep without a request in progress. Beyond
    it the oldest is closed."""
    connections_max: int = Field(512, ge=2)
    """Connections to the HTTP port in all; an idle one of the address with the most makes room for a newcomer."""
    control_connections_per_address: int = Field(1024, ge=1)
    """Connections to the control port that one address may keep without a call in progress. All addresses together may
    have as many that were made less than 20 s ago; beyond it the newest are closed, and dial again."""
    control_connections_max: int = Field(4096, ge=2)
    """Connections without a call in progress that all addresses together may keep. Beyond it the oldest is closed."""


class StoreConfig(ConfigModel):
    """Limits on what is stored of a long run, and the reserve for a full disk."""

    url: str = ""
    """PostgreSQL database of the run, without a password, as postgresql://USER@HOST/DATABASE; empty: SQLite in the run
    folder. A second coordinator with the same URL is a standby (docs/scale.md).
    """
    key_file: Path = Path("store.key")
    """With url: file of the key that encrypts the run authority's key in the database. The first coordinator makes it;
    copy it to the standby. Relative paths are in the run folder's secrets/.
    """
    outage_max_s: float = Field(600.0, gt=0.0)
    """Seconds for which a PostgreSQL that does not answer, or a disk that is full, is tried again. Uploads are refused
    as `busy` meanwhile; after that the coordinator ends with RC401.
    """
    margin_steps: int = Field(256, ge=0)
    """Steps whose batches are kept beyond those that the learner's oldest checkpoint could request again."""
    compaction_interval_s: float = Field(10.0, gt=0.0)
    """Seconds between two compactions of the store."""
    events_kept: int = Field(20_000, ge=0)
    """Newest entries of the event log that stay in the store; older ones move to compressed files in the run folder."""
    segments_bytes_max: int = Field(1 << 30, ge=0)
    """Most bytes of those files together; the oldest are deleted. With url, events stay in the database, and count as
    256 bytes each.
    """
    steps_kept: int = Field(10_000, ge=1)
    """Newest learner steps whose figures stay in the store; metrics.jsonl keeps all."""
    samples_bytes_max: int = Field(64 << 20, ge=0)
    """Most bytes of stored evaluation completions; the oldest files are deleted."""
    free_bytes_min: int = Field(256 << 20, ge=0)
    """Free bytes on the run folder's disk below which uploads are refused as `busy`; peers keep their rollouts."""
    ballast_bytes: int = Field(16 << 20, ge=0)
    """Bytes of a reserve file that is deleted when the disk is full, so that the store can be compacted and closed."""


class RecordConfig(ConfigModel):
    """The flight record: the events that the coordinator received and its decisions, for `rollcast replay`."""

    enabled: bool = True
    """Whether the flight record is written."""
    bytes_max: int = Field(1 << 30, ge=1 << 20)
    """Most bytes of all its segments together; the oldest are deleted."""


class CoordinatorConfig(ConfigModel):
    """Configuration of the coordinator: membership, leases, staleness, batches and the run's storage."""

    run: RunConfig = RunConfig()
    """Length of the run, size of its batches, and limits on staleness."""
    task: TaskConfig = ReasoningGymTask(parameters=TWO_DIGIT_SUMS)
    """Source of the problems, and the check of answers."""
    held_out_problems: int | None = Field(None, ge=1)
    """Problems for evaluation, split off by a hash of their text and never trained on: the set `held_out`. By default
    512, or an eighth of the problems of a file if that is less."""
    evaluation_sets: dict[Annotated[str, Field(pattern=SET_NAME)], EvaluationSetConfig] = Field(
        default_factory=dict, max_length=16
    )
    """Further evaluation sets by name."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer, and the chat template that formats problems."""
    sampling: SamplingConfig = SamplingConfig()
    """Settings with which workers sample rollouts."""
    serve: ServeConfig = ServeConfig()
    """Addresses that the coordinator listens on."""
    join: JoinConfig = JoinConfig()
    """Limits on invites and certificates."""
    lease: LeaseConfig = LeaseConfig()
    """Leases: the work that a peer may hold, and for how long."""
    membership: MembershipConfig = MembershipConfig()
    """Heartbeats and timeouts of members."""
    relay: RelayConfig = RelayConfig()
    """Broadcast of versions from the origin to the peers."""
    stages: list[StageConfig] = Field(default_factory=list, max_length=64)
    """Stages of growing length and difficulty, in their order; none: one for the whole run."""
    selection: SelectionConfig = SelectionConfig()
    """Selection of the prompts and prompt groups that are trained on."""
    capacity: CapacityConfig = CapacityConfig()
    """Activation of peers by the capacity model."""
    providers: ProvidersConfig = ProvidersConfig()
    """Workers that the coordinator starts and stops at providers."""
    verifier: VerifierConfig = VerifierConfig()
    """Processes that score rollouts."""
    environments: EnvironmentPoolConfig = EnvironmentPoolConfig()
    """Processes that play episodes, of tasks whose kind is gym or verifiers."""
    gateways: GatewaysConfig = GatewaysConfig()
    """Gateways: processes that serve peers in this coordinator's place."""
    cell: CellConfig = CellConfig()
    """Whether this coordinator serves a cell of another run."""
    limits: LimitsConfig = LimitsConfig()
    """Limits on what members and strangers send."""
    store: StoreConfig = StoreConfig()
    """Limits on what is stored of a long run, and the reserve for a full disk."""
    record: RecordConfig = RecordConfig()
    """The flight record for `rollcast replay`."""
    metrics: MetricsConfig = MetricsConfig()
    """Sinks for the metrics of learner steps."""
    learner_public_key: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """Ed25519 public key (hex) of the learner, which signs versions; `rollcast identity FILE` prints it. Required."""
    run_folder: Path = Path("runs/coordinator")
    """Folder of the ledger, keys, invites, metrics and summary."""

    @model_validator(mode="after")
    def _sets_and_checks_fit(self) -> CoordinatorConfig:
        if wrong := stage_errors(self.stages, self.sampling.new_tokens_max):
            raise ValueError(wrong)
        if "held_out" in self.evaluation_sets:
            raise ValueError("evaluation_sets.held_out: this name belongs to held_out_problems; choose another")
        if wrong := self._too_many_episodes():
            raise ValueError(wrong)
        for task in (*single_tasks(self.task), *(one.task for one in self.evaluation_sets.values())):
            for check in single_checks(task.check) if isinstance(task, RowsConfig) else []:
                if isinstance(check, CodeCheck) and check.total_timeout_s >= self.verifier.timeout_s:
                    raise ValueError(
                        f"check.total_timeout_s = {check.total_timeout_s:g} must be less than verifier.timeout_s = "
                        f"{self.verifier.timeout_s:g}, after which it has no score whatever it has passed"
                    )
        return self

    def _too_many_episodes(self) -> str:
        """Return why the episodes of one batch cannot be open at once; empty if they can, or if none are played."""
        if not any(isinstance(task, GymTask | VerifiersTask) for task in single_tasks(self.task)):
            return ""
        wanted, room = self.run.groups_per_step * self.run.samples_per_group, self.environments.episodes_max // 2
        if wanted <= room:
            return ""
        return (
            f"environments.episodes_max = {self.environments.episodes_max} leaves {room} open episodes to training, "
            f"the others to evaluations, and one batch has {wanted} (run.groups_per_step * run.samples_per_group): set "
            f"environments.episodes_max to {2 * wanted} at least, or make batches smaller"
        )
