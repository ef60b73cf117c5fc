"""`rollcast peer limits [show|set KEY=VALUE|reset KEY]`: limit what this machine is used for, while it runs."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

from cyclopts import App

from rollcast.cli.options import AsJson
from rollcast.cli.peer.folders import ConfigFile, StateFolder, config_file, only_warnings, state_folder
from rollcast.runtime.config import override
from rollcast.runtime.errors import ConfigError, DaemonAway, MalformedMessage
from rollcast.wire.donor.control_socket import request
from rollcast.wire.joining.error_json import error_from_json

_SHOWN_WIDTH = 12  # of a limit's value
_WIDTH_LEAST = 72

app = App(name="limits", help="Show, set or reset limits on what this machine is used for.")


@app.default
def show(*, state: StateFolder = None, config: ConfigFile = None, json_output: AsJson = False) -> int:
    """Show every limit with its meaning and whether it was set here or comes from peer.toml."""
    return _change_and_print({}, state, config, json_output)


app.command(show, name="show")


@app.command(name="set")
def set_(*assignments: str, state: StateFolder = None, config: ConfigFile = None, json_output: AsJson = False) -> int:
    """Set limits. They apply at once to a running peer, and after every start. The value `none` removes a limit.

    Parameters
    ----------
    assignments
        Limits as KEY=VALUE, for example upload_mbit_s_max=20 or compute_hours="mon-fri 22:00-07:00".
    """
    if not assignments:
        raise ConfigError("no limit is given", fix="write KEY=VALUE; `rollcast peer limits` lists the keys")
    return _change_and_print(
        {"set": {key: _or_none(value) for key, value in override({}, map(_bare, assignments)).items()}},
        state,
        config,
        json_output,
    )


@app.command
def reset(*keys: str, state: StateFolder = None, config: ConfigFile = None, json_output: AsJson = False) -> int:
    """Reset these limits, or all of them if no key is given, to those of peer.toml."""
    return _change_and_print({"reset": list(map(_bare, keys)) if keys else True}, state, config, json_output)


def _bare(assignment: str) -> str:
    """Return the key without its section: keys may be written as in peer.toml, as limits.x or link.x."""
    for section in ("limits.", "link."):
        if assignment.startswith(section):
            return assignment.removeprefix(section)
    return assignment


def _or_none(value: Any) -> Any:
    return None if value == "none" else value


def _change_and_print(change: dict[str, Any], state: Path | None, config: Path | None, json_output: bool) -> int:
    folder, path = _places(state, config)
    try:
        reply = request(folder, {"do": "limits", **change})
    except DaemonAway:
        reply = _without_daemon(change, folder, path)
    if "error" in reply:
        raise error_from_json(str(reply["error"])) or MalformedMessage(
            "the peer refused the request without a reason", fix="see `rollcast peer logs`"
        )
    print(json.dumps(reply) if json_output else _screen(reply, changed=bool(change)))
    return 0


def _places(state: Path | None, config: Path | None) -> tuple[Path, Path]:
    from peer.donor.install.join import peer_paths

    places = peer_paths(config or config_file(), state or state_folder(), state_given=state is not None)
    return places.state_folder, places.config_file


def _without_daemon(change: dict[str, Any], folder: Path, path: Path) -> dict[str, Any]:
    """Change or read the limits in the files while no peer runs; they apply from the next start."""
    from peer.config import PeerConfig
    from peer.donor.control.limits import OwnerLimitsBook
    from rollcast.runtime.config import load_config

    only_warnings()
    configured = load_config(path, PeerConfig) if path.exists() else PeerConfig(state_folder=folder)
    book = OwnerLimitsBook(configured)
    if "set" in change:
        book.change(change["set"])
    elif "reset" in change:
        book.reset(None if change["reset"] is True else change["reset"])
    at_start = sorted(change["set"]) if isinstance(change.get("set"), dict) else []
    return {"limits": book.limits.model_dump(mode="json"), "changed": book.changed, "at_restart": at_start}


def _screen(reply: dict[str, Any], *, changed: bool) -> str:
    from peer.donor.control.limits import OwnerLimits
    from rollcast.runtime.config import describe

    meanings = {key: text for key, _, text in describe(OwnerLimits)}
    limits, mine = reply["limits"], set(reply["changed"])
    width = max(map(len, limits))
    lines = []
    for key, value in limits.items():
        if changed and key not in mine:
            continue
        shown = "none" if value in (None, []) else value if isinstance(value, str) else json.dumps(value)
        head = f"{'*' if key in mine else ' '} {key:<{width}}  {shown:<{_SHOWN_WIDTH}}  "
        indent = " " * (width + _SHOWN_WIDTH + 6)
        across = max(_WIDTH_LEAST, shutil.get_terminal_size().columns)
        lines.append(
            textwrap.fill(head + meanings.get(key, ""), across, subsequent_indent=indent, break_on_hyphens=False)
        )
    if not lines:
        lines.append("Local limits cleared; the limits of peer.toml apply.")
    if mine:
        lines.append("* set with `rollcast peer limits set`; the others come from peer.toml")
    if reply["at_restart"]:
        lines.append(f"These apply from the next start of the peer: {', '.join(reply['at_restart'])}.")
    return "\n".join(lines)
