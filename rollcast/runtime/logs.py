"""Configure logging with structlog: one JSON object per line in a file, short lines on a terminal."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

_SECRET_WORDS = ("token", "secret", "invite", "private", "password", "key_pem")
_NOT_SECRET = ("tokens", "token_ids", "tokens_per_second", "fencing_token", "public_key")

LOG_BYTES_MAX = 64 << 20
BURST_S = 0.05  # between two writes of a log's lines while a loop runs; as much of it may be lost with a killed process

_RECENT_KEPT = 200
_TEXT_LENGTH_MAX = 400

_file = contextlib.ExitStack()  # the log in use, whose lines it writes and whose file it closes; one for the process
atexit.register(_file.close)
_recent: deque[dict[str, Any]] = deque(maxlen=_RECENT_KEPT)


def redact(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace the values of fields whose name suggests a secret."""
    for name in event:
        lowered = name.lower()
        if any(word in lowered for word in _SECRET_WORDS) and not any(word in lowered for word in _NOT_SECRET):
            event[name] = "[redacted]"
    return event


class _BoundedFile:
    """A log file of bounded size: once full it is renamed to NAME.1, replacing the last one, and a new file begins."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._size_bytes = self._file.tell()

    def write(self, text: str) -> int:
        if self._size_bytes + len(text) > self._bytes_max and not self._file.closed:
            self._file.close()
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        if self._file.closed:  # also after an attempt to open it failed because the disk was full
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._size_bytes = self._file.tell()
        self._size_bytes += len(text)
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _remember(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Keep the newest lines in memory for the owner's page."""
    _recent.append({name: _plain(value) for name, value in event.items()})
    return event


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | bool | None) else str(value)[:_TEXT_LENGTH_MAX]


def recent_lines() -> list[dict[str, Any]]:
    """Return the newest lines of this process's log, oldest first, redacted as in the log itself."""
    return list(_recent)


class _LossyStream:
    """Writes the lines of a burst together, and discards text that cannot be written.

    Each write lets other threads run, for which an event loop then waits: with a line for each of a hundred sessions
    that open in one turn, a coordinator was blocked for up to 90 ms. A line that comes less than BURST_S after the last
    write waits for the others, if there is a loop to write them. A full disk must not end a process through its log.
    """

    def __init__(self, stream: TextIO | _BoundedFile) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._waiting: list[str] = []
        self._next_at = 0.0  # when the next line may be written by itself, on the monotonic clock

    def write(self, text: str) -> int:
        with self._lock:
            self._waiting.append(text)
            now = time.monotonic()
            loop = _running_loop() if now < self._next_at else None
            if loop is None:
                self.write_out()
            elif len(self._waiting) == 1:
                loop.call_later(self._next_at - now, self.write_out)
        return len(text)

    def flush(self) -> None:
        """Do nothing: the logger flushes after each line."""

    def write_out(self) -> None:
        """Write the lines that wait, if there are any."""
        with self._lock:
            if not self._waiting:
                return
            text, self._waiting = "".join(self._waiting), []
            self._next_at = time.monotonic() + BURST_S
            with contextlib.suppress(OSError):
                self._stream.write(text)
                self._stream.flush()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class FirstFailures:
    """Logs only the first of several failures in a row of something that is tried again and again.

    Args:
        log: the logger of the module that tries.
        event: what a warning says.
    """

    def __init__(self, log: Any, event: str) -> None:
        self._log = log
        self._event = event
        self._is_failing = False

    def failed(self, **facts: str) -> None:
        """Note a failure; log it with these facts if the last attempt did not fail."""
        if not self._is_failing:
            self._log.warning(self._event, **facts)
        self._is_failing = True

    def worked(self) -> None:
        """Note that an attempt did not fail."""
        self._is_failing = False


def configure_logging(
    role: str, *, log_file: Path | None = None, level: int = logging.INFO, bytes_max: int = LOG_BYTES_MAX
) -> None:
    """Send this process's logs to ``log_file`` (JSON lines), or to stderr if it is None.

    A second call replaces the destination. The file and the rotated one have at most ``bytes_max`` bytes each.
    """
    _file.close()
    stream: TextIO | _BoundedFile = sys.stderr
    if log_file:
        stream = _file.enter_context(contextlib.closing(_BoundedFile(log_file, bytes_max)))
    lines = _LossyStream(stream)
    _file.callback(lines.write_out)
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
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, lines)),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(role=role)
