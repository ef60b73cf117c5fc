"""Write the archive of `rollcast peer bugreport`: facts, status, configuration and logs of this machine, no secrets.

Only the files that are named here are included. Keys, certificates, prompts, rollouts and weights are not, and every
text goes through Redactor: it removes each secret that is known on this machine wherever it stands, and anything that
has the form of a secret. When in doubt it removes too much.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peer.config import PeerConfig
from peer.donor.install.join import PeerPaths
from peer.donor.install.manager import installed
from peer.donor.install.running import crash_log, holder_of
from peer.donor.machine.facts import machine_facts
from peer.donor.page.server import FILE as PAGE_FILE
from rollcast.runtime.config import dump_json, load_config
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.run_folder import run_folder_error, write_atomically
from rollcast.runtime.version import software_version
from rollcast.wire.donor.control_socket import request
from rollcast.wire.joining.invite import Invite

REDACTED = "[redacted]"
_LENGTH_LEAST = 8  # a shorter "secret" would remove ordinary words

_NAMES = (
    r"[\w.-]*(?:secret|passw(?:or)?d|api[_-]?key|access[_-]?key|authorization|cookie|private|credential|token|invite)"
    r"[\w.-]*"
)
_NOT_SECRET = (
    r"(?!(?:[\w.-]*(?:tokens|token_ids|fencing_token|tokens_per_second)[\w.-]*|invite_file|public_key|headers_file))"
)

_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL), "[key or certificate]"),
    (re.compile(r"rollcast1-[A-Za-z0-9_=-]{8,}"), "[invite]"),
    (re.compile(r"(?i)\b(bearer|invite|basic|digest)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {REDACTED}"),
    (re.compile(rf"(?i)(\"{_NOT_SECRET}{_NAMES}\"\s*:\s*)\"(?:[^\"\\]|\\.)*\""), rf'\1"{REDACTED}"'),
    (
        re.compile(rf"(?im)(^|[\s,;&?{{])({_NOT_SECRET}{_NAMES}\s*[=:]\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&]+)"),
        rf"\1\2{REDACTED}",
    ),
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s\"'@]+@"), rf"\1{REDACTED}@"),
    (re.compile(r"(?i)(\bhttps?://[^\s\"'?#]+)[?#][^\s\"']*"), rf"\1?{REDACTED}"),
    (re.compile(r"\b(?:hf_|gh[pousr]_|github_pat_|sk-|glpat-|xox[abpr]-|AKIA|ASIA)[A-Za-z0-9_-]{10,}"), REDACTED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), REDACTED),
)


class Redactor:
    """Remove secrets from texts that other people will read.

    Args:
        secrets: texts that must not occur anywhere in the result.
        home: this user's home folder, whose path may hold a name; it becomes ``~``.
    """

    def __init__(self, secrets: Iterable[str], *, home: str = "") -> None:
        found = {part for secret in secrets for part in (secret.strip(), *secret.split()) if len(part) >= _LENGTH_LEAST}
        self._secrets = sorted(found, key=len, reverse=True)
        self._home = home.rstrip("/")

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        for form, put in _FORMS:
            text = form.sub(put, text)
        return text.replace(self._home, "~") if self._home else text


LOG_BYTES_MAX = 2 << 20
_SMALL_BYTES_MAX = 1 << 20
_NOT_FOUND = "not found: "
_README = """\
A bug report of a Rollcast peer. Every file is plain text: look through it before you send it.
It holds no keys, certificates, invites or tokens, no prompts, rollouts or weights; your home folder is written as ~.
"""


@dataclass(frozen=True, slots=True)
class BugReport:
    """What an archive holds.

    Args:
        files: names of the files in it.
        absent: names of those that only say that this machine does not have them.
    """

    files: tuple[str, ...]
    absent: tuple[str, ...]


def bug_report(places: PeerPaths, config_home: Path, *, out: Path) -> BugReport:
    """Write the archive, and return what it holds.

    Raises:
        RunFolderError: the archive cannot be written.
    """
    redactor = Redactor(secrets_of(places), home=str(Path.home()))
    files = {name: redactor.clean(text) for name, text in _texts(places, config_home).items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, _archive(files, out.name.removesuffix(".tar.gz")), mode=0o600)
    except OSError as error:
        raise run_folder_error(out.parent, error) from None
    absent = [name for name, text in files.items() if text.startswith(_NOT_FOUND)]
    return BugReport(tuple(sorted(files)), tuple(sorted(absent)))


def _texts(places: PeerPaths, config_home: Path) -> dict[str, str]:
    state = places.state_folder
    parts: dict[str, Callable[[], str]] = {
        "README.txt": lambda: _README,
        "machine.json": lambda: _json(asdict(machine_facts(state, link_host="127.0.0.1", link_port=0))),
        "software.txt": software_version,
        "environment.json": lambda: _json(_environment()),
        "status.json": lambda: _json(_status(state)),
        "config.json": lambda: dump_json(load_config(places.config_file, PeerConfig)),
        "limits.json": lambda: _read(state / "limits.json"),
        "donor.json": lambda: _read(state / "donor.json"),
        "receipts.json": lambda: _read(state / "receipts" / "counts.json"),
        "state-folder.txt": lambda: _listing(state),
        "unit.txt": lambda: _unit(config_home),
        "peer.log": lambda: _read(places.log_file, LOG_BYTES_MAX),
        "peer.log.1": lambda: _read(places.log_file.with_name("peer.log.1"), LOG_BYTES_MAX),
        "peer.err": lambda: _read(crash_log(places.log_file), LOG_BYTES_MAX),
    }
    return {name: _safely(make) for name, make in parts.items()}


def _safely(make: Callable[[], str]) -> str:
    """Return the text, or the reason why there is none: a report must work on a broken machine too."""
    try:
        return make()
    except FileNotFoundError as error:
        return f"{_NOT_FOUND}{error.filename}\n"
    except (RollcastError, OSError, ValueError) as error:
        return f"cannot be read: {error}\n"


def secrets_of(places: PeerPaths) -> list[str]:
    """Return the secrets in this peer's files: invites and their tokens, keys, headers for mirrors, page tokens."""
    texts = [_secret(path) for path in _secret_files(places)]
    found = [line for text in texts for line in text.splitlines() if not line.startswith("-----")]
    found += [value for text in texts for value in _json_values(text)]
    try:
        config = load_config(places.config_file, PeerConfig)
    except RollcastError:
        config = PeerConfig()  # secrets of a broken configuration are still removed by their form
    texts.append(config.invite.get_secret_value())
    if config.invite_file is not None:
        texts.append(_secret(config.invite_file))
    if config.mirror.headers_file is not None:
        found += _header_values(_secret(config.mirror.headers_file))
    for text in texts:
        found += _invite_parts(text)
    return found


def _secret(path: Path) -> str:
    """Return the text of a file with secrets; empty: it cannot be read."""
    try:
        return _read(path)
    except OSError:
        return ""


def _json_values(text: str) -> list[str]:
    try:
        return list(_values(json.loads(text)))
    except ValueError:
        return []


def _invite_parts(text: str) -> list[str]:
    try:
        return [Invite.decode(text).token, text]
    except RollcastError:
        return [text] if text.startswith("rollcast1-") else []


def _header_values(text: str) -> list[str]:
    try:
        return list(_values(tomllib.loads(text)))
    except tomllib.TOMLDecodeError:
        return text.split()


def _secret_files(places: PeerPaths) -> list[Path]:
    state = places.state_folder
    return [places.invite_file, *(state / name for name in ("identity.key", "credentials.pem", PAGE_FILE))]


def _values(values: Any) -> Iterable[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _values(value)
    elif isinstance(values, list):
        for value in values:
            yield from _values(value)


def _environment() -> dict[str, str]:
    """Return the environment variables that change what a peer does; all others are private."""
    wanted = ("ROLLCAST_", "JAX_", "XLA_", "CUDA_VISIBLE", "XDG_", "LANG", "TZ")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(wanted)}


def _status(state: Path) -> dict[str, Any]:
    return {"process": holder_of(state), **request(state, {"do": "status"})}


def _listing(folder: Path) -> str:
    lines = []
    for path in sorted(folder.rglob("*"))[:2000]:
        found = path.lstat()
        lines.append(
            f"{found.st_mode:o} {found.st_size:>12} {datetime.fromtimestamp(found.st_mtime, UTC):%F %T} {path}"
        )
    return "\n".join(lines)


def _unit(config_home: Path) -> str:
    manager = installed(config_home)
    return "none is installed\n" if manager is None else f"{manager.unit_file}\n\n{manager.unit_file.read_text()}"


def _read(path: Path, most: int = _SMALL_BYTES_MAX) -> str:
    """Return the last ``most`` bytes of a file as text."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        return file.read(most).decode("utf-8", errors="replace")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str)


def _archive(files: Mapping[str, str], folder: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(data), 0o600
            entry.mtime = int(datetime.now(UTC).timestamp())
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
