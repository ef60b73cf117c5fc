"""Logging: structlog, one JSON object a line in the file, short lines on a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

_SECRET_WORDS = ("token", "secret", "invite", "private", "password", "key_pem")
_NOT_SECRET = ("tokens", "token_ids", "tokens_per_second", "fencing_token", "public_key")

_file = contextlib.ExitStack()  # the log file in use; logging is one for the process


def redact(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace values whose name says that they are secret."""
    for name in event:
        lowered = name.lower()
        if any(word in lowered for word in _SECRET_WORDS) and not any(word in lowered for word in _NOT_SECRET):
            event[name] = "[redacted]"
    return event


class _LossyStream:
    """Drops what cannot be written: a full disk must not end a process by way of its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure_logging(role: str, *, log_file: Path | None = None, level: int = logging.INFO) -> None:
    """Send this process's logs to ``log_file`` (JSON lines), or to stderr when there is none.

    Called again, it replaces where they went before.
    """
    _file.close()
    stream = _file.enter_context(log_file.open("a", encoding="utf-8", buffering=1)) if log_file else sys.stderr
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
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _LossyStream(stream))),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(role=role)
