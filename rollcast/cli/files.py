"""Read configuration files by role, each with its own class."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from rollcast.runtime.config import ConfigModel, override, parse_config, read_toml
from rollcast.runtime.errors import ConfigError

Role = Literal["up", "coordinator", "gateway", "scorer", "cell", "learner", "peer", "sft"]

#: Role -> module and class of its configuration; imported only when asked for.
_CLASSES: dict[Role, tuple[str, str]] = {
    "up": ("rollcast.cli.up_config", "UpConfig"),
    "coordinator": ("coordinator.config.config", "CoordinatorConfig"),
    "gateway": ("coordinator.gateway.config", "GatewayConfig"),
    "scorer": ("coordinator.scorer.config", "ScorerConfig"),
    "cell": ("rollcast.cell.config", "UplinkConfig"),
    "learner": ("learner.config", "LearnerConfig"),
    "peer": ("peer.config", "PeerConfig"),
    "sft": ("learner.supervised.config", "SftConfig"),
}

ROLES_OF_UP: tuple[Role, ...] = ("coordinator", "learner", "peer")


def config_class(role: Role) -> type[ConfigModel]:
    """Return the configuration class of a role."""
    module, name = _CLASSES[role]
    found: type[ConfigModel] = getattr(importlib.import_module(module), name)
    return found


def load(path: Path, role: Role, settings: Iterable[str] = ()) -> ConfigModel:
    """Read a role's file and apply ``section.key=value`` settings to it.

    Raises:
        ConfigError: see read_toml, override and parse_config.
    """
    return parse_config(override(read_toml(path), settings), config_class(role), source=str(path))


def guess_role(path: Path) -> Role:
    """Return the role whose sections a file has.

    Raises:
        ConfigError: the file fits no role.
    """
    sections = set(read_toml(path))
    if sections & {"coordinator", "origin", "peer"}:
        return "up"
    fits = [
        role
        for role in (*ROLES_OF_UP, "gateway", "scorer", "cell", "sft")
        if sections <= set(config_class(role).model_fields)
    ]
    if not fits:
        raise ConfigError(
            f"cannot tell which process {path} is for",
            cause=f"no process has all of its sections: {', '.join(sorted(sections))}",
            fix="give the process with --role",
        )
    return fits[0]
