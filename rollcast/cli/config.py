"""`rollcast config show|validate|paths`: list the settings, check a file, print where files are."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from cyclopts import App

from rollcast.cli.files import ROLES_OF_UP, Role, config_class, guess_role, load
from rollcast.cli.options import THIS_RUN, Json, Settings
from rollcast.cli.peer.folders import config_file, state_folder
from rollcast.cli.peer.logs import log_file
from rollcast.cli.roles import require_extra
from rollcast.runtime.config import describe, dump_json
from rollcast.runtime.errors import ConfigError, RollcastError
from rollcast.runtime.run_folder import RunFolder

if TYPE_CHECKING:
    from coordinator.config.config import CoordinatorConfig
    from learner.config import LearnerConfig

app = App(name="config", help="Show and validate configuration files, and print where they are.")

#: Default as JSON -> how a key without one is listed: TOML has no null, and "required" is no value to copy.
_NO_VALUE = {"null": "{} (not set)", '"required"': "{} (required)"}


@app.command
def show(
    file: Path | None = None,
    /,
    *,
    role: Role | None = None,
    json_output: Json = False,
) -> int:
    """Print a configuration file with its defaults, or without a file every key of a role with its meaning.

    Parameters
    ----------
    file
        Configuration file (TOML) of any process.
    role
        Which process the file is for; guessed from its sections if not given.
    json_output
        Print JSON.
    """
    if file is not None:
        print(dump_json(load(file, role or guess_role(file))))
        return 0
    if role is None:
        raise ConfigError("no file and no role is given", fix=f"give a file, or --role {'|'.join(get_args(Role))}")
    rows = describe(config_class(role))
    if json_output:
        print(
            json.dumps([{"key": key, "default": json.loads(default), "meaning": text} for key, default, text in rows])
        )
        return 0
    columns = shutil.get_terminal_size().columns
    for key, default, meaning in rows:  # a table would cut long keys off in a narrow terminal
        print(_NO_VALUE[default].format(key) if default in _NO_VALUE else f"{key} = {default}")
        print(textwrap.fill(meaning, columns, initial_indent="    ", subsequent_indent="    "))
    return 0


@app.command
def validate(file: Path, /, *, role: Role | None = None, setting: Settings = (), task: bool = True) -> int:
    """Check a configuration file, and that its task can be loaded. The exit status is 0 if all is well.

    Parameters
    ----------
    file
        Configuration file (TOML) of any process.
    role
        Which process the file is for; guessed from its sections if not given.
    setting
        Override one setting of the file, as the command that runs it does; repeat for several.
    task
        Load the task as the coordinator will: its data, held-out problems and tokenizer; --no-task skips it.
    """
    found = role or guess_role(file)
    config = load(file, found, setting)
    for needed in ROLES_OF_UP if found == "up" else (found,):
        require_extra(needed)
    if found in ("up", "learner"):
        check_model(cast("LearnerConfig", getattr(config, "learner", config)))
    coordinator = getattr(config, "coordinator", config)
    if task and found in ("up", "coordinator"):
        _try_task(cast("CoordinatorConfig", coordinator), file, found)
    print(f"{file}: valid configuration of {found}")
    return 0


def check_model(config: LearnerConfig) -> None:
    """Check that the published model that a learner starts from is there and can be used; no weights are read.

    Raises:
        ModelError: its folder, its configuration or its weights are missing, or its architecture is not supported.
    """
    folder = config.init_from
    if folder is None:
        return
    from rollcast.policy.hub.config import read_config
    from rollcast.wire.text.model_folder import CONFIG, ModelFolder

    model = ModelFolder(folder)
    read_config(model.read_json(CONFIG), str(folder / CONFIG))
    model.tensors()


def _try_task(config: CoordinatorConfig, file: Path, role: Role) -> None:
    """Load the task; an error says where its keys stand."""
    from coordinator.prompts.loading import try_task
    from rollcast.cli.up_config import with_full_keys

    print("loading the task ...", file=sys.stderr)
    try:
        print(try_task(config))
    except RollcastError as error:
        fix = with_full_keys(error.fix, "coordinator") if role == "up" else error.fix
        error.fix = f"{fix} (in {file})" if fix else f"see {file}"
        raise


@app.command
def paths(*, json_output: Json = False) -> int:
    """Print where this user's files are: those of a donor's peer and those of the newest run.

    Parameters
    ----------
    json_output
        Print one JSON object.
    """
    state, run = state_folder(), RunFolder(THIS_RUN.run_folder.resolve())
    found = {
        "peer configuration": config_file(),
        "peer state": state,
        "peer identity": state / "identity.key",
        "peer log": log_file(state),
        "newest run": run.root,
        "its configurations": run.config,
        "its logs": run.logs,
    }
    if json_output:
        print(json.dumps({name: {"path": str(path), "exists": path.exists()} for name, path in found.items()}))
        return 0
    for name, path in found.items():
        print(f"{name:<20} {path}{'' if path.exists() else '  (does not exist)'}")
    return 0
