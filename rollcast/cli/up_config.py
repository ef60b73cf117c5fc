"""Configure `rollcast up`: every process of one run on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, model_validator

from coordinator.config.config import CoordinatorConfig
from learner.config import LearnerConfig
from peer.config import PeerConfig
from rollcast.runtime.config import ConfigModel, describe

#: A key of a process's own file in a sentence: sections with dots between them, or a word with an underscore.
_OWN_KEY = re.compile(r"(?<![\w./-])[a-z]\w*(?:\.[a-z]\w*)+(?![\w/])|(?<![\w./-])[a-z]+_\w+(?![\w/])")
_KIND = re.compile(r"\{[^}]*\}|\[\]")  # in a described key, of a section that has several kinds: `task{jsonl}.path`


class DevicesConfig(ConfigModel):
    """Division of this machine's GPUs or TPU chips among the learner and the peers."""

    assign: bool = True
    """Whether `up` gives each process devices of its own, or a share of a GPU's memory. Otherwise every process sees
    all devices, as CUDA_VISIBLE_DEVICES and the like leave it."""
    learner_memory_share: float = Field(0.5, gt=0.0, lt=0.95)
    """Share of a GPU's memory that the learner takes where peers use the same GPU; they divide the rest."""


class UpConfig(ConfigModel):
    """One coordinator, one learner, one origin and some peers, as processes on loopback."""

    peers: int = Field(3, ge=0, le=64)
    """Number of peers to start; 0: others join with an invite."""
    runs_folder: Path = Path("runs")
    """Folder in which each run creates its own; `latest` points to the newest."""
    start_timeout_s: float = Field(60.0, gt=0.0)
    """Seconds of processor time within which the coordinator must listen. By the clock a busy machine may take longer,
    as long as the coordinator gets on. Loading the task does not count: it has a deadline of its own."""
    stop_timeout_s: float = Field(15.0, gt=0.0)
    """Seconds that a process has to stop in order before it is killed."""
    restarts_max: int = Field(10, ge=0)
    """Most restarts of each process after it was killed or crashed. After that the run ends, or continues without the
    process if it is a peer."""
    devices: DevicesConfig = DevicesConfig()
    """Devices of the learner and the peers."""
    coordinator: CoordinatorConfig = CoordinatorConfig()
    """Settings of the coordinator."""
    learner: LearnerConfig = LearnerConfig()
    """Settings of the learner."""
    origin: PeerConfig = PeerConfig(role="origin", name="origin")
    """Settings of the origin, which keeps the published versions."""
    peer: PeerConfig = PeerConfig()
    """Settings of every peer; a number is appended to each name."""

    @model_validator(mode="after")
    def _learner_can_score_rollouts(self) -> UpConfig:
        self.learner.check_swap(self.coordinator.lease.at_version_swap)
        return self


def with_full_keys(text: str, section: str) -> str:
    """Return a message of one process with its keys as they are in the file of `rollcast up`.

    Args:
        section: the process's section: coordinator, learner, origin or peer.
    """
    keys = {_KIND.sub("", key) for key, _, _ in describe(UpConfig)}

    def full(found: re.Match[str]) -> str:
        key = f"{section}.{found[0]}"
        return key if key in keys else found[0]

    return _OWN_KEY.sub(full, text)
