"""`rollcast peer leave`: leave the run and remove the peer's state."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rollcast.cli.durations import in_words, seconds_of
from rollcast.cli.options import AsJson
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
from rollcast.wire.donor.control_socket import request

if TYPE_CHECKING:
    from peer.donor.install.join import PeerPaths

Flag = Annotated[bool, Parameter(negative=())]
Within = Annotated[str, Parameter(help="Maximum time to finish the current work; unfinished work is then returned.")]


def leave(
    *,
    now: Flag = False,
    within: Within = "15m",
    forget_identity: Flag = False,
    yes: Flag = False,
    state: StateFolder = None,
    config: ConfigFile = None,
    json_output: AsJson = False,
) -> int:
    """Finish the current work, sign off from the coordinator, stop, and remove the service and the peer's state.

    Identity, receipts, limits and configuration stay: after `rollcast peer join` this is the same machine.

    Parameters
    ----------
    now
        Return the current work at once instead of finishing it.
    forget_identity
        Also remove identity, receipts, limits and configuration. This cannot be undone.
    yes
        Do not ask for confirmation.
    """
    from peer.donor.install.join import peer_paths
    from peer.donor.install.leave import clear_up

    only_warnings()
    wait_s = seconds_of(within)
    places = peer_paths(config or config_file(), state or state_folder(), state_given=state is not None)
    what = ", identity, receipts and limits for good" if forget_identity else " (identity and limits are kept)"
    if not confirmed(f"Leave the run and remove the state in {places.state_folder}{what}?", yes=yes):
        print("Nothing was changed.", file=sys.stderr)
        return 0
    ended = _end(places, 0.0 if now else wait_s)
    unit = _remove_service()
    gone = clear_up(places, forget_identity=forget_identity)
    answer = {"ended": ended, "unit_removed": unit, "removed": gone, "identity_kept": not forget_identity}
    print(json.dumps(answer) if json_output else _outcome_text(answer, kept=_kept(places)))
    return 0


def _kept(places: PeerPaths) -> bool:
    """Return whether anything of this machine's peer is left, which a later `peer join` uses again."""
    return (places.state_folder / "identity.key").exists() or places.config_file.exists()


def _end(places: PeerPaths, wait_s: float) -> str:
    """Stop the peer and return how it ended: finished, stopped, or was not running. It signs off by itself."""
    from peer.donor.install import running
    from rollcast.runtime.errors import WaitTimedOut

    if running.holder_of(places.state_folder) is None:
        return "was not running"
    if wait_s > 0.0:
        try:
            request(places.state_folder, {"do": "finish"})
            print(
                f"Finishing the current work, for at most {in_words(wait_s)}. Ctrl-C returns it now.", file=sys.stderr
            )
            running.wait_until_gone(places.state_folder, wait_s)
            return "finished"
        except (DaemonAway, WaitTimedOut, KeyboardInterrupt):
            print("Returning the current work.", file=sys.stderr)
    running.stop(places.state_folder)
    return "stopped"


def _remove_service() -> str | None:
    from peer.donor.install.manager import installed

    manager = installed(config_home())
    if manager is None or manager.kind == "system":  # only root may remove a service of the whole machine
        return None
    manager.remove()
    return str(manager.unit_file)


def _outcome_text(answer: dict[str, Any], *, kept: bool) -> str:
    lines = [f"The peer {answer['ended']}."]
    if answer["unit_removed"]:
        lines.append(f"Removed {answer['unit_removed']}")
    lines += [f"Removed {path}" for path in answer["removed"]]
    if kept:
        lines.append("Identity, receipts, limits and configuration are kept; --forget-identity removes them too.")
    return "\n".join(lines)
