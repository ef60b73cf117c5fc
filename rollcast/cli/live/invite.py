"""`rollcast invite`: create an invite for a donor; list and revoke invites, ban and enable the peers of one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cyclopts import App

from rollcast.cli.coordinator_api import Target, fetch_sync, post_sync
from rollcast.cli.options import THIS_RUN, Json, RunOptions
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.process import is_loopback
from rollcast.wire.ids import InvitedRole
from rollcast.wire.joining.invite import QUOTA_DEFAULT, Invite

app = App(name="invite", help="Create, list, revoke and ban invites for donors.")

_DAY_S = 86_400.0
_DAYS_LEAST, _DAYS_MOST = 60.0 / _DAY_S, 365.0  # as the coordinator allows
_PATH = "/api/v1/invites"
_LOOPBACK = (
    "Only processes on this machine can use it: the coordinator listens on loopback. For machines elsewhere set"
    " serve.host and serve.advertise_host (docs/guides/first-run.md)."
)


@app.default
@app.command
def make(
    *,
    role: InvitedRole = "peer",
    quota: int = QUOTA_DEFAULT,
    days: float = 7.0,
    note: str = "",
    run: RunOptions = THIS_RUN,
    json_output: Json = False,
) -> int:
    """Create an invite and print the command that the donor runs. It is shown only once; anyone who has it can join.

    Parameters
    ----------
    role
        Role that the invite admits: peer, origin, or cell (docs/scale.md).
    quota
        Number of machines that may join with the invite; for a fleet of 100, pass 100.
    days
        Days until the invite expires.
    note
        Note about the recipient, shown in lists.
    json_output
        Print one JSON object.
    """
    if quota < 1 or not _DAYS_LEAST <= days <= _DAYS_MOST:
        what = "an invite admits at least one machine" if quota < 1 else f"an invite cannot be valid for {days:g} days"
        fix = "pass --quota 1 or more" if quota < 1 else f"pass --days from a minute (0.0007) to {_DAYS_MOST:g}"
        raise ConfigError(what, fix=fix)
    values = {"role": role, "quota": quota, "lifetime_s": days * _DAY_S, "note": note}
    made = post_sync(Target.of(run), _PATH, values)
    print(json.dumps(made, indent=2) if json_output else made["command"])
    if not json_output:
        machines = "1 machine" if quota == 1 else f"{quota} machines"
        period = "1 day" if days == 1 else f"{days:g} days"
        print(f"Admits {machines} for {period}. Send it privately: anyone who has it can join.", file=sys.stderr)
        if is_loopback(Invite.decode(made["invite"]).grpc_address.rpartition(":")[0].strip("[]")):
            print(_LOOPBACK, file=sys.stderr)
    return 0


@app.command(name="list")
def show(*, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """List all invites, newest first, and whether each is open, used up, ended or revoked.

    Parameters
    ----------
    json_output
        Print one JSON object.
    """
    found = fetch_sync(Target.of(run), _PATH)["invites"]
    print(json.dumps({"invites": found}, indent=2) if json_output else "\n".join(lines_of(found, time.time())))
    return 0


@app.command
def revoke(invite_id: str, /, *, run: RunOptions = THIS_RUN) -> int:
    """Revoke an invite: no more machines can join with it, and those that have joined stay.

    Parameters
    ----------
    invite_id
        Id of the invite, as `rollcast invite list` shows it.
    """
    post_sync(Target.of(run), f"{_PATH}/{_checked(invite_id)}/revoke", {})
    print(f"revoked: {invite_id}")
    return 0


@app.command
def ban(invite_id: str, /, *, reason: str = "", run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Revoke an invite and ban every machine that joined with it: their work is given to other peers.

    Parameters
    ----------
    invite_id
        Id of the invite, as `rollcast invite list` shows it.
    reason
        The reason that the owners are shown and the audit log keeps.
    json_output
        Print one JSON object.
    """
    return _act("ban", "banned", invite_id, reason, run, json_output=json_output)


@app.command
def enable(invite_id: str, /, *, reason: str = "", run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Enable every machine of an invite again after a ban or a quarantine. The invite itself stays revoked.

    Parameters
    ----------
    invite_id
        Id of the invite, as `rollcast invite list` shows it.
    reason
        The reason for the audit log.
    json_output
        Print one JSON object.
    """
    return _act("enable", "enabled", invite_id, reason, run, json_output=json_output)


def _act(act: str, done: str, invite_id: str, reason: str, run: RunOptions, *, json_output: bool) -> int:
    answer = post_sync(Target.of(run), f"{_PATH}/{_checked(invite_id)}/{act}", {"reason": reason})
    machines = [f"{done}: {one}" for one in answer["done"]] or [f"{done}: no machine, because none joined or all were"]
    print(json.dumps(answer, indent=2) if json_output else "\n".join(machines))
    return 0


def _checked(invite_id: str) -> str:
    if not invite_id.isalnum():
        raise ConfigError(f"{invite_id!r} is not the id of an invite", fix="`rollcast invite list` lists all invites")
    return invite_id


def lines_of(invites: list[dict[str, Any]], now_unix_s: float) -> list[str]:
    """Return one line for each invite."""
    if not invites:
        return ["There are no invites yet. Create one with `rollcast invite`."]
    return [
        f"{one['id']}  {fate_of(one, now_unix_s):<8}  {one['role']:<7}  {one['used']} of {one['quota']:<5}"
        f"  until {datetime.fromtimestamp(one['expires_unix_s'], UTC):%Y-%m-%d %H:%M} UTC  {one['note']}".rstrip()
        for one in invites
    ]


def fate_of(invite: Mapping[str, Any], now_unix_s: float) -> str:
    """Return whether an invite is open, used up, ended (expired), revoked, or banned with machines of it."""
    if invite["revoked"]:
        return "banned" if invite["banned"] else "revoked"
    if invite["used"] >= invite["quota"]:
        return "used up"
    return "ended" if invite["expires_unix_s"] <= now_unix_s else "open"
