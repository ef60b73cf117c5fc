"""Run workers on clouds through SkyPilot's command: one cluster of one machine for each worker.

The provider writes a task file and launches it. The cluster's name is derived from the tag, so that `sky status` finds
it, and SkyPilot takes the machine down by itself once the worker has ended. The invite goes through the environment of
the command, as one of SkyPilot's secrets: it is in no file on this machine and in no argument.

Source: SkyPilot's task YAML and command line, version 0.14 (docs.skypilot.co).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from capacity.inputs.pool.rows import PoolRow
from capacity.inputs.pool.starts import sky_accelerators
from capacity.providers.base import Listing, Offer, Running, WorkerTag
from capacity.providers.commands import Done, run_command
from capacity.providers.config import RELEASE, ProviderConfigs, SkyConfig, tail_s
from capacity.providers.hosts import peer_config
from capacity.providers.machines import Machine, find_machine
from capacity.providers.tag_names import name_of, tag_of
from rollcast.runtime.errors import ProviderFailed
from rollcast.runtime.run_folder import run_folder_error, write_atomically

INVITE = "ROLLCAST_INVITE"
_RUN = f"""\
umask 077
mkdir -p ~/.rollcast
cd ~/.rollcast
printf '%s\\n' "${INVITE}" > invite.txt
unset {INVITE}
PATH=~/.rollcast/venv/bin:$PATH
exec python -P -m rollcast.cli.main peer run peer.toml
"""
_QUIET = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "NO_COLOR": "1"}
_GONE = ("STOPPED", "TERMINATED")


class SkyProvider:
    """The provider of cloud machines; see Provider.

    It keeps a folder for every tag that was started or stopped, because a cloud does not remember machines that ended.
    """

    def __init__(self, name: str, machines: Sequence[Machine], config: ProviderConfigs, folder: Path) -> None:
        """Keep the configuration; nothing is started.

        Args:
            folder: folder for task files, one folder a tag.
        """
        self._name = name
        self._config = config.sky
        self._folder = folder
        self._machines = {machine.worker_id: machine for machine in machines}
        self._peers = {machine.worker_id: machine.peer(config.peer, config.sky.peer) for machine in machines}

    @property
    def name(self) -> str:
        return self._name

    async def offers(self, *, deadline_s: float) -> tuple[Offer, ...]:
        machine_s = self._config.autodown_minutes * 60.0 + self._config.teardown_s
        return tuple(machine.offer(tail_s(self._peers[one], machine_s)) for one, machine in self._machines.items())

    async def start(self, tag: WorkerTag, invite: str, *, deadline_s: float) -> Running:
        if not self._config.release and RELEASE in self._config.setup:
            raise ProviderFailed(
                "nothing says from where a new machine installs Rollcast",
                cause="it is not published in an index, and providers.sky.release is empty",
                fix="set it to the URL of a release's wheel, or write commands of your own into providers.sky.setup",
            )
        name, mark = name_of(tag), self._folder / str(tag)
        for found in (await self.list(tag.run_id, deadline_s=deadline_s)).running:
            if found.tag == tag:
                return found
        if mark.exists():
            raise ProviderFailed(f"{name} was started or stopped before, and a tag is not used again")
        task = await asyncio.to_thread(self._write, tag, mark)
        command = ["launch", "--yes", "--detach-run", "--cluster", name, "--secret", INVITE]
        command += ["--down", "--idle-minutes-to-autostop", str(self._config.autodown_minutes), str(task)]
        await self._sky(command, deadline_s, {INVITE: invite})
        return Running(tag, f"cluster {name}")

    async def stop(self, tag: WorkerTag, *, deadline_s: float) -> None:
        await asyncio.to_thread(_make_folder, self._folder / str(tag))
        await self._sky(["down", "--yes", name_of(tag)], deadline_s)
        if any(found.tag == tag for found in (await self.list(tag.run_id, deadline_s=deadline_s)).running):
            raise ProviderFailed(f"cluster {name_of(tag)} is still there after `sky down`")

    async def list(self, run_id: str, *, deadline_s: float) -> Listing:
        done = await self._sky(["status", "--refresh", "--output", "json"], deadline_s)
        try:
            clusters = [(str(one["name"]), str(one["status"]), one.get("launched_at")) for one in _records(done.output)]
        except (ValueError, KeyError, TypeError) as error:
            raise ProviderFailed(
                "`sky status` printed no list of clusters", cause=str(error), fix="use SkyPilot 0.10 or newer"
            ) from None
        tagged = [(tag_of(name, run_id), name, at) for name, status, at in clusters if status.upper() not in _GONE]
        return Listing(
            tuple(Running(tag, f"cluster {name}", float(at or 0.0)) for tag, name, at in tagged if tag is not None)
        )

    async def close(self) -> None:
        pass

    def _write(self, tag: WorkerTag, folder: Path) -> Path:
        machine = find_machine(self._machines, tag.worker_id, self.name)
        _make_folder(folder)
        config = peer_config(tag, self._peers[tag.worker_id], machine.upload_cap_bytes_per_second, remote=True)
        config |= {"invite_file": "invite.txt", "state_folder": "state"}
        peer_file = (folder / "peer.toml").absolute()
        task = task_of(f"rollcast-{tag.worker_id}", machine.row, self._config, str(peer_file))
        try:
            write_atomically(peer_file, tomli_w.dumps(config).encode(), mode=0o600)
            write_atomically(folder / "task.yaml", json.dumps(task, indent=2).encode(), mode=0o600)
        except OSError as error:
            raise run_folder_error(folder, error) from None
        return folder / "task.yaml"

    async def _sky(
        self, arguments: Sequence[str], deadline_s: float, environment: Mapping[str, str] | None = None
    ) -> Done:
        command = [self._config.sky, *arguments]
        done = await run_command(command, deadline_s=deadline_s, environment={**_QUIET, **(environment or {})})
        if done.status:
            raise ProviderFailed(
                f"`sky {arguments[0]}` failed",
                cause=done.last_words(),
                fix="run `sky check`, then that command by hand",
            )
        return done


def task_of(name: str, row: PoolRow, config: SkyConfig, peer_file: str) -> dict[str, Any]:
    """Return SkyPilot's task for one worker; written as JSON it is valid YAML."""
    return {
        "name": name,
        "num_nodes": 1,
        "resources": resources_of(row, config),
        "file_mounts": {"~/.rollcast/peer.toml": peer_file},
        "envs": {RELEASE: config.release} if config.release else {},  # SkyPilot refuses an empty one
        "secrets": {INVITE: None},
        "setup": config.setup,
        "run": _RUN,
    }


def resources_of(row: PoolRow, config: SkyConfig) -> dict[str, Any]:
    """Return the ``resources`` of SkyPilot's task: the configuration's, and on top what the row says."""
    resources = {**config.resources, "use_spot": row.spot}
    if row.infra:
        resources["infra"] = row.infra
    if row.instance_type:
        resources["instance_type"] = row.instance_type
    else:
        resources["accelerators"] = sky_accelerators(row)
    return resources


def _records(output: bytes) -> list[dict[str, Any]]:
    """Parse the JSON list of clusters; SkyPilot may print a line for people before it.

    Raises:
        ValueError: the output has no JSON list.
    """
    text = output.decode(errors="replace")
    records = json.loads(text[max(0, text.find("[")) :])
    if not isinstance(records, list):
        raise ValueError("no list")
    return records


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise run_folder_error(folder, error) from None
