"""Serve a peer: start vLLM, load versions, generate. Run as `python -m peer.engines.vllm.server.main LOCK FD`.

FD is the number of a connected Unix socket that the peer left open, LOCK the file that it holds locked. Every command
with an `id` is answered once: {"is": "answer", "id": ...}, with "error" if it failed. Commands are carried out one
after the other, except that tokens are sent meanwhile. The program ends when the socket is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

from peer.engines.vllm.server.completions import Completions, Request
from peer.engines.vllm.server.frames import Frame, FrameReader, encode
from peer.engines.vllm.server.lifetime import end_with_peer
from peer.engines.vllm.server.weight_commands import COMMANDS, WeightCommands

READ_BYTES = 1 << 20
ERROR_LENGTH_MAX = 2_000


class Server:
    """The commands of the peer."""

    def __init__(self, writer: asyncio.StreamWriter, lock: Path) -> None:
        self._writer = writer
        self._lock = lock
        self._llm: Any = None
        self._completions: Completions | None = None
        self._weights: WeightCommands | None = None
        self._adapters: dict[str, Any] = {}  # vLLM's LoRARequest of each version that it holds, by the version's salt
        self._adapted = 0  # versions of adapters so far

    def send(self, frame: Frame) -> None:
        """Send a frame, without waiting: the peer reads all the time, and the tokens of a run bound what is sent."""
        self._writer.write(encode(frame))

    async def handle(self, frame: Frame) -> None:
        """Carry out one command and answer it."""
        command, number = frame.header["do"], frame.header.get("id")
        try:
            answer = await self._carry_out(command, frame)
        except Exception as error:
            if number is None:
                raise
            answer = {"error": f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]}
        if number is not None:
            self.send(Frame({"is": "answer", "id": number, **answer}))

    async def _carry_out(self, command: str, frame: Frame) -> dict[str, Any]:
        match command:
            case "start":
                return await self._start(frame.header["settings"])
            case "adapt":
                return await self._adapt(frame.header["adapters"])
            case "generate":
                salt = frame.header["salt"]
                self._running.begin(Request.read(frame), salt, self._adapters.get(salt))
            case "abort":
                await self._running.end(frame.header["numbers"])
            case _ if command in COMMANDS and self._weights is not None:
                return await self._weights.carry_out(frame.header)
            case _:
                raise ValueError(f"unknown command {command!r}")
        return {}

    @property
    def _running(self) -> Completions:
        if self._completions is None:
            raise RuntimeError("vLLM is not started")
        return self._completions

    async def _start(self, settings: dict[str, Any]) -> dict[str, Any]:
        self.send(Frame({"is": "progress", "doing": "importing vllm"}))
        await self._writer.drain()
        from peer.engines.vllm.server.llm import ModelRefused, facts, start_llm

        found = facts()
        self.send(Frame({"is": "progress", "doing": "starting vllm"}))
        await self._writer.drain()
        try:
            self._llm = start_llm(settings)
        except ModelRefused as error:
            return {"refused": str(error)[:ERROR_LENGTH_MAX]}
        await self._llm.collective_rpc("watch_peer", args=(str(self._lock),))
        completions = self._completions = Completions(self._llm, self.send)
        self._weights = WeightCommands(self._llm, lambda: completions.end(None), completions.go_on_as)
        parallel = self._llm.vllm_config.parallel_config.tensor_parallel_size
        return {"facts": found | {"tensor_parallel": parallel}}

    async def _adapt(self, folders: dict[str, str]) -> dict[str, Any]:
        """Hold the adapters of these versions, which are named by their salts, and no others: their requests end."""
        from vllm.lora.request import LoRARequest

        for salt in self._adapters.keys() - folders.keys():
            await self._running.end_of(salt)
            await self._llm.remove_lora(self._adapters.pop(salt).lora_int_id)
        for salt in folders.keys() - self._adapters.keys():
            self._adapted += 1
            adapters = LoRARequest(salt, self._adapted, folders[salt])
            await self._llm.add_lora(adapters)
            self._adapters[salt] = adapters
        return {}

    def stop(self) -> None:
        """End vLLM's processes. They hold nothing that must be written, so they need no time to end by themselves.

        Python's resource trackers stay: they remove the shared memory of processes that were killed, and then end.
        """
        import psutil  # vLLM needs it itself

        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if not any("resource_tracker" in word for word in child.cmdline()):
                    child.kill()


async def serve(connection: socket.socket, lock: Path) -> None:
    """Serve until the peer closes the connection."""
    reader, writer = await asyncio.open_connection(sock=connection)
    server, frames = Server(writer, lock), FrameReader()
    try:
        while data := await reader.read(READ_BYTES):
            for frame in frames.receive(data):
                await server.handle(frame)
    finally:
        server.stop()
        writer.close()


def main() -> None:
    """Parse the command line and serve."""
    lock, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    end_with_peer(lock)
    asyncio.run(serve(socket.socket(fileno=descriptor), lock))
    os._exit(0)  # without vLLM's own shutdown, which waits for the processes that were ended


if __name__ == "__main__":  # vLLM's workers import this module again where they are spawned
    main()
