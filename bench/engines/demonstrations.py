"""Run the demonstration with peers on vLLM, with a mixed fleet, and with adapters in three forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import runs
from peer.config import EngineConfig
from rollcast.cli.processes import Fleet

CONFIG = Path("configs/local.toml")
# vLLM's attention on processors takes no heads of 16. These are as many parameters in all.
_HEADS = ["learner.model.query_heads=4", "learner.model.key_value_heads=2", "learner.model.head_size=32"]
LORA_CONFIG = Path("configs/local-lora.toml")
_LORA_STEPS = 200  # of that configuration
_NOISE_START = 0.01  # Huang et al. 2025, "QeRL", section 4.1

FORMS = ("vllm", "mixed", "lora", "nvfp4", "noise")
"""Peers on vLLM; on both engines; adapters; adapters over a base in NVFP4; adapters, with noise on scales of norms."""

_ADDED = "peer-vllm"
_KEPT = (
    "reward_before",
    "exact_before",
    "exact_after",
    "wall_s",
    "staleness_max_trained",
    "rollouts_dropped",
    "rollouts_unaccounted",
    "trained_twice",
)


class MixedFleet(runs.Story):
    """Adds a peer on vLLM to a run that began with peers on jax."""

    def __init__(self, python: Path) -> None:
        super().__init__()
        self._python = python
        self._added = False
        self.accepted: dict[str, int] = {}
        """Rollouts of each peer that the coordinator accepted."""

    def on_status(self, status: Mapping[str, Any], ended: Mapping[str, int]) -> None:
        """Start the peer at the first status."""
        super().on_status(status, ended)
        self.accepted |= {str(peer["name"]): int(peer["accepted"]) for peer in status["peers"]}
        if not self._added and isinstance(self.fleet, Fleet):
            self._added = True
            peer = self.fleet.config.peer
            engine = EngineConfig.model_validate(peer.engine.model_dump() | {"kind": "vllm", "python": self._python})
            mixed = peer.model_copy(update={"engine": engine})
            self.fleet.config = self.fleet.config.model_copy(update={"peer": mixed})
            self.fleet.add_peer(_ADDED)


def demonstration(name: str, python: Path, runs_folder: Path, steps: int) -> dict[str, float]:
    """Run one form of the demonstration to its end; return its figures, each with the form's name appended.

    Args:
        name: one of FORMS.
        python: the interpreter in whose environment vLLM is installed.
        steps: learner steps; 0: as the configuration says.
    """
    vllm = ["peers=2", 'peer.engine.kind="vllm"', f"peer.engine.python={json.dumps(str(python))}"]
    config, settings = {
        "vllm": (CONFIG, [*_HEADS, *vllm]),
        "mixed": (CONFIG, [*_HEADS, "peers=2", 'peer.engine.kind="jax"']),
        "lora": (LORA_CONFIG, []),
        "nvfp4": (LORA_CONFIG, ['learner.lora.base="nvfp4"']),
        "noise": (LORA_CONFIG, _noise(steps or _LORA_STEPS)),
    }[name]
    if steps:
        settings = [*settings, f"coordinator.run.steps={steps}"]
    story = MixedFleet(python) if name == "mixed" else runs.Story()
    figures = runs.figures_of(runs.run(config, runs_folder, settings, story))
    own = {}
    if isinstance(story, MixedFleet):
        own["vllm_share_mixed"] = story.accepted.get(_ADDED, 0) / sum(story.accepted.values())
    return own | {f"reward_{name}": figures["reward_after"]} | {f"{key}_{name}": figures[key] for key in _KEPT}


def _noise(steps: int) -> list[str]:
    """Return settings of noise that falls over all steps of a run."""
    return [f"learner.lora.noise_start={_NOISE_START}", f"learner.lora.noise_steps={steps}"]
