"""Logging: structlog, one JSON object a line in the file, short lines on a terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

_SECRET_WORDS = ("token", "secret", "invite", "private", "password", "key_pem")
_NOT_SECRET = ("tokens", "token_ids", "tokens_per_second", "fencing_token", "public_key")

LOG_BYTES_MAX = 64 << 20

_RECENT_KEPT = 200
_TEXT_LENGTH_MAX = 400

_file = contextlib.ExitStack()  # the log file in use; logging is one for the process
_recent: deque[dict[str, Any]] = deque(maxlen=_RECENT_KEPT)


def redact(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace values whose name says that they are secret."""
    for name in event:
        lowered = name.lower()
        if any(word in lowered for word in _SECRET_WORDS) and not any(word in lowered for word in _NOT_SECRET):
            event[name] = "[redacted]"
    return event


class _BoundedFile:
    """A log that never takes more than twice its bound: once full it becomes NAME.1, and a new one begins."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._size_bytes = self._file.tell()

    def write(self, text: str) -> int:
        if self._size_bytes + len(text) > self._bytes_max and not self._file.closed:
            self._file.close()
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        if self._file.closed:  # also where the disk was full a moment ago
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._size_bytes = self._file.tell()
        self._size_bytes += len(text)
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _remember(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Keep the newest lines in memory, for a page on this machine."""
    _recent.append({name: _plain(value) for name, value in event.items()})
    return event


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | bool | None) else str(value)[:_TEXT_LENGTH_MAX]


def recent_lines() -> list[dict[str, Any]]:
    """The newest lines of this process's log, oldest first, wherever they went: what was redacted there is here too."""
    return list(_recent)


class _LossyStream:
    """Drops what cannot be written: a full disk must not end a process by way of its log."""

    def __init__(self, stream: TextIO | _BoundedFile) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure_logging(
    role: str, *, log_file: Path | None = None, level: int = logging.INFO, bytes_max: int = LOG_BYTES_MAX
) -> None:
    """Send this process's logs to ``log_file`` (JSON lines), or to stderr when there is none.

    Called again, it replaces where they went before. A file has ``bytes_max`` at most, and the one before it as many.
    """
    _file.close()
    stream: TextIO | _BoundedFile = sys.stderr
    if log_file:
        stream = _file.enter_context(contextlib.closing(_BoundedFile(log_file, bytes_max)))
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if log_file else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            redact,
            structlog.processors.format_exc_info,
            _remember,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _LossyStream(stream))),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(role=role)
