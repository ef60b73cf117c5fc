"""`rollcast up`: run everything on this machine, show it live, and summarise it at the end."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter
from rich.console import Console

from peer.donor.machine.gpu_sensors import GpuSensors
from rollcast.cli.config import check_model
from rollcast.cli.coordinator_api import Target, page_link
from rollcast.cli.files import config_class, load
from rollcast.cli.options import Json, Settings
from rollcast.cli.peer.folders import only_warnings
from rollcast.cli.processes import Endpoints, Fleet, Restart, accelerators_here, device_shares
from rollcast.cli.run.report import write_report
from rollcast.cli.view import LiveView, PlainView, summary_table
from rollcast.cli.watch import run_fleet
from rollcast.policy.sizing.device_shares import DeviceShare, small_shares
from rollcast.runtime.config import ConfigModel, dump_json, override, parse_config
from rollcast.runtime.errors import ConfigError, ProcessFailed, RollcastError, RunFolderError, RunOver
from rollcast.runtime.process import EXIT_INTERRUPTED, stop_on_signals
from rollcast.runtime.run_folder import UP, RunFolder, is_of_up, no_run

if TYPE_CHECKING:  # the configuration of every role takes half a second to import
    from rollcast.cli.up_config import UpConfig

_STAY_S = 86400.0  # seconds that the dashboard of a finished run waits for Ctrl-C


def up(
    config: Path | None = None,
    /,
    *,
    continue_: Annotated[Path | None, Parameter(name="--continue")] = None,
    setting: Settings = (),
    dry_run: bool = False,
    plain: bool = False,
    json_output: Json = False,
) -> int:
    """Run a coordinator, a learner, an origin and peers on this machine until the configured number of steps is done.

    Ctrl-C stops all processes in order; a second Ctrl-C kills them. On a terminal the dashboard stays when the run has
    finished, until Ctrl-C.

    Parameters
    ----------
    config
        Configuration file (TOML) with the sections coordinator, learner, origin and peer.
    continue_
        Run folder of a run that was stopped or restored from a backup: go on with it, with its own configuration
        unless a file is given.
    setting
        Override one setting of the file, for example coordinator.run.steps=50. May be repeated.
    dry_run
        Check the configuration, print it with defaults filled in, and exit.
    plain
        Print a line every few seconds instead of the live view. Implied if the output is not a terminal.
    json_output
        Print the summary as JSON on stdout and progress on stderr.
    """
    only_warnings()
    parsed = given_config(config, continue_, setting)
    if dry_run:
        print(dump_json(parsed))
        return 0
    check_model(parsed.learner)  # the learner itself would find it a minute later, when the others run
    console = Console(stderr=json_output)
    live = console.is_terminal and not plain and not json_output
    shares = device_shares(parsed, accelerators_here())
    for line in [*_without_peers(parsed), *_small_shares(shares, parsed)]:
        Console(stderr=True).print(f"warning     {line}", soft_wrap=True, highlight=False)
    stay_s = _STAY_S if console.is_terminal and not json_output else None
    folder = new_run_folder(parsed) if continue_ is None else RunFolder(continue_.resolve()).prepare()
    fleet = Fleet(parsed, folder, shares=shares, stay_s=stay_s)
    try:
        status = asyncio.run(_run(fleet, console, live=live, json_output=json_output))
    finally:
        fleet.kill_all()  # also after an exception: no process may outlive this command
    return status


def given_config(config: Path | None, folder: Path | None, settings: tuple[str, ...]) -> UpConfig:
    """Return the configuration in the file, or of the run that is continued.

    Raises:
        ConfigError: neither is given, or the configuration is wrong.
        RunFolderError: the folder holds no run that `rollcast up` started.
        RunOver: the run is finished.
        StoreError: its coordinator is running.
    """
    if folder is None:
        if config is None or config.is_dir():
            raise ConfigError(
                "no configuration is given" if config is None else f"{config} is a folder",
                fix="give a file, which `rollcast init` writes, or a run's folder with --continue FOLDER",
            )
        return cast("UpConfig", load(config, "up", settings))
    saved = RunFolder(folder.resolve())
    check_continuable(saved, folder, has_config=config is not None)
    parsed = parse_saved(saved, settings) if config is None else load(config, "up", settings)
    return cast("UpConfig", parsed).model_copy(update={"runs_folder": saved.root.parent})


def parse_saved(folder: RunFolder, settings: tuple[str, ...]) -> ConfigModel:
    """Return the configuration with which `rollcast up` started the run, with these settings changed."""
    path = folder.config / UP
    return parse_config(override(json.loads(path.read_text()), settings), config_class("up"), source=str(path))


def check_continuable(folder: RunFolder, named: Path, *, has_config: bool) -> None:
    """Check that the run in the folder is one of `rollcast up`, is not finished, and that no coordinator serves it.

    Args:
        named: the folder as the person named it.
        has_config: whether a configuration file is given, so that the folder needs none.

    Raises:
        RunFolderError, RunOver, StoreError: see given_config.
    """
    from coordinator.stores.sqlite import lock

    if not folder.ledger.is_file():
        raise no_run(named, folder.ledger.name)
    if not has_config and not is_of_up(folder.root):
        raise RunFolderError(
            f"the run in {named} was not started with `rollcast up`",
            cause=f"it has no {folder.config.name}/{UP}",
            fix="start each process with its own configuration file, or give the file of `rollcast up` as well",
        )
    summary = json.loads(folder.summary.read_text()) if folder.summary.exists() else {}
    if summary.get("phase") == "finished":
        raise RunOver(
            f"the run in {named} is over: it is finished",
            cause="a finished run is closed; only one that was stopped goes on, for more steps too",
            fix="use its policy with `rollcast eval` and `rollcast export`, or start another run",
        )
    os.close(lock(folder.ledger))


def _without_peers(config: UpConfig) -> list[str]:
    return (
        []
        if config.peers
        else ["peers = 0: training begins once machines have joined with an invite, which `rollcast invite` creates"]
    )


def _small_shares(shares: Mapping[str, DeviceShare], config: UpConfig) -> list[str]:
    """Return a sentence for each process whose share of a GPU is too small, as far as that can be estimated."""
    devices = GpuSensors.here().devices() if shares else []
    if not devices:
        return []
    from rollcast.cli.start.plan_memory import plan_of_up

    try:
        plan = plan_of_up(config)
    except RollcastError:  # the model's folder cannot be read here, or gives no size of the vocabulary
        return []
    assert plan.peer is not None, "rollcast up has peers"
    needed = {name: plan.learner.peak if name == "learner" else plan.peer.peak for name in shares}
    return small_shares(shares, min(memory for _, memory, _ in devices), needed)


def new_run_folder(config: UpConfig) -> RunFolder:
    """Create a folder under runs_folder.

    Raises:
        RunFolderError: the folder cannot be created.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    root = (config.runs_folder / f"{config.coordinator.run.name}-{stamp}-{os.getpid()}").absolute()
    return RunFolder(root).prepare()


def page_address(console: Console, folder: RunFolder, endpoints: Endpoints) -> str:
    """Return the dashboard's address. It contains the run's key only on a terminal: others may read a file."""
    return page_link(Target(folder.root)) if console.is_terminal else endpoints.page_url


async def _run(fleet: Fleet, console: Console, *, live: bool, json_output: bool) -> int:
    console.print(f"run folder  {fleet.folder.root}", soft_wrap=True)
    for name, share in fleet.shares.items():
        console.print(f"{name:<11} {share.text}", soft_wrap=True, highlight=False)
    view = LiveView(console) if live else PlainView(console)

    def kill() -> None:
        view.close()
        fleet.kill_all()

    def started(endpoints: Endpoints) -> None:
        console.print(f"dashboard   {page_address(console, fleet.folder, endpoints)}", soft_wrap=True, highlight=False)

    def restarting(restart: Restart) -> None:
        console.print(str(restart), soft_wrap=True, highlight=False, markup=False)

    def lost(failure: ProcessFailed) -> None:
        console.print(str(failure), soft_wrap=True, highlight=False, markup=False)

    fleet.on_restart, fleet.on_loss, fleet.restart_peers = restarting, lost, True
    fleet.on_starting = view.starting

    async def at_end() -> None:
        view.close()
        _report(fleet.folder, console, json_output=json_output)
        if fleet.stays():
            link = page_link(Target(fleet.folder.root))
            console.print(f"dashboard    {link}\n             stays until Ctrl-C", soft_wrap=True, highlight=False)
            await stop.wait()

    stop = stop_on_signals(asyncio.get_running_loop(), on_second=kill)
    try:
        finished = await run_fleet(fleet, started, view.update, stop, at_end)
    finally:
        view.close()
    if not finished:
        _report(fleet.folder, console, json_output=json_output)
        console.print(
            f"to go on     {own_command()} up --continue {fleet.folder.root}", soft_wrap=True, highlight=False
        )
    return 0 if finished else EXIT_INTERRUPTED


def _report(folder: RunFolder, console: Console, *, json_output: bool) -> None:
    if not folder.summary.exists():
        return
    summary = json.loads(folder.summary.read_text())
    if json_output:
        json.dump(summary, sys.stdout, indent=2)
        print()
    else:
        console.print(summary_table(summary))
        report = folder.root / "report.html"
        write_report(folder, report)
        paths = {"summary": folder.summary, "reward plot": folder.reward_plot, "report": report}
        lines = [f"{name:<12} {path}" for name, path in paths.items()]
        console.print("\n".join(["", *lines, "", "next", *next_commands(summary)]), soft_wrap=True, highlight=False)


def own_command() -> str:
    """Return how this command is called in this shell."""
    if shutil.which("rollcast"):
        return "rollcast"
    program = Path(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m rollcast.cli.main" if program.suffix == ".py" else str(program)


def next_commands(summary: Mapping[str, Any]) -> list[str]:
    """Return commands to try after a run with this summary, a line each, as they are typed in this shell."""
    command = own_command()
    steps, version = summary["step"] or 0, summary["version"] or 0
    # The newest step: the ledger compacts old ones, and a restored run skips some.
    explained = {f"explain step {steps}": f"what was decided in a step, and why; also: version {version}, peer NAME"}
    lines = (explained if steps else {}) | {
        "why": "where the learner's wall time went",
        "samples runs/latest": "what the policy answered",
        "init": "starting points with problems, rewards and models of your own",
    }
    width = max(map(len, lines))
    return [f"    {command} {words:<{width}}   # {about}" for words, about in lines.items()]
