"""Configuration of a peer process: a worker, or with role "origin" the holder of published versions."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from rollcast.runtime.config import ConfigModel


class EngineConfig(ConfigModel):
    """Rollout generation."""

    concurrent_rollouts: int = Field(64, ge=1)
    """Rollouts generated in one batch."""
    compilation_cache: Path | None = None
    """Folder of jax's persistent compilation cache; none: no cache."""


class LinkConfig(ConfigModel):
    """Chunk links to other peers."""

    host: str = "127.0.0.1"
    """Interface to listen on for chunk links (always mutual TLS)."""
    port: int = Field(0, ge=0, le=65535)
    """Port to listen on; 0 lets the system choose."""
    advertise: str = ""
    """host:port that others dial; empty: the bound address. "none": cannot be dialled."""
    credit_chunks: int = Field(32, ge=1)
    """Chunks that a sender may have in flight to us on one link."""
    stall_timeout_s: float = Field(3.0, gt=0.0)
    """A version without a new chunk for this long is asked for from a fallback too."""


class StoreConfig(ConfigModel):
    """Versions kept on disk."""

    keep_versions: int = Field(8, ge=2)
    """Newest versions kept; older ones are removed once nobody reads them."""
    retry_s: float = Field(15.0, gt=0.0)
    """Seconds until a version that could not be stored is received again; the third failure in a row ends the peer."""


class PeerConfig(ConfigModel):
    """A peer: receives versions, relays them, generates rollouts."""

    role: Literal["peer", "origin"] = "peer"
    """"origin" holds versions for others and generates nothing."""
    name: str = Field("peer", pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")
    """Shown to the operator."""
    invite: SecretStr = SecretStr("")
    """Invite string from the operator."""
    invite_file: Path | None = None
    """File that holds the invite; waited for at start."""
    state_folder: Path = Path("peer-state")
    """Identity, certificate and received versions."""
    engine: EngineConfig = EngineConfig()
    """Rollout generation; ignored by the origin."""
    link: LinkConfig = LinkConfig()
    """Chunk links."""
    store: StoreConfig = StoreConfig()
    """Versions on disk."""
    join_timeout_s: float = Field(60.0, gt=0.0)
    """Seconds to reach the coordinator at start before giving up."""
    reconnect_timeout_s: float = Field(120.0, gt=0.0)
    """Seconds to keep trying when the coordinator is away."""
