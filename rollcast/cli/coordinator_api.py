"""Asking a running coordinator over its HTTP API."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from rollcast.cli.options import RunOptions
from rollcast.runtime.errors import ConfigError, RunFolderError, Unreachable, WrongKey
from rollcast.runtime.process import is_loopback
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.identity.tls import RunCA
from rollcast.wire.joining.error_json import error_from_json
from rollcast.wire.joining.pinned_http import json_object, read_bounded

ANSWER_BYTES_MAX = 16 << 20
TOKEN_VARIABLE = "ROLLCAST_TOKEN"
"""Environment variable with a token, for those who do not have the run's folder."""
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where the coordinator is: in its run folder, or at a URL with, for HTTPS, the run CA's certificate."""

    run_folder: Path
    url: str = ""
    ca_file: Path | None = None

    @classmethod
    def of(cls, run: RunOptions) -> Target:
        """As the options of a command say."""
        return cls(run.run_folder, run.url, run.ca_file)

    def http_url(self) -> str:
        """The address; read anew each time, as a coordinator that was started again may have another.

        Raises:
            RunFolderError: the folder names none.
        """
        if self.url:
            return self.url.rstrip("/")
        path = RunFolder(self.run_folder).endpoints
        try:
            return str(json.loads(path.read_text())["http_url"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{self.run_folder} does not say where a coordinator listens",
                cause=f"cannot read {path}: {error}",
                fix="name the run with --run-folder, or the coordinator with --url http://HOST:PORT",
            ) from None

    def trust(self) -> ssl.SSLContext:
        """Whose certificate to believe: of the CA given, else of the run folder's; of the system's for other URLs.

        Raises:
            ConfigError: the CA file cannot be used.
            WrongKey: the run folder's CA is damaged.
        """
        if self.ca_file is not None:
            try:
                return ssl.create_default_context(cafile=str(self.ca_file))
            except OSError as error:
                raise ConfigError(f"cannot use the CA certificate {self.ca_file}", cause=str(error)) from None
        if self.url:
            return ssl.create_default_context()
        authority = RunCA.load(RunFolder(self.run_folder).secrets)
        return ssl.create_default_context(cadata=authority.certificate_pem.decode("ascii"))


async def ask(session: aiohttp.ClientSession, target: Target, path: str) -> dict[str, Any]:
    """The JSON object at ``path``, for example /api/v1/broadcast.

    A token goes with it: ROLLCAST_TOKEN, or the key of the run folder where that is what says the address.

    Raises:
        RunFolderError, ConfigError, WrongKey: see Target.
        Unreachable: nobody answers, or somebody else.
        MalformedMessage: the answer is no JSON object, or too long.
        RollcastError: what the coordinator answers instead.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token and not target.url and key_path(target.run_folder).exists():
        token = key_of(target.run_folder)
    return await _answer(session, target, "GET", path, token, None)


async def order(
    session: aiohttp.ClientSession,
    target: Target,
    path: str,
    values: Mapping[str, Any],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Any]:
    """Give an order with ROLLCAST_TOKEN, or else the key of the run folder.

    Raises:
        RunFolderError: the folder has no key.
        NotAllowed: the token may not do that.
        RollcastError: see ask.
    """
    token = os.environ.get(TOKEN_VARIABLE, "") or key_of(target.run_folder)
    return await _answer(session, target, "POST", path, token, values, timeout_s)


def key_path(run_folder: Path) -> Path:
    """Where the run's own key is, an admin's token."""
    return RunFolder(run_folder).secrets / "operator.key"


def key_of(run_folder: Path) -> str:
    """The run's own key.

    Raises:
        RunFolderError: there is none, or it is not ours to read.
    """
    try:
        return key_path(run_folder).read_text().strip()
    except OSError as error:
        raise RunFolderError(
            f"{run_folder} has no key for orders",
            cause=str(error),
            fix=f"give the run folder on the coordinator's machine with --run-folder, or a token in {TOKEN_VARIABLE}",
        ) from None


def page_link(target: Target) -> str:
    """The dashboard's address with the run's key behind a #: no browser sends that part to anybody.

    Raises:
        RunFolderError: see Target and key_of.
    """
    return f"{target.http_url()}/#token={key_of(target.run_folder)}"


def _bearing(token: str, url: str) -> dict[str, str]:
    """Headers with the token.

    Raises:
        ConfigError: everybody on the way could read it.
    """
    if not token:
        return {}
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError(f"refusing to send a token to {url} without TLS", fix="give an https address")
    return {"Authorization": f"Bearer {token}"}


async def _answer(
    session: aiohttp.ClientSession,
    target: Target,
    method: str,
    path: str,
    token: str,
    values: Mapping[str, Any] | None,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Any]:
    url = f"{target.http_url()}{path}"
    tls = target.trust() if url.startswith("https:") else True
    try:
        async with session.request(
            method,
            url,
            json=values,
            headers=_bearing(token, url),
            ssl=tls,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            data = await read_bounded(response, ANSWER_BYTES_MAX)
            status = response.status
    except aiohttp.ClientConnectorCertificateError as error:
        raise WrongKey(
            f"whoever answers at {url} has no certificate of this run",
            cause=str(error),
            fix="give the run's CA certificate with --ca-file, or the run folder with --run-folder",
        ) from None
    except (aiohttp.ClientError, aiohttp.InvalidURL, OSError, TimeoutError, ValueError) as error:
        raise Unreachable(
            f"no coordinator answers at {url}",
            cause=str(error) or "no answer in time",
            fix="check that it runs (its run folder has logs), and its address",
        ) from None
    if status != 200:
        raise error_from_json(data) or Unreachable(
            f"{url} answers {status}", fix="check that this is a coordinator's address, and of this Rollcast version"
        )
    return json_object(data, url, fix="check the address")


def ordered(target: Target, path: str, values: Mapping[str, Any], *, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """As order, for a command that does nothing else."""

    async def give() -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            return await order(session, target, path, values, timeout_s=timeout_s)

    return asyncio.run(give())


def asked(target: Target, path: str) -> dict[str, Any]:
    """As ask, for a command that does nothing else."""

    async def look() -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            return await ask(session, target, path)

    return asyncio.run(look())
