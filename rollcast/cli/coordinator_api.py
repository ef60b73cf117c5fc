"""Query a running coordinator over its HTTP API, and post acts to it."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rollcast.cli.options import RunOptions
from rollcast.runtime.errors import ConfigError, RunFolderError, RunOver, Unreachable, WrongKey
from rollcast.runtime.process import is_loopback
from rollcast.runtime.run_folder import RunFolder, is_of_up, no_run
from rollcast.runtime.start_deadline import StartReport
from rollcast.web.headers import RUN_HEADER
from rollcast.wire.joining.error_json import error_from_json

if TYPE_CHECKING:
    import aiohttp  # elsewhere where it is used, because commands that only name a coordinator need not wait for it

ANSWER_BYTES_MAX = 16 << 20
TOKEN_VARIABLE = "ROLLCAST_TOKEN"
"""Environment variable that holds a token, for people without the run's folder."""
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """The coordinator to contact: by its run folder, or by a URL and, for HTTPS, the run CA's certificate."""

    run_folder: Path
    url: str = ""
    ca_file: Path | None = None

    @classmethod
    def of(cls, run: RunOptions) -> Target:
        """Return the target that a command's options name."""
        return cls(run.run_folder, run.url, run.ca_file)

    def http_url(self) -> str:
        """Return the coordinator's address. It is read each time: a restarted coordinator may listen elsewhere.

        Raises:
            RunFolderError: the folder does not name an address.
            ConfigError: the URL given is none.
        """
        return self._given() or self._endpoint("http_url")

    def page_url(self) -> str:
        """Return the address under which people open the dashboard; see http_url."""
        return self._given() or self._endpoint("page_url")

    def run_id(self) -> str:
        """Return the id of the folder's run; empty if the address is not from a folder, or the folder lacks it."""
        if self.url:
            return ""
        try:
            return self._endpoint("run_id")
        except RunFolderError:
            return ""

    def _given(self) -> str:
        """Return the URL given, without the / at its end; empty if none is."""
        if self.url and urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(
                f"{self.url} is not a coordinator's address",
                fix=f"write it with http:// or https://: http://{self.url}",
            )
        return self.url.rstrip("/")

    def _endpoint(self, name: str) -> str:
        path = RunFolder(self.run_folder).endpoints
        try:
            return str(json.loads(path.read_text())[name])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if not self.run_folder.exists():
                raise no_run(self.run_folder, path.name) from None
            if report := StartReport.read(RunFolder(self.run_folder).starting):
                raise RunFolderError(
                    f"the coordinator of {self.run_folder} does not answer yet",
                    cause=f"it is starting: {report.doing}",
                    fix="try again once it listens",
                ) from None
            raise RunFolderError(
                f"the run folder {self.run_folder} does not name a running coordinator",
                cause=f"cannot read {path}: {error}",
                fix="give the run with --run-folder, or the coordinator with --url http://HOST:PORT",
            ) from None

    def trust(self) -> ssl.SSLContext:
        """Return the TLS context: it trusts the CA given, else the run folder's, or for other URLs the system's.

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
        from rollcast.wire.identity.tls import RunCA

        authority = RunCA.load(RunFolder(self.run_folder).secrets)
        return ssl.create_default_context(cadata=authority.certificate_pem.decode("ascii"))


async def fetch(session: aiohttp.ClientSession, target: Target, path: str) -> dict[str, Any]:
    """Return the JSON object at ``path``, for example /api/v1/broadcast.

    The request carries a token: ROLLCAST_TOKEN, or the run folder's key if the address comes from that folder.

    Raises:
        RunFolderError, ConfigError, WrongKey: see Target.
        Unreachable: no coordinator answers there.
        RunOver: the run has ended, and its coordinator with it.
        MalformedMessage: the answer is not a JSON object, or too long.
        RollcastError: the error that the coordinator answers with.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token and not target.url and key_path(target.run_folder).exists():
        token = key_of(target.run_folder)
    return await _answer(session, target, "GET", path, token, None)


async def post(
    session: aiohttp.ClientSession,
    target: Target,
    path: str,
    values: Mapping[str, Any],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Any]:
    """Post an act with the token in ROLLCAST_TOKEN, or else with the run folder's key.

    Raises:
        RunFolderError: the folder has no key.
        NotAllowed: the token's role may not perform this act.
        RollcastError: see fetch.
    """
    token = os.environ.get(TOKEN_VARIABLE, "") or key_of(target.run_folder)
    return await _answer(session, target, "POST", path, token, values, timeout_s)


def key_path(run_folder: Path) -> Path:
    """Return the path of the run's own key, which is an admin token."""
    return RunFolder(run_folder).secrets / "operator.key"


def key_of(run_folder: Path) -> str:
    """Return the run's own key.

    Raises:
        RunFolderError: the folder has no key, or this user may not read it.
    """
    try:
        return key_path(run_folder).read_text().strip()
    except OSError as error:
        if not run_folder.exists():
            raise no_run(run_folder, "key") from None
        raise RunFolderError(
            f"{run_folder} has no key for acts",
            cause=str(error),
            fix=f"give the run folder on the coordinator's machine with --run-folder, or a token in {TOKEN_VARIABLE}",
        ) from None


def page_link(target: Target) -> str:
    """Return the dashboard's address with the run's key after a #: browsers do not send that part to any server.

    Raises:
        RunFolderError: see Target and key_of.
    """
    return f"{target.page_url()}/#token={key_of(target.run_folder)}"


def _bearing(token: str, url: str) -> dict[str, str]:
    """Return the headers that carry the token; empty without a token.

    Raises:
        ConfigError: the URL is plain HTTP beyond loopback, where anyone on the path could read the token.
    """
    if not token:
        return {}
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError(f"refusing to send a token to {url} without TLS", fix="give an https address")
    return {"Authorization": f"Bearer {token}"}


def _unreachable(target: Target, url: str, error: Exception) -> RunOver | Unreachable:
    """Return why no coordinator answers: often its run is over."""
    summary = RunFolder(target.run_folder).summary
    if not target.url and summary.exists():
        written = json.loads(summary.read_text())
        read = "read its folder with `rollcast report`, `samples`, `explain` and `why`"
        finished = written.get("phase") == "finished"
        go_on = f"`rollcast up --continue {target.run_folder}`" if is_of_up(target.run_folder) else "its coordinator"
        return RunOver(
            f"the run in {target.run_folder} {'is over' if finished else 'was stopped'}, and its coordinator with it",
            cause=f"it ended: {written.get('ended_because') or 'see summary.json'}",
            fix=read if finished else f"{read}, or start {go_on} to go on",
        )
    number = error.errno if isinstance(error, OSError) else None
    return Unreachable(
        f"no coordinator answers at {url}",
        cause=(os.strerror(number) if number else str(error)) or "no answer in time",
        fix="check the address, and that the coordinator is running (its log is in the run folder)",
    )


async def _answer(
    session: aiohttp.ClientSession,
    target: Target,
    method: str,
    path: str,
    token: str,
    values: Mapping[str, Any] | None,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Any]:
    import aiohttp

    from rollcast.wire.joining.pinned_http import json_object, read_bounded

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
            status, answering = response.status, response.headers.get(RUN_HEADER, "")
    except aiohttp.ClientConnectorCertificateError as error:
        raise WrongKey(
            f"the server at {url} has no certificate of this run",
            cause=str(error),
            fix="give the run's CA certificate with --ca-file, or the run folder with --run-folder",
        ) from None
    except (aiohttp.ClientError, aiohttp.InvalidURL, OSError, TimeoutError, ValueError) as error:
        raise _unreachable(target, url, error) from None
    _check_run(target, answering)
    if status != 200:
        raise error_from_json(data) or Unreachable(
            f"{url} answers {status}", fix="check that this is a coordinator of the same Rollcast version"
        )
    return json_object(data, url, fix="check the address")


def _check_run(target: Target, answering: str) -> None:
    """Check that the run which answers is the one that was asked for, where both are known.

    Raises:
        Unreachable: it is another one.
    """
    expected = target.run_id()
    if expected and answering and answering != expected:
        raise Unreachable(
            f"the coordinator of the run in {target.run_folder} is not running",
            cause=f"{answering} has its address {target.http_url()} now, not {expected}",
            fix="start the run's coordinator again, or give the folder of the other run with --run-folder",
        )


def post_sync(target: Target, path: str, values: Mapping[str, Any], *, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """Post an act from a command without an event loop; see post."""
    import aiohttp

    async def run() -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            return await post(session, target, path, values, timeout_s=timeout_s)

    return asyncio.run(run())


def fetch_sync(target: Target, path: str) -> dict[str, Any]:
    """Return the JSON object at ``path`` to a command without an event loop; see fetch."""
    import aiohttp

    async def run() -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            return await fetch(session, target, path)

    return asyncio.run(run())
