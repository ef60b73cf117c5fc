"""`rollcast token create`, `list` and `revoke`: who may read a run's page and API, and who may act on the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import aiohttp
from cyclopts import App

from rollcast.cli.coordinator_api import Target, ask, order
from rollcast.cli.options import THIS_RUN, Json, RunOptions
from rollcast.runtime.errors import ConfigError

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
    """Make a token. Its text is printed once and kept nowhere.

    Parameters
    ----------
    role
        viewer reads; operator also drains, bans, pins, invites and changes settings; admin also makes tokens.
    name
        who it is for, as the audit log will call them: small letters, digits, dots and dashes.
    days
        until it expires; without, it holds until it is revoked.
    json_output
        print one JSON object.
    """
    made = _ordered(Target.of(run), _PATH, {"name": name, "access": role, "days": days})
    print(json.dumps(made, indent=2) if json_output else made["token"])
    return 0


@app.command(name="list")
def show(*, run: RunOptions = THIS_RUN, json_output: Json = False) -> int:
    """Show every token there was, and which ones hold.

    Parameters
    ----------
    json_output
        print one JSON object.
    """
    found = _tokens(Target.of(run))
    print(json.dumps({"tokens": found}, indent=2) if json_output else "\n".join(lines_of(found)))
    return 0


@app.command
def revoke(name: str, /, *, run: RunOptions = THIS_RUN) -> int:
    """End a token at once, with all pages that are open with it.

    Parameters
    ----------
    name
        the token's name, or its number.
    """
    target = Target.of(run)
    number = number_of(name, _tokens(target))
    print(json.dumps(_ordered(target, f"{_PATH}/{number}/revoke", {})))
    return 0


def lines_of(tokens: list[dict[str, Any]]) -> list[str]:
    """A line a token, a tick where it holds."""
    if not tokens:
        return ["no token was made yet; make one with `rollcast token create --role viewer --name NAME`"]
    return [
        f"{chr(0x2713) if one['holds'] else ' '} {one['id']:>4}  {one['name']:<24} {one['access']:<9} {_end_of(one)}"
        for one in tokens
    ]


def number_of(name: str, tokens: list[dict[str, Any]]) -> int:
    """Of the token that holds and is called so, or has that number.

    Raises:
        ConfigError: there is none.
    """
    for one in tokens:
        if one["holds"] and name in (one["name"], str(one["id"])):
            return int(one["id"])
    raise ConfigError(f"no token called {name!r} holds", fix="see `rollcast token list`")


def _end_of(token: Mapping[str, Any]) -> str:
    if token["revoked_unix_s"] is not None:
        return f"revoked {_day(token['revoked_unix_s'])}"
    if token["expires_unix_s"] is None:
        return "until it is revoked"
    return f"{'until' if token['holds'] else 'expired'} {_day(token['expires_unix_s'])}"


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _tokens(target: Target) -> list[dict[str, Any]]:
    async def fetch() -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            return await ask(session, target, _PATH)

    return list(asyncio.run(fetch())["tokens"])


def _ordered(target: Target, path: str, values: Mapping[str, Any]) -> dict[str, Any]:
    async def give() -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            return await order(session, target, path, values)

    return asyncio.run(give())
