"""Configuration of `rollcast up`: every process of one run on this machine."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from coordinator.config.config import CoordinatorConfig
from learner.config import LearnerConfig
from peer.config import PeerConfig
from rollcast.runtime.config import ConfigModel


class UpConfig(ConfigModel):
    """One coordinator, one learner, one origin and some peers, as processes on loopback."""

    peers: int = Field(3, ge=1, le=64)
    """How many peers are started."""
    runs_folder: Path = Path("runs")
    """Each run makes its own folder here; `latest` points to the newest."""
    start_timeout_s: float = Field(60.0, gt=0.0)
    """Seconds until the coordinator must listen."""
    stop_timeout_s: float = Field(15.0, gt=0.0)
    """Seconds that a process gets to stop in order before it is killed."""
    restarts_max: int = Field(10, ge=0)
    """How often each process is restarted after it was killed or crashed, before the run ends, or goes on without it if
    it is a peer."""
    coordinator: CoordinatorConfig = CoordinatorConfig()
    """The coordinator."""
    learner: LearnerConfig = LearnerConfig()
    """The learner."""
    origin: PeerConfig = PeerConfig(role="origin", name="origin")
    """The holder of published versions."""
    peer: PeerConfig = PeerConfig()
    """Every peer; names get a number."""
