"""Send requests to a service that scores: bounded answers, retries, a cap on concurrency, a circuit breaker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from coordinator.config.checks import HttpServiceConfig
from coordinator.tasks.checks.task import ScoringFailure
from rollcast.runtime.errors import TaskError
from rollcast.runtime.waits import backoff_delays_s

if TYPE_CHECKING:
    import aiohttp  # loaded by the first request: every verifier process would spend a third of its start on it

FAILURES_IN_A_ROW_MAX = 5
"""Requests that fail in a row, each after all its attempts, after which the service is left alone for a while."""
REST_S = 10.0
"""Seconds for which requests then fail at once; the first one afterwards is a trial."""
RETRY_FIRST_S = 0.25
RETRY_MOST_S = 8.0
SECRET_BYTES_MAX = 64 << 10
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_SHOWN_LENGTH = 300


def read_secret(path: Path) -> str:
    """Return the secret in a file.

    Raises:
        TaskError: the file cannot be read, or holds no secret.
    """
    try:
        with path.expanduser().open("rb") as file:
            secret = file.read(SECRET_BYTES_MAX).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise TaskError(
            f"cannot read the secret in {path}", cause=type(error).__name__, fix="correct secret_file"
        ) from None
    if not secret or any(character.isspace() for character in secret):
        raise TaskError(
            f"{path} holds no secret", cause="it is empty or has several words", fix="write one token to it"
        )
    return secret


class ServiceClient:
    """A client of one service. Used on one event loop; ``close`` ends its connections."""

    def __init__(self, config: HttpServiceConfig) -> None:
        self._config = config
        self._secret = ""
        self._session: aiohttp.ClientSession | None = None
        self._at_once = asyncio.Semaphore(config.concurrency)
        self._random = Random()
        self._failures = 0
        self._rests_until = 0.0

    def load_secret(self) -> None:
        """Read the secret.

        Raises:
            TaskError: the file cannot be read, or holds no secret.
        """
        if self._config.secret_file is not None:
            self._secret = read_secret(self._config.secret_file)

    async def post(self, path: str, body: Any) -> Any:
        """Send JSON and return the JSON of the answer.

        Raises:
            ScoringFailure: the service does not answer as it should, after all attempts.
        """
        clock = asyncio.get_running_loop().time
        async with self._at_once:
            if clock() < self._rests_until:
                reason = f"{self._config.url} failed {self._failures} times in a row and rests"
                raise ScoringFailure("unavailable", reason)
            try:
                answer = await self._attempts(path, json.dumps(body).encode())
            except ScoringFailure:
                self._failures += 1
                if self._failures >= FAILURES_IN_A_ROW_MAX:
                    self._rests_until = clock() + REST_S
                raise
            self._failures = 0
            return answer

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _attempts(self, path: str, body: bytes) -> Any:
        delays: Iterator[float] = backoff_delays_s(self._random, first_s=RETRY_FIRST_S, most_s=RETRY_MOST_S)
        for attempt in range(1, self._config.attempts + 1):
            why, again = await self._attempt(path, body)
            if not isinstance(why, str):
                return why[0]
            if not again or attempt == self._config.attempts:
                raise ScoringFailure("unavailable", f"{self._config.url}: {self._hidden(why)}")
            await asyncio.sleep(next(delays))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _attempt(self, path: str, body: bytes) -> tuple[str | tuple[Any], bool]:
        """Return the answer in a tuple; or why there is none, and whether another attempt may help."""
        import aiohttp

        if self._session is None:
            headers = {"Content-Type": "application/json"}
            if self._secret:
                headers["Authorization"] = f"Bearer {self._secret}"
            config = self._config
            limits = aiohttp.ClientTimeout(total=config.attempt_timeout_s, connect=config.connect_timeout_s)
            self._session = aiohttp.ClientSession(headers=headers, timeout=limits)
        try:
            async with self._session.post(self._config.url + path, data=body, allow_redirects=False) as response:
                most = self._config.response_bytes_max
                content = await response.content.read(most + 1)
                while len(content) <= most and (more := await response.content.read(most + 1 - len(content))):
                    content += more
                if len(content) > most:
                    return f"its answer has more than {most} bytes", False
                if response.status != 200:
                    text = content[:_SHOWN_LENGTH].decode(errors="replace")
                    return f"status {response.status}: {text}", response.status in _RETRIED
                return (json.loads(content),), False
        except TimeoutError:  # of aiohttp; what bounds all attempts cancels this one
            return f"no answer within {self._config.attempt_timeout_s:g} s, or no connection within its time", True
        except (aiohttp.ClientError, OSError) as error:
            return f"{type(error).__name__}: {error}", True
        except ValueError:
            return "its answer is not JSON", False

    def _hidden(self, text: str) -> str:
        """Return a text of the service without the secret, which it may repeat."""
        return text.replace(self._secret, "***") if self._secret else text
