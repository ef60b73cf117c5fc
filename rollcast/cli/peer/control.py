"""`rollcast peer status|pause|resume|finish`: control the peer that runs on this machine.

Imports no engine and no network library: it must answer at once.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from rollcast.cli.durations import seconds_of
from rollcast.cli.options import AsJson, Json
from rollcast.cli.peer.folders import StateFolder, state_folder
from rollcast.cli.peer.screen import screen
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.donor.control_socket import request
from rollcast.wire.joining.error_json import error_from_json

For = Annotated[
    str | None,
    Parameter(
        name="--for",
        help="Resume by itself after this time: 90s, 15m, 2h, 1d. Without it, pause until you resume.",
    ),
]
_CLEAR = "\x1b[H\x1b[2J"


def status(*, state: StateFolder = None, json_output: Json = False, watch: bool = False) -> int:
    """Show what this machine is doing and why.

    Parameters
    ----------
    state
        The peer's state folder.
    json_output
        Print one JSON object.
    watch
        Refresh every second until Ctrl-C.
    """
    while True:
        report = ask("status", state)
        text = json.dumps(report) if json_output else screen(report)
        print(f"{_CLEAR}{text}" if watch and not json_output else text, flush=True)
        if not watch:
            return 0
        try:
            time.sleep(1.0)
        except KeyboardInterrupt:
            return 0


def pause(*, for_: For = None, state: StateFolder = None, json_output: AsJson = False) -> int:
    """Pause at once: generate nothing and relay nothing. Unfinished work goes to other machines."""
    return _control("pause", for_, state, json_output)


def resume(*, state: StateFolder = None, json_output: AsJson = False) -> int:
    """Resume work after a pause."""
    return _control("resume", None, state, json_output)


def finish(*, for_: For = None, state: StateFolder = None, json_output: AsJson = False) -> int:
    """Finish the current work, hand relaying over, and stop. With --for, pause for that time instead of stopping."""
    return _control("finish", for_, state, json_output)


def _control(do: str, for_: str | None, state: Path | None, json_output: bool) -> int:
    values = {} if for_ is None else {"for_s": seconds_of(for_)}
    reply = ask(do, state, **values)
    state_now = "resumed" if reply["state"] == "on" else reply["state"]
    print(json.dumps(reply) if json_output else " - ".join(filter(None, (state_now, reply["reason"]))))
    return 0


def ask(do: str, state: Path | None, **values: Any) -> dict[str, Any]:
    """Send a request to the daemon on this machine and return its reply; raise the error that it replies with."""
    reply = request(state or state_folder(), {"do": do, **values})
    if "error" in reply:
        raise error_from_json(str(reply["error"])) or MalformedMessage(
            "the peer refused the request without a reason", fix="see `rollcast peer logs`"
        )
    return reply
