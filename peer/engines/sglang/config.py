"""Settings of the engine that uses an SGLang server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, model_validator
from yarl import URL

from rollcast.runtime.config import ConfigModel
from rollcast.runtime.process import is_loopback


class SglangConfig(ConfigModel):
    """The server of ``engine.kind = "sglang"``. It serves this peer alone; several servers need a peer each."""

    url: str = Field("http://127.0.0.1:30000", pattern=r"^https?://[^\s]+$")
    """Address of the server, which was started with a model of the run's architecture and precision."""
    api_key: SecretStr = SecretStr("")
    """The server's API key, sent as a bearer token; its admin key if it has one. Empty: it has none."""
    folder: Path | None = None
    """Folder in which versions are written for the server, which must see it under the same path. It needs room for
    three versions. None: the folder sglang in the state folder."""
    answer_timeout_s: float = Field(300.0, gt=0.0)
    """Longest time that the server may take for one slice of rollouts, in seconds."""
    away_timeout_s: float = Field(600.0, ge=0.0)
    """Longest time to wait for a server that does not answer, because it starts or restarts, in seconds."""
    load_timeout_s: float = Field(1800.0, gt=0.0)
    """Longest time that the server may take to read a version from the folder, in seconds."""

    @model_validator(mode="after")
    def _key_is_not_sent_in_the_clear(self) -> SglangConfig:
        address = URL(self.url)
        if self.api_key.get_secret_value() and address.scheme == "http" and not is_loopback(address.host or ""):
            raise ValueError("api_key would cross the network unencrypted: use an https address")
        return self
