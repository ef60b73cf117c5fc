"""`rollcast token create`, `list` and `revoke`: control access to a run's dashboard, API and acts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from cyclopts import App

from rollcast.cli.coordinator_api import Target, fetch_sync, post_sync
from rollcast.cli.options import THIS_RUN, Json, RunOptions
from rollcast.runtime.errors import ConfigError
from rollcast.wire.limits import TOKEN_NAME_PATTERN

app = App(name="token")

_PATH = "/api/v1/tokens"


@app.command
def create(
    *,
    role: Literal["viewer", "operator", "admin"],
    name: str,
    days: float | None = None,
    run: RunOptions = THIS_RUN,
    json_output: Json = False,
) -> int:
    """Create a token. It is printed once and stored nowhere.

    Parameters
    ----------
    role
        A viewer may read. An operator may also drain, ban and pin workers, create invites and change settings. An admin
        may also create tokens.
    name
        Name of the person or program that uses the token, as the audit log shows it: lower-case letters, digits, dots
        and dashes.
    days
        Days until the token expires; without a value it is valid until it is revoked.
    json_output
        Print one JSON object.
    """
    if not re.fullmatch(TOKEN_NAME_PATTERN, name):
        raise ConfigError(
            f"a token cannot be named {name!r}",
            cause="a name begins with a lower-case letter or digit; dots, dashes and underscores may follow",
            fix="write for example --name ann",
        )
    made = post_sync(Target.of(run), _PATH, {"name": name, "access": role, "days": days})
    print(json.dumps(made, indent=2) if json_output else made["token"])
    return 0


@app.command(name="list")
def show(*, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """List all tokens ever created and whether each is still valid.

    Parameters
    ----------
    json_output
        Print one JSON object.
    """
    found = fetch_sync(Target.of(run), _PATH)["tokens"]
    print(json.dumps({"tokens": found}, indent=2) if json_output else "\n".join(lines_of(found)))
    return 0


@app.command
def revoke(name: str, /, *, run: RunOptions = THIS_RUN) -> int:
    """Revoke a token at once; every page that is open with it loses access.

    Parameters
    ----------
    name
        Name or number of the token.
    """
    target = Target.of(run)
    number = number_of(name, fetch_sync(target, _PATH)["tokens"])
    print(json.dumps(post_sync(target, f"{_PATH}/{number}/revoke", {})))
    return 0


def lines_of(tokens: list[dict[str, Any]]) -> list[str]:
    """Return one line for each token, with a tick if it is valid."""
    if not tokens:
        return ["There are no tokens yet. Create one with `rollcast token create --role viewer --name NAME`."]
    return [
        f"{chr(0x2713) if one['holds'] else ' '} {one['id']:>4}  {one['name']:<24} {one['access']:<9} {_end_of(one)}"
        for one in tokens
    ]


def number_of(name: str, tokens: list[dict[str, Any]]) -> int:
    """Return the number of the valid token with this name or number.

    Raises:
        ConfigError: no valid token has it.
    """
    for one in tokens:
        if one["holds"] and name in (one["name"], str(one["id"])):
            return int(one["id"])
    raise ConfigError(f"no valid token is called {name!r}", fix="`rollcast token list` lists all tokens")


def _end_of(token: Mapping[str, Any]) -> str:
    if token["revoked_unix_s"] is not None:
        return f"revoked {_day(token['revoked_unix_s'])}"
    if token["expires_unix_s"] is None:
        return "until it is revoked"
    return f"{'until' if token['holds'] else 'expired'} {_day(token['expires_unix_s'])}"


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
