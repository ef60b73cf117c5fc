"""Write SkyPilot's task files: one for each row of the pool, launched once for each worker.

Source: SkyPilot's task YAML and command line, version 0.14 (docs.skypilot.co).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import tomli_w

from capacity.emit.chosen import ChosenRow, Files, peer_settings
from capacity.emit.yaml import yaml_of
from capacity.providers.config import RELEASE, SkyConfig
from capacity.providers.sky import INVITE, task_of

_WORKER = "ROLLCAST_WORKER"


def files_of(rows: Sequence[ChosenRow]) -> Files:
    """Return a task and a peer's configuration for each row, and the script that launches every worker.

    The invite is SkyPilot's secret ROLLCAST_INVITE: the script takes it from the environment.
    """
    config = SkyConfig()
    texts: dict[str, str] = {}
    for one in rows:
        texts[f"{one.name}.yaml"] = yaml_of(_task(one, config))
        settings = {**peer_settings(one.row), "invite_file": "invite.txt", "state_folder": "state"}
        texts[f"{one.name}.peer.toml"] = tomli_w.dumps(settings)
    texts["launch.sh"] = _script(rows, config)
    count = sum(len(one.worker_ids) for one in rows)
    wheel = f"export {RELEASE}=https://HOST/rollcast-VERSION-py3-none-any.whl"
    return Files(texts, (wheel, f'export {INVITE}="$(rollcast invite --quota {count})"', "sh launch.sh"))


def _task(one: ChosenRow, config: SkyConfig) -> dict[str, Any]:
    task = task_of(f"rollcast-{one.name}", one.row, config, f"{one.name}.peer.toml")
    run = task["run"].rstrip("\n") + f' --set "name=${_WORKER}"\n'
    return {**task, "envs": {RELEASE: None, _WORKER: one.name}, "run": run}  # None: SkyPilot asks for --env


def _script(rows: Sequence[ChosenRow], config: SkyConfig) -> str:
    lines = [
        "#!/bin/sh",
        "# Launches each worker as a cluster of its own. A cluster takes itself down once its worker has ended.",
        "set -eu",
        f': "${{{INVITE}:?make one with rollcast invite --quota N}}"',
        f': "${{{RELEASE}:?set it to the URL of a release wheel that the machines install}}"',
        'cd "$(dirname "$0")"',
    ]
    for one in rows:
        for worker_id in one.worker_ids:
            command = ["sky", "launch", "--yes", "--detach-run", "--cluster", f"rollcast-{worker_id}"]
            command += ["--env", f"{_WORKER}={worker_id}", "--secret", INVITE, "--env", RELEASE]
            command += ["--down", "--idle-minutes-to-autostop", str(config.autodown_minutes), f"{one.name}.yaml"]
            lines.append(shlex.join(command))
    return "\n".join(lines) + "\n"
