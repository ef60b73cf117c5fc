"""`rollcast peer join INVITE`: join a run and start the peer in the background."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from rollcast.cli.options import Json
from rollcast.cli.peer.folders import (
    ConfigFile,
    EnginePython,
    InviteText,
    StateFolder,
    config_file,
    config_home,
    only_warnings,
    read_invite_argument,
    state_folder,
)
from rollcast.cli.roles import RoleOptions
from rollcast.cli.roles import peer as run_peer
from rollcast.runtime.errors import ConfigError, MissingExtra, RollcastError, Unreachable
from rollcast.runtime.install import install_command

_JOIN_DEADLINE_S = 60.0
_REPORT_EVERY_S = 5.0  # while the coordinator or the peer has not answered
_ANSWER_DEADLINE_S = 180.0  # jax may take a minute to load on a slow disk


def join(
    invite: InviteText,
    /,
    *,
    name: str | None = None,
    foreground: bool = False,
    start: bool = True,
    engine_python: EnginePython = None,
    state: StateFolder = None,
    config: ConfigFile = None,
    json_output: Json = False,
) -> int:
    """Join a run with the invite that its operator sent. Run it again with a newer invite to switch to that one.

    Parameters
    ----------
    invite
        The invite, or - to read it from standard input, which keeps it out of the shell's history.
    name
        Name of this machine, as the operator sees it; by default its host name.
    foreground
        Run in this terminal until Ctrl-C.
    start
        Start the peer; with --no-start, start it later with `rollcast peer run`.
    config
        Configuration file to write; by default that of this user's peer.
    json_output
        Print one JSON object.
    """
    from peer.donor.install import join as joining  # these imports take a while: not before help is asked for
    from peer.donor.install.first_limits import FirstLimits

    only_warnings()
    engine_python = engine_python and engine_python.absolute()  # the peer may run in another folder
    text = read_invite_argument(invite)
    decoded = joining.peer_invite(text)
    _print_note(f"Joining {decoded.run_id} at {decoded.http_url}, waiting at most {_JOIN_DEADLINE_S:g} s for it ...")
    from peer.donor.check.dial_back import listening_for  # imports aiohttp

    places = joining.peer_paths(config or config_file(), state or state_folder(), state_given=state is not None)
    _need_engine(places.config_file, engine_python)
    peer_id = asyncio.run(_enrol(decoded, places))
    is_new = not places.config_file.exists()
    listening = asyncio.run(listening_for(decoded)) if is_new else joining.ListenSettings()
    limits = asyncio.run(_limits_of_a_donor(decoded, places.state_folder)) if is_new else FirstLimits()
    written = joining.write_configuration(
        places, text, name=name, listening=listening, engine_python=engine_python, limits=limits
    )
    joined = {
        "run_id": decoded.run_id,
        "peer_id": peer_id,
        "name": written.name,
        "config": str(places.config_file),
        "state_folder": str(places.state_folder),
        "advertise": written.link.advertise,
        "limits": limits.lines(),
    }
    if foreground:
        _print_note(f"Joined as {written.name} ({peer_id}). The peer runs here until Ctrl-C.")
        _stop_running(places)
        return run_peer(places.config_file, options=RoleOptions())
    started = _start(places) if start else {"started": "no"}
    answer = {**joined, **started}
    print(json.dumps(answer) if json_output else _next_steps(answer))
    return 0


async def _enrol(invite: Any, places: Any) -> str:
    from rollcast.wire.identity.identity import Identity
    from rollcast.wire.joining.enrol import enrol

    places.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    identity = Identity.load_or_create(places.state_folder / "identity.key")
    waiting = _Waiting("the coordinator to answer", _JOIN_DEADLINE_S)
    reports = asyncio.ensure_future(waiting.report_until_cancelled())
    try:
        enrolment = await enrol(invite, identity, places.state_folder, _JOIN_DEADLINE_S, on_attempt=waiting.on_attempt)
    except Unreachable as error:
        error.fix = (
            "ask the operator whether the run still goes on, and for a new invite if its address has changed; "
            "`rollcast peer check INVITE` measures this machine's way to it"
        )
        raise
    finally:
        reports.cancel()
    return enrolment.peer_id


async def _limits_of_a_donor(invite: Any, state_folder: Path) -> Any:
    """Return the limits for a new machine; none where the run is on this machine: there it is its owner's run."""
    from peer.donor.install.first_limits import FirstLimits, first_limits
    from peer.donor.install.join import is_on_this_machine
    from peer.donor.machine.gpu_sensors import GpuSensors
    from peer.donor.machine.sensors import Sensors
    from peer.reachability.link_speed import InviteHttp

    if is_on_this_machine(invite):
        return FirstLimits()
    _print_note("Measuring the upload, of which the run may use half ...")
    readings = Sensors(state_folder, GpuSensors.here(), wants_idle=False).read()
    try:
        async with InviteHttp(invite) as door:
            upload: float | None = await door.upload()
    except RollcastError as error:
        _print_note(f"The upload could not be measured ({error.code}).")
        upload = None
    return first_limits(readings, upload)


def _need_engine(config_file: Path, engine_python: Path | None) -> None:
    """Report a missing engine at once, rather than later in the daemon's log."""
    import importlib.util

    from peer.config import EngineConfig, PeerConfig
    from peer.engines.vllm.environment import find_vllm
    from rollcast.runtime.config import load_config

    engine = EngineConfig(python=engine_python)
    if config_file.exists():
        engine = load_config(config_file, PeerConfig).engine
        if engine_python not in (None, engine.python):
            fix = f"set engine.python there to {str(engine_python)!r}, and leave --engine-python out"
            raise ConfigError(f"{config_file} exists and has another engine.python", fix=fix)
    if engine.chosen_kind == "vllm":
        find_vllm(engine.python)
    elif engine.chosen_kind == "jax" and importlib.util.find_spec("jax") is None:
        raise MissingExtra(
            "generating rollouts needs packages that are not installed",
            cause="jax is not installed",
            fix=install_command("peer"),
        )


def _stop_running(places: Any) -> None:
    """Stop a peer that is already running, so that it uses the new invite when it starts again."""
    from peer.donor.install import running
    from peer.donor.install.manager import installed

    manager = installed(config_home())
    if manager is not None and manager.kind != "system" and manager.is_there() and manager.is_active():
        manager.stop()
    if running.stop(places.state_folder):
        _print_note("Stopped the running peer; its work was returned.")


def _start(places: Any) -> dict[str, Any]:
    """Start the peer by the user's service manager, else as a background process; wait until it answers."""
    from peer.donor.install import running
    from peer.donor.install.join import drain_s_of
    from peer.donor.install.manager import Manager
    from peer.donor.install.units import Service

    _stop_running(places)
    manager = Manager("launchd" if sys.platform == "darwin" else "user", config_home())
    by_manager = manager.is_there()
    if by_manager:
        command = [*running.peer_command(places.config_file), "--log-file", str(places.log_file)]
        places.log_file.parent.mkdir(parents=True, exist_ok=True)
        manager.install(
            Service(
                command=command,
                state_folder=str(places.state_folder),
                log_file=str(places.log_file),
                drain_s=drain_s_of(places.config_file),
            )
        )
        started = running.Started(lambda: None, places.log_file)
    else:
        started = running.start_in_background(places.config_file, places.state_folder, places.log_file)
    waiting = _Waiting("the peer to answer", _ANSWER_DEADLINE_S)
    report = running.wait_until_answers(places.state_folder, started, _ANSWER_DEADLINE_S, waiting.report_if_due)
    return {
        "started": manager.kind if by_manager else "background",
        "unit": str(manager.unit_file) if by_manager else None,
        "pid": running.holder_of(places.state_folder),
        "log": str(places.log_file),
        "state": report["state"],
        "reason": report["reason"],
        "connected": report["connected"],
    }


class _Waiting:
    """Reports on standard error how long a wait has taken, and of how long at most."""

    def __init__(self, awaited: str, deadline_s: float) -> None:
        self._awaited, self._deadline_s = awaited, deadline_s
        self._started_s = self._printed_s = time.monotonic()
        self._tried = ""

    def on_attempt(self, attempt: int, url: str, problem: str) -> None:
        """Note an attempt to reach the coordinator, and report it if it is the first after a failure."""
        self._tried = f": attempt {attempt} at {url}" + (f"; the last one failed: {problem}" if problem else "")
        if attempt == 2:
            self._report(time.monotonic())

    async def report_until_cancelled(self) -> None:
        """Report regularly, also while an attempt takes long."""
        while True:
            self.report_if_due()
            await asyncio.sleep(_REPORT_EVERY_S / 5)

    def report_if_due(self) -> None:
        """Report unless that was done shortly before."""
        now_s = time.monotonic()
        if now_s - self._printed_s >= _REPORT_EVERY_S:
            self._report(now_s)

    def _report(self, now_s: float) -> None:
        self._printed_s = now_s
        waited_s = now_s - self._started_s
        _print_note(f"Waiting for {self._awaited} ({waited_s:.0f} s of at most {self._deadline_s:g} s){self._tried}.")


def _print_note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _next_steps(answer: dict[str, Any]) -> str:
    from peer.donor.install.first_limits import WHAT_LEAVES

    lines = [f"joined     {answer['run_id']} as {answer['name']}", f"identity   {answer['peer_id']}"]
    lines.append(f"settings   {answer['config']}")
    if answer["advertise"] == "none":
        lines.append("reached    other machines cannot dial this one; it dials them, which is enough to take part.")
        lines.append("           `rollcast peer check` explains what blocks the connection and how to open it.")
    elif answer["advertise"]:
        lines.append(f"reached    other machines dial it at {answer['advertise']}")
    lines += [f"{'limits' if not at else '':<11}{line}" for at, line in enumerate(answer["limits"])]
    if answer["started"] == "no":
        return "\n".join([*lines, "", f"Start it with:  rollcast peer run {answer['config']}"])
    how = {
        "user": "a systemd unit of this user; `loginctl enable-linger` keeps it running while you are logged out",
        "launchd": "a launchd agent of this user",
        "background": "a background process; run this command again after a reboot",
    }[answer["started"]]
    why = f" - {answer['reason']}" if answer["reason"] else ""
    return "\n".join(
        [
            *lines,
            f"runs as    {how}",
            f"process    {answer['pid']}",
            f"now        {answer['state']}{why}",
            "",
            "What happens next: this machine receives the newest version of the model from other machines,",
            "generates rollouts whenever the run has work for it, and relays the version to others. The run cannot",
            "execute code on it.",
            *textwrap.wrap(WHAT_LEAVES, 100),
            "",
            "  rollcast peer status --watch       show what it is doing and why",
            "  rollcast peer page --open          show the same in a browser",
            "  rollcast peer limits               limit its network, hours and temperatures",
            "  rollcast peer pause --for 2h       pause at once; see also resume, finish, leave",
        ]
    )
