"""Read request headers for mirrors that ask for credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcast.runtime.config import read_toml
from rollcast.runtime.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_VALUE = re.compile(r"[\x20-\x7e]{0,8192}")


class MirrorHeaders:
    """Headers by prefix of the address. A prefix ends with "/", so that it names one host and one folder.

    ``repr`` shows no header, because headers hold secrets.
    """

    def __init__(self, by_prefix: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._by_prefix = {prefix: dict(headers) for prefix, headers in (by_prefix or {}).items()}

    def __repr__(self) -> str:
        return f"MirrorHeaders({len(self._by_prefix)} prefixes)"

    @classmethod
    def read(cls, path: Path) -> MirrorHeaders:
        """Read a TOML file that has one table for each prefix:

            ["https://mirror.example/run-1/"]
            Authorization = "Bearer ..."

        Raises:
            ConfigError: the file is missing or not of this form. The message contains no header's value.
        """
        table = read_toml(path)
        for prefix, headers in table.items():
            _check(path, prefix, headers)
        return cls(table)

    def of(self, url: str) -> dict[str, str]:
        """Return the headers for a request; if several prefixes match, those of the longest."""
        fitting = [prefix for prefix in self._by_prefix if url.startswith(prefix)]
        return dict(self._by_prefix[max(fitting, key=len)]) if fitting else {}


def _check(path: Path, prefix: str, headers: Any) -> None:
    problem = ""
    if not prefix.startswith(("https://", "http://")) or not prefix.endswith("/") or prefix.count("/") < 3:
        problem = "a prefix is an address that ends with /"
    elif not isinstance(headers, dict) or not all(map(_is_header, headers.items())):
        problem = "a header is a name and a line of text"
    if problem:
        raise ConfigError(
            f"{path}: headers of mirrors cannot be read",
            cause=problem,
            fix='write ["https://host/prefix/"] and below it lines like Authorization = "Bearer ..."',
        )


def _is_header(item: tuple[str, Any]) -> bool:
    name, value = item
    allowed = _NAME.fullmatch(name) is not None and name.lower() not in ("host", "range", "accept-encoding")
    return allowed and isinstance(value, str) and _VALUE.fullmatch(value) is not None
