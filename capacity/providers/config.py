"""Configure how providers start workers. The workers themselves, their prices and links are rows of the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from capacity.model.workers import PATH
from rollcast.runtime.config import ConfigModel

SystemdUse = Literal["auto", "always", "never"]

_PATH = f"^{PATH.pattern}$"
RECONNECT_TIMEOUT_S = 120.0
"""Seconds after which a worker without its coordinator ends. Other peers retry for ever, but this one costs money."""
_STOP_ALLOWANCE_S = 60.0
"""Seconds allowed for a worker to drain and be stopped, or to give up its machine."""


class LocalConfig(ConfigModel):
    """Workers with start = local: processes of this machine, at the lowest priority."""

    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of these peers, on top of that of [providers]."""


class SshConfig(ConfigModel):
    """Workers with start = ssh: machines that ssh reaches, one worker on each."""

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
    python: str = Field("python3", pattern=_PATH)
    """Interpreter there with Rollcast installed, where the pool's column `python` is empty."""
    folder: str = Field("~/.rollcast/workers", pattern=_PATH)
    """Folder on those machines for identities, versions and logs of workers."""
    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of these peers, on top of that of [providers]."""


RELEASE = "ROLLCAST_RELEASE"  # environment variable of new machines: where they install Rollcast from

# Nodes of Slurm, and images whose Python a distribution manages, let pip write into an environment only.
_SKY_SETUP = f"""\
python3 -m venv ~/.rollcast/venv &&
~/.rollcast/venv/bin/pip install --quiet "rollcast[peer,cuda12] @ ${RELEASE}"
"""


class SkyConfig(ConfigModel):
    """Workers with start = sky: machines of clouds by way of SkyPilot, one cluster of one machine each."""

    sky: str = Field("sky", pattern=_PATH)
    """SkyPilot's command."""
    resources: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """`resources` of SkyPilot's task besides those of the pool's columns: disk_size, image_id ..."""
    release: str = Field("", max_length=1024)
    """What new machines install: the URL of a release's wheel, best with its `#sha256=...`."""
    setup: str = Field(_SKY_SETUP, max_length=16_384)
    """Shell commands that install Rollcast on a new machine, by default for NVIDIA's GPUs and into an environment of
    its own; the environment has `release` as ROLLCAST_RELEASE."""
    autodown_minutes: int = Field(10, ge=1, le=1440)
    """Minutes after which a machine whose worker has ended takes itself down, with or without a coordinator."""
    teardown_s: float = Field(300.0, gt=0.0)
    """Seconds that giving a machine back takes at most; it is paid for meanwhile."""
    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of these peers, on top of that of [providers]."""


class KubernetesConfig(ConfigModel):
    """Workers with start = kubernetes: Jobs of a cluster, of one pod each."""

    kubeconfig: Path | None = None
    """File with the cluster's address and credentials; none: those of our own pod, else ~/.kube/config."""
    context: str = Field("", max_length=253)
    """Context of that file; empty: its current one."""
    namespace: str = Field("rollcast", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    """Namespace in which the Jobs and their Secrets are created."""
    image: str = Field("", max_length=1024)
    """The peer's image, as `make release` names it, with the ending of its accelerator."""
    hardware_label: str = Field("rollcast/hardware", max_length=317)
    """Label of nodes that is compared with the pool's column `hardware`; empty: any node with such accelerators."""
    accelerator_resource: str = Field("nvidia.com/gpu", max_length=317)
    """What the device plugin calls an accelerator; empty: workers run on processors and ask for none."""
    memory_gib_per_accelerator: int = Field(32, ge=1, le=4096)
    """Memory of a pod for each accelerator of its row."""
    storage_gib: int = Field(50, ge=1, le=65_536)
    """Most that a pod may keep on its node's disk: versions, above all."""
    tolerations: list[dict[str, Any]] = Field(default_factory=list, max_length=32)
    """Tolerations of the pods, for nodes with taints."""
    queue: str = Field("", max_length=63)
    """Kueue's local queue, which then decides when a worker starts; empty: none."""
    hours_max: float = Field(168.0, gt=0.0, le=8760.0)
    """Hours after which the cluster itself ends a worker, whatever became of the coordinator."""
    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of these peers, on top of that of [providers]."""


class ProviderConfigs(ConfigModel):
    """How each provider starts its workers."""

    peer: dict[str, Any] = Field(default_factory=dict, max_length=32)
    """Configuration of every started peer; `rollcast config show --role peer` lists the keys."""
    local: LocalConfig = LocalConfig()
    """Processes of this machine."""
    ssh: SshConfig = SshConfig()
    """Machines that ssh reaches."""
    sky: SkyConfig = SkyConfig()
    """Machines of clouds, by way of SkyPilot."""
    kubernetes: KubernetesConfig = KubernetesConfig()
    """Jobs of a Kubernetes cluster."""


def tail_s(peer: dict[str, Any], machine_s: float = 0.0) -> float:
    """Return the seconds for which a worker may cost money once it should stop, or once the coordinator is lost.

    Args:
        peer: the peer's configuration; without a coordinator it ends after its ``reconnect_timeout_s``.
        machine_s: seconds from its end until its machine is given back.
    """
    return float(peer.get("reconnect_timeout_s", RECONNECT_TIMEOUT_S)) + _STOP_ALLOWANCE_S + machine_s
