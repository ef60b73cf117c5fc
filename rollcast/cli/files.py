"""Read configuration files by role, each with its own class."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

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

#: Role -> the command that runs it, where it is not the role's name.
_COMMANDS: dict[Role, str] = {"peer": "peer run"}

_SHOW = "rollcast config show"  # in an error of parse_config, which does not know the role

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
    values = read_toml(path)
    try:
        return parse_config(override(values, settings), config_class(role), source=str(path))
    except ConfigError as error:
        if values.keys() & {"demand", "lengths"}:
            fix = (
                f"plan with it: `rollcast capacity plan --demand {path}`; `rollcast init` writes configurations of runs"
            )
            raise ConfigError(f"{path} is a demand for the planner, not a configuration", fix=fix) from error
        meant = _role_of(values)
        if meant is None or meant == role:
            error.fix = error.fix.replace(_SHOW, f"{_SHOW} --role {role}")
            raise
        what = f"{path} is not a configuration of {role}"
        fix = f"use it with `rollcast {_COMMANDS.get(meant, meant)}`, or give a file with the sections of {role}"
        raise ConfigError(what, cause=f"it has the sections of {meant}", fix=fix) from error


def guess_role(path: Path) -> Role:
    """Return the role whose sections a file has.

    Raises:
        ConfigError: the file fits no role.
    """
    values = read_toml(path)
    role = _role_of(values)
    if role is None:
        raise ConfigError(
            f"cannot tell which process {path} is for",
            cause=f"no process has all of its sections: {', '.join(sorted(values))}",
            fix="give the process with --role",
        )
    return role


def _role_of(values: Mapping[str, Any]) -> Role | None:
    """Return the first role that has all sections of a table; None if there is none."""
    if not values.keys().isdisjoint({"coordinator", "learner", "origin", "peer", "peers"}):
        return "up"  # the only role with these keys
    roles: tuple[Role, ...] = (*ROLES_OF_UP, "gateway", "scorer", "cell", "sft")
    return next((role for role in roles if values.keys() <= config_class(role).model_fields.keys()), None)
