"""Declare the configuration of a gateway process."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from coordinator.config.config import LimitsConfig
from coordinator.config.gateways import LinkAddress
from rollcast.runtime.config import ConfigModel

CORES_MAX = 8


class GatewayServeConfig(ConfigModel):
    """Address at which peers reach the gateway."""

    host: str = "127.0.0.1"
    """Interface of the control port."""
    grpc_port: int = Field(7405, ge=1, le=65535)
    """Control port (gRPC over mutual TLS)."""
    hosts: list[str] = Field([], max_length=16)
    """Further names and addresses for the gateway's certificate."""


class GatewayConfig(ConfigModel):
    """Configuration of a gateway: where it serves peers, and where it finds the coordinator."""

    core: list[LinkAddress] = Field(min_length=1, max_length=CORES_MAX)
    """Where coordinators of the run listen for gateways (their gateways.listen), tried in turn."""
    name: str = Field("gateway", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    """Name of the gateway in logs and metrics."""
    serve: GatewayServeConfig = GatewayServeConfig()
    """Address at which peers reach the gateway."""
    limits: LimitsConfig = LimitsConfig()
    """Limits on what peers send, at each gateway; those of the HTTP port have no effect."""
    invite: Path | None = None
    """File of the invite for gateways, which the coordinator writes to secrets/invite-gateway.txt; for HOST:PORT."""
    state_folder: Path = Path("runs/gateway")
    """Folder of the gateway's identity and certificate, if it has an invite."""
    core_timeout_s: float = Field(3600.0, gt=0.0)
    """Seconds without a coordinator after which the gateway ends with RC203."""

    @model_validator(mode="after")
    def _tls_needs_an_invite(self) -> GatewayConfig:
        if self.invite is None and any("/" not in address for address in self.core):
            raise ValueError("core: a coordinator at HOST:PORT admits gateways with a certificate only: set invite")
        return self
