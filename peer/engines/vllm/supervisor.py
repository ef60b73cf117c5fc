"""Keep a vLLM server running with the right model and version, and start it again when it fails."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from peer.engines.base import Swap
from peer.engines.vllm.checkpoint import Checkpoint, ServerShape
from peer.engines.vllm.environment import Workspace
from peer.engines.vllm.exchange import Exchange
from peer.engines.vllm.process import ServerLost, ServerProcess
from peer.engines.vllm.server.frames import Frame
from rollcast.runtime.errors import ModelError, ProcessFailed

START_TIMEOUT_S = 1800.0
"""Longest start in seconds: vLLM compiles a large model for a GPU and captures its graphs in minutes."""
SILENCE_TIMEOUT_S = 300.0
"""Seconds without a token of any request after which the server hangs: one step of prompts, at worst."""

RESTARTS_MAX = 5
RESTARTS_WINDOW_S = 600.0
RESTART_DELAY_FIRST_S = 1.0

Result = TypeVar("Result")
log = structlog.get_logger()


class Restarts:
    """Decides whether a server that failed is started again, and after how long. Pure."""

    def __init__(self) -> None:
        self._failed_s: deque[float] = deque(maxlen=RESTARTS_MAX)

    def delay_s(self, now: float) -> float | None:
        """Return the seconds to wait before the next start; None: it failed too often in RESTARTS_WINDOW_S."""
        recent = [one for one in self._failed_s if one > now - RESTARTS_WINDOW_S]
        if len(recent) >= RESTARTS_MAX:
            return None
        self._failed_s.append(now)
        return RESTART_DELAY_FIRST_S * float(2 ** len(recent))


class Supervisor:
    """The server, over all its lives. Only one of `prepare`, `generate` and `abort` runs at a time.

    Args:
        command: program to start, to which the number of its socket is added.
        environment: its environment variables.
    """

    def __init__(self, command: Sequence[str], workspace: Workspace, environment: dict[str, str]) -> None:
        self._command = tuple(command)
        self._workspace = workspace
        self._environment = environment
        self._process: ServerProcess | None = None
        self._shape: ServerShape | None = None
        self._exchange: Exchange | None = None
        self._vouching: asyncio.Task[None] | None = None
        self._ready = asyncio.Lock()
        self._restarts = Restarts()
        self._was_ready = False
        self.received_tokens: Callable[[Frame], None] = lambda _: None
        """Called with each frame of tokens; raises ValueError if it is malformed."""
        self.news = asyncio.Event()
        """Set when tokens arrived or the server was lost."""
        self.life = 0
        """The number of starts so far: requests end with the life in which they began."""
        self.last_swap: Swap | None = None
        """The newest exchange of weights."""
        self.facts: dict[str, Any] = {}
        """What the server said of itself when it was ready: release, device, number of devices."""

    @property
    def loaded(self) -> str:
        """Return the salt of the version whose weights vLLM holds; empty: none."""
        return "" if self._exchange is None else self._exchange.loaded

    async def prepare(
        self, shape: ServerShape, checkpoint: Checkpoint, *, keep: bool = False, beside: Sequence[Checkpoint] = ()
    ) -> None:
        """Have a server of this shape with this version's weights.

        Args:
            keep: whether running requests of another version go on over their keys and values; otherwise they end.
            beside: older versions whose adapters, over the same base, are needed too; their requests go on.

        Raises:
            ServerLost: it does not start, or does not load them.
            ModelError: vLLM cannot run the model on this machine.
        """
        async with self._ready:
            fits = self._shape is not None and self._shape.serves(shape)
            if self._process is None or self._process.cause or not fits:
                await self._start(shape)
            exchange = self._exchange
            if exchange is not None and not exchange.holds(checkpoint, beside):
                self._stop_vouching()
                self.last_swap = await exchange.put(checkpoint, keep=keep, beside=beside)
                self._vouching = asyncio.create_task(self._vouch(exchange, self.last_swap))

    async def get_ready(self, checkpoint: Checkpoint) -> None:
        """Move what a version changes to the devices, if vLLM holds another version and little differs."""
        if self._exchange is None:
            return
        try:
            await self._exchange.get_ready(checkpoint)
        except (ServerLost, OSError) as error:  # whoever generates notices that the server is lost
            log.warning("a version's changes could not be prepared", version=checkpoint.version, cause=str(error))

    @property
    def is_vouched(self) -> bool:
        """Whether `vouched` would return at once."""
        task = self._vouching
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    async def vouched(self) -> None:
        """Wait until the loaded weights have been read back, where that is possible.

        Raises:
            WrongWeights: they are not those of the version.
            ServerLost: the server is lost.
        """
        if self._vouching is None:
            raise ServerLost("vLLM holds no version")
        await asyncio.shield(self._vouching)

    def generate(self, requests: list[dict[str, Any]], prompts: bytes, salt: str) -> None:
        """Start requests under a version that is loaded (see server.completions.Request).

        Raises:
            ServerLost: the server is lost.
        """
        self._running().send(Frame({"do": "generate", "requests": requests, "salt": salt}, prompts))

    def abort(self, numbers: Sequence[int]) -> None:
        """Abort requests; those that have ended are ignored, and so is a server that is lost."""
        if numbers and self._process is not None and not self._process.cause:
            self._process.send(Frame({"do": "abort", "numbers": list(numbers)}))

    def check(self) -> None:
        """
        Raises:
            ServerLost: the server is lost.
        """
        process = self._running()
        if process.cause:
            raise ServerLost(process.cause)

    async def surely(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Do some work with the server; if the server is lost, end it, and try again after a while.

        Raises:
            ProcessFailed: it failed too often, or was never ready.
            RollcastError: see the work.
        """
        while True:
            try:
                return await work()
            except ServerLost as lost:
                await self._wait_to_restart(lost)

    async def close(self) -> None:
        """End the server."""
        self._stop_vouching()
        self._exchange = None
        process, self._process = self._process, None
        if process is not None:
            await process.close()

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise ServerLost("vLLM is not running")
        return self._process

    async def _call(self, header: dict[str, Any], timeout_s: float, doing: str) -> dict[str, Any]:
        return await self._running().call(header, timeout_s=timeout_s, doing=doing)

    async def _start(self, shape: ServerShape) -> None:
        await self.close()
        self.life += 1
        self._shape = shape
        self._process = ServerProcess(self._received, self.news.set)
        await self._process.start(self._command, self._environment, self._workspace.folder)
        log.info("vllm starts", tokens_max=shape.tokens_max, dtype=shape.dtype)
        settings = shape.settings(self._workspace.folder / "model")
        answer = await self._call({"do": "start", "settings": settings}, START_TIMEOUT_S, "starting vLLM")
        if "refused" in answer:
            raise ModelError(
                "vLLM cannot run the model on this machine",
                cause=str(answer["refused"])[:2000],
                fix='set engine.kind = "jax" on this peer',
            )
        self.facts = dict(answer["facts"])
        self._was_ready = True
        self._exchange = Exchange(self._call, self._workspace.folder / "exchange")
        log.info("vllm is ready", **self.facts)

    async def _vouch(self, exchange: Exchange, swap: Swap) -> None:
        if not swap.read_back:
            self.last_swap = await exchange.read_back(swap)

    def _stop_vouching(self) -> None:
        """Leave the loaded weights without a proof: no token of theirs is given out any more."""
        if self._vouching is not None:
            self._vouching.cancel()
            self._vouching = None

    def _received(self, frame: Frame) -> None:
        match frame.header["is"]:
            case "tokens":
                self.received_tokens(frame)
                self.news.set()
            case "progress":
                log.info("vllm start", doing=str(frame.header["doing"])[:100])
            case other:
                raise ValueError(f"unknown message {other!r}")

    async def _wait_to_restart(self, lost: ServerLost) -> None:
        self._stop_vouching()
        self._exchange = None
        process, self._process = self._process, None
        if process is not None:
            await process.close()
        delay_s = self._restarts.delay_s(asyncio.get_running_loop().time()) if self._was_ready else None
        if delay_s is None:
            raise ProcessFailed(
                "vLLM failed" + (f" {RESTARTS_MAX + 1} times within a while" if self._was_ready else " to start"),
                cause=str(lost),
                fix="see the lines of `vllm` in this peer's log; if memory ran out, lower engine.concurrent_rollouts, "
                "engine.cache_tokens or limits.vram_share_max",
            ) from None
        log.warning("vllm is lost and will be started again", cause=str(lost), delay_s=delay_s)
        await asyncio.sleep(delay_s)


def server_command(python: Path, workspace: Workspace) -> tuple[list[str], dict[str, str]]:
    """Return the server's command line, without its socket, and its environment variables."""
    command = [str(python), "-P", "-m", "peer.engines.vllm.server.main", str(workspace.lock)]
    return command, workspace.environment(os.environ)
