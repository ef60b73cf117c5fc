"""`rollcast peer leave`: take this machine out of the run."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rollcast.cli.durations import in_words, seconds_of
from rollcast.cli.options import Json
from rollcast.cli.peer.folders import (
    ConfigFile,
    StateFolder,
    config_file,
    config_home,
    confirmed,
    only_warnings,
    state_folder,
)
from rollcast.runtime.errors import DaemonAway
from rollcast.wire.donor_socket import request

if TYPE_CHECKING:
    from peer.donor.install.join import PeerPaths

Flag = Annotated[bool, Parameter(negative=())]
Within = Annotated[str, Parameter(help="How long work that is held may take to end; then it is handed back.")]


def leave(
    *,
    now: Flag = False,
    within: Within = "15m",
    forget_identity: Flag = False,
    yes: Flag = False,
    state: StateFolder = None,
    config: ConfigFile = None,
    json_output: Json = False,
) -> int:
    """Complete what is held, say goodbye to the coordinator, stop, and remove the service and all state.

    Identity, receipts and configuration stay: `rollcast peer join` with a new invite makes this the same machine again.

    Parameters
    ----------
    now
        do not complete what is held: hand it back at once.
    forget_identity
        remove identity, receipts and configuration too: for good.
    yes
        do not ask.
    """
    from peer.donor.install.join import peer_paths
    from peer.donor.install.leave import clear_up

    only_warnings()
    wait_s = seconds_of(within)
    places = peer_paths(config or config_file(), state or state_folder(), state_given=state is not None)
    what = " and its identity, for good" if forget_identity else "; its identity is kept"
    if not confirmed(f"take this machine out of its run and remove {places.state_folder}'s state{what}?", yes=yes):
        print("nothing was changed", file=sys.stderr)
        return 0
    ended = _end(places, 0.0 if now else wait_s)
    unit = _remove_service()
    gone = clear_up(places, forget_identity=forget_identity)
    answer = {"ended": ended, "unit_removed": unit, "removed": gone, "identity_kept": not forget_identity}
    print(json.dumps(answer) if json_output else _said(answer))
    return 0


def _end(places: PeerPaths, wait_s: float) -> str:
    """How the peer ended: finished, stopped, or was not running. Its goodbye tells the coordinator."""
    from peer.donor.install import running
    from rollcast.runtime.errors import WaitTimedOut

    if running.holder_of(places.state_folder) is None:
        return "was not running"
    if wait_s > 0.0:
        try:
            request(places.state_folder, {"do": "finish"})
            print(f"completing what is held, for at most {in_words(wait_s)} (Ctrl-C hands it back)", file=sys.stderr)
            running.wait_until_gone(places.state_folder, wait_s)
            return "finished"
        except (DaemonAway, WaitTimedOut, KeyboardInterrupt):
            print("handing back what is held", file=sys.stderr)
    running.stop(places.state_folder)
    return "stopped"


def _remove_service() -> str | None:
    from peer.donor.install.manager import installed

    manager = installed(config_home())
    if manager is None or manager.kind == "system":  # that of the whole machine is root's
        return None
    manager.remove()
    return str(manager.unit_file)


def _said(answer: dict[str, Any]) -> str:
    lines = [f"the peer {answer['ended']}"]
    if answer["unit_removed"]:
        lines.append(f"removed {answer['unit_removed']}")
    lines += [f"removed {path}" for path in answer["removed"]]
    if answer["identity_kept"]:
        lines.append("identity, receipts and configuration are kept; --forget-identity removes them too")
    return "\n".join(lines)
