"""Define the configuration of providers: which workers they can start, where, and at what price."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from capacity.model.workers import Speed, Worker
from capacity.providers.base import WORKER_ID, Offer
from rollcast.runtime.config import ConfigModel

SystemdUse = Literal["auto", "always", "never"]

_ID = f"^{WORKER_ID.pattern}$"
_NAME = r"^[a-z0-9][a-z0-9_-]{0,31}$"
_PATH = r"^[A-Za-z0-9_./~+-]+$"
_ADDRESS = r"^[A-Za-z0-9][A-Za-z0-9._:%-]{0,254}$"
RECONNECT_TIMEOUT_S = 120.0
"""Seconds after which a worker without its coordinator ends. Other peers retry for ever, but this one costs money."""
_STOP_ALLOWANCE_S = 60.0
"""Seconds allowed for a worker to drain and be stopped, or to give up its machine."""


class WorkerTerms(ConfigModel):
    """The terms of a worker that the planner and the budget use before it runs."""

    usd_per_hour: float = Field(0.0, ge=0.0)
    """Price of the machine while it is on."""
    egress_usd_per_gb: float = Field(0.0, ge=0.0)
    """Price of what it sends; 1 GB = 1e9 bytes. It is then capped at upload_mbit_per_second."""
    minimum_billing_s: float = Field(0.0, ge=0.0)
    """Seconds that are billed however short it ran."""
    billing_granularity_s: float = Field(1.0, gt=0.0)
    """Billed time is a multiple of this many seconds."""
    upload_mbit_per_second: float = Field(0.0, ge=0.0)
    """Upload rate of its link; 0: not known."""
    download_mbit_per_second: float = Field(0.0, ge=0.0)
    """Download rate of its link; 0: not known."""
    rollouts_per_second: float = Field(0.0, ge=0.0)
    """Assumed speed until it is measured; 0: not known, and a plan leaves the worker out."""
    concurrent_rollouts: int = Field(64, ge=1)
    """Rollouts in flight at once at that speed."""
    t_gen_p90_s: float = Field(0.0, ge=0.0)
    """Seconds to generate one rollout at that speed, 90th percentile."""
    preemptions_per_hour: float = Field(0.0, ge=0.0)
    """Mean number of preemptions per hour."""
    hardware: str = Field("", max_length=128)
    """Name of its hardware, shown to people."""
    region: str = Field("", max_length=64)
    """Region of the worker: workers of one region are lost together, and are close to each other."""
    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of the worker's peer (`rollcast config show --role peer`), on top of the pool's."""

    @model_validator(mode="after")
    def _egress_is_bounded(self) -> WorkerTerms:
        if self.egress_usd_per_gb and not self.upload_mbit_per_second:
            raise ValueError("egress_usd_per_gb needs upload_mbit_per_second, the cap that bounds its cost")
        return self

    @property
    def upload_cap_bytes_per_second(self) -> float:
        """Return the upload cap that it is started with; 0: no cap, because its egress is free."""
        return self.upload_mbit_per_second * 125_000.0 if self.egress_usd_per_gb else 0.0

    def offer(self, worker_id: str, provider: str, tail_s: float) -> Offer:
        """Return the offer that the planner and the budget use for this worker."""
        speed = Speed(self.concurrent_rollouts, self.rollouts_per_second, self.t_gen_p90_s)
        worker = Worker(
            worker_id=worker_id,
            speeds=(speed,) if self.rollouts_per_second else (),
            usd_per_hour=self.usd_per_hour,
            upload_bytes_per_second=self.upload_mbit_per_second * 125_000.0,
            download_bytes_per_second=self.download_mbit_per_second * 125_000.0,
            egress_usd_per_gb=self.egress_usd_per_gb,
            preemptions_per_hour=self.preemptions_per_hour,
            name=worker_id,
            hardware=self.hardware,
            provider=provider,
            region=self.region,
        )
        return Offer(
            worker=worker, minimum_s=self.minimum_billing_s, granularity_s=self.billing_granularity_s, tail_s=tail_s
        )


class LocalPool(WorkerTerms):
    """Workers as processes of this machine, at the lowest priority."""

    kind: Literal["local"] = "local"
    """This kind."""
    name: str = Field("local", pattern=_NAME)
    """Name under which spending is counted."""
    workers: int = Field(1, ge=1, le=256)
    """Most workers that may run at once."""

    def worker_ids(self) -> list[str]:
        """Return the ids of all workers of this pool."""
        return [f"{self.name.replace('_', '-')}-{number}" for number in range(1, self.workers + 1)]


class SshHost(WorkerTerms):
    """One machine that ssh reaches."""

    id: str = Field(pattern=_ID)
    """The worker's name, unique among all providers."""
    address: str = Field(pattern=_ADDRESS)
    """Host name, address, or alias of ssh's configuration."""
    user: str = Field("", pattern=r"^([a-z_][a-z0-9_-]{0,31})?$")
    """Login name; empty: ssh's own choice."""
    port: int = Field(0, ge=0, le=65535)
    """Port of its sshd; 0: ssh's own choice."""
    python: str = Field("python3", pattern=_PATH)
    """Interpreter there with Rollcast installed."""
    folder: str = Field("~/.rollcast/workers", pattern=_PATH)
    """Folder on that machine for identities, versions and logs of workers."""


class SshPool(ConfigModel):
    """Workers on machines that ssh reaches, one on each."""

    kind: Literal["ssh"] = "ssh"
    """This kind."""
    name: str = Field("ssh", pattern=_NAME)
    """Name under which spending is counted."""
    ssh: str = Field("ssh", pattern=_PATH)
    """Command of OpenSSH's client."""
    config_file: Path | None = None
    """Configuration for it; none: ssh's own choice."""
    known_hosts: Path | None = None
    """Host keys; none: ssh's own choice. A host that is not in it is refused."""
    identity_file: Path | None = None
    """Private key; none: ssh's own choice, the agent included."""
    connect_timeout_s: int = Field(10, ge=1, le=120)
    """Seconds within which a connection must be established."""
    systemd: SystemdUse = "auto"
    """Whether workers are units of the user's systemd there (`loginctl enable-linger` lets them stay), or processes."""
    hosts: list[SshHost] = Field(min_length=1, max_length=1024)
    """The machines."""
    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of every peer, on top of that of [providers]."""

    def worker_ids(self) -> list[str]:
        """Return the ids of all workers of this pool."""
        return [host.id for host in self.hosts]


class SkyOffer(WorkerTerms):
    """A kind of cloud machine, as SkyPilot names it."""

    id: str = Field(pattern=r"^[a-z][a-z0-9-]{0,20}$")
    """Beginning of its workers' names."""
    workers: int = Field(1, ge=1, le=256)
    """Most workers of this kind that may run at once."""
    resources: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """`resources` of SkyPilot's task: infra, accelerators, use_spot, disk_size, image_id ..."""

    def worker_ids(self) -> list[str]:
        """Return the ids of all workers of this kind."""
        return [f"{self.id}-{number}" for number in range(1, self.workers + 1)]


class SkyPool(ConfigModel):
    """Workers on clouds, by way of SkyPilot: one cluster of one machine each."""

    kind: Literal["sky"] = "sky"
    """This kind."""
    name: str = Field("sky", pattern=_NAME)
    """Name under which spending is counted."""
    sky: str = Field("sky", pattern=_PATH)
    """SkyPilot's command."""
    offers: list[SkyOffer] = Field(min_length=1, max_length=256)
    """The kinds of machines that may be rented."""
    setup: str = Field("pip install --quiet 'rollcast[peer]'", max_length=16_384)
    """Shell commands that install Rollcast on a new machine."""
    autodown_minutes: int = Field(10, ge=1, le=1440)
    """Minutes after which a machine whose worker has ended takes itself down, with or without a coordinator."""
    teardown_s: float = Field(300.0, gt=0.0)
    """Seconds that giving a machine back takes at most; it is paid for meanwhile."""
    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of every peer, on top of that of [providers]."""

    def worker_ids(self) -> list[str]:
        """Return the ids of all workers of this pool."""
        return [worker_id for offer in self.offers for worker_id in offer.worker_ids()]


Pool = Annotated[LocalPool | SshPool | SkyPool, Field(discriminator="kind")]


def tail_s(peer: dict[str, Any], machine_s: float = 0.0) -> float:
    """Return the seconds for which a worker may cost money once it should stop, or once the coordinator is lost.

    Args:
        peer: the peer's configuration; without a coordinator it ends after its ``reconnect_timeout_s``.
        machine_s: seconds from its end until its machine is given back.
    """
    return float(peer.get("reconnect_timeout_s", RECONNECT_TIMEOUT_S)) + _STOP_ALLOWANCE_S + machine_s
