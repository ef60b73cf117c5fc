"""Declare the configuration of a scorer process."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from coordinator.config.checks import CheckConfig
from coordinator.config.config import VerifierConfig
from rollcast.runtime.config import ConfigModel
from rollcast.runtime.process import is_loopback


class ScorerServeConfig(ConfigModel):
    """Address at which coordinators reach the scorer."""

    host: str = "127.0.0.1"
    """Interface of the HTTP port."""
    port: int = Field(7406, ge=1, le=65535)
    """HTTP port. It has no TLS: put a proxy or an ingress before it where the network is not trusted."""
    secret_file: Path | None = None
    """File with the secret that coordinators send as a bearer token (`secret_file` of their check); required where
    other hosts can connect."""

    @model_validator(mode="after")
    def _others_need_the_secret(self) -> ScorerServeConfig:
        if self.secret_file is None and not is_loopback(self.host):
            raise ValueError("secret_file: other hosts can connect, so a secret is needed: set it")
        return self


class ScorerConfig(ConfigModel):
    """Configuration of a scorer: what it checks, with how many processes, and where it serves."""

    name: str = Field("scorer", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    """Name of the scorer in logs."""
    check: CheckConfig
    """Check of the completions, as in a task."""
    verifier: VerifierConfig = VerifierConfig()
    """Processes that score; `failed_share_max` is the coordinators' own."""
    serve: ScorerServeConfig = ScorerServeConfig()
    """Address at which coordinators reach the scorer."""
