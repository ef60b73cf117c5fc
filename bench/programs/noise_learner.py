"""Run a learner that trains nothing: it publishes versions on command, the way the learner publishes.

usage: python -m bench.programs.noise_learner CONFIG.toml LOG_FILE SIZE_BYTES PEERS LIMIT_S

Commands are lines on stdin, answers are lines of JSON on stdout. The program prints `{"event": "ready"}` once PEERS
peers and the origin are connected. At `publish`, `weights` or `update` it makes a state of at least SIZE_BYTES, hashes,
signs and pushes the version to the origin and prints `origin_holds` with the bytes of each encoding, the Unix time at
which the state was made and the seconds since then. At `announce` it announces that version, and prints `peers_hold`
with the coordinator's T_bcast once every peer holds it. It ends when stdin is closed.

    publish   random bytes, which neither compression nor a delta makes smaller
    weights   new bf16 weights of a layer stack (bench.broadcast.updates), unrelated to those before, so no delta helps
    update    those weights after one more step of training
    file      random bf16 weights
    file-step those weights after a step that changes 1 % of them

All but the first are frozen block by block, as a learner's parameters are tensor by tensor.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import SystemRandom
from typing import Any

import aiohttp
import ml_dtypes
import numpy as np

from bench.broadcast import updates
from learner.config import LearnerConfig
from learner.coordinator.client import CoordinatorClient
from learner.publishing.growth import Progress, Write
from learner.publishing.publisher import OriginPusher, Publisher
from learner.publishing.versions import Freezing, RetainedVersions
from rollcast.policy.config import ModelConfig
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.config import load_config
from rollcast.runtime.logs import configure_logging
from rollcast.runtime.process import die_with_parent, run_process
from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.certificates import COORDINATOR_NAME
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import Version
from rollcast.wire.joining.enrol import Enrolment, enrol
from rollcast.wire.joining.invite import read_invite
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.records import parse_announcement
from rollcast.wire.versions.tensors import tensor_table

Announce = Callable[[pb.VersionAnnouncement], Awaitable[bool]]

_POLL_S = 0.25
_GONE = ("left", "lost")  # states of peers that the status still lists for a while
_VERSIONS_KEPT = 2
_LEARNING_RATE = 1e-6
_CORRELATION = 0.3  # of successive gradients, see bench.broadcast.updates
_STEPS_MAX = 1 << 20
_LAYER_DIVISOR = 4
_BLOCK_BYTES = 8 << 20
_WEIGHT_SCALE = 0.02
_CHANGED_SHARE = 0.01


def noise(size_bytes: int) -> Snapshot:
    """Return a snapshot of one tensor of ``size_bytes`` random bytes."""
    return Snapshot(tensor_table([("noise", "uint8", (size_bytes,))]), os.urandom(size_bytes))


class Repeated:
    """Weights that are one block repeated, so that a state of any size takes the memory of the block.

    Args:
        names: the tensors of the block: name, dtype and shape of each.
        size_bytes: least size of the state.
    """

    def __init__(self, names: Sequence[tuple[str, str, tuple[int, ...]]], size_bytes: int) -> None:
        block_bytes = tensor_table(names)[-1].offset_bytes + tensor_table(names)[-1].size_bytes
        repeats = range(-(-size_bytes // block_bytes))
        table = [(f"layers/{number}/{name}", dtype, shape) for number in repeats for name, dtype, shape in names]
        self.tensors = tensor_table(table)
        self._repeats = len(repeats)

    def block(self) -> bytes | memoryview:
        """Return the bytes of the block as they are now."""
        raise NotImplementedError

    def begin_freeze(self, path: Path, version: Version) -> Write:
        """Return what writes the weights; see learner.publishing.versions.RetainedVersions.freeze."""
        block = self.block()

        def write(progress: Progress) -> None:
            with path.open("r+b", buffering=0) as file:
                for number in range(self._repeats):
                    left = memoryview(block)
                    while left:
                        left = left[file.write(left) :]
                    progress((number + 1) * len(block))

        return Write(self.tensors, write)


class LayerStack(Repeated):
    """Weights in training: one layer of a quarter of a 4B model's widths, repeated.

    The layers are alike, which saves time and changes no size: no stream of the delta codec reaches from one block to
    the next.
    """

    def __init__(self, size_bytes: int) -> None:
        shapes = updates.layer_shapes(_LAYER_DIVISOR)
        training = updates.Training(np.random.default_rng(), [_LEARNING_RATE], _CORRELATION)
        self._masters = {name: training.masters(shape, _STEPS_MAX) for name, shape in shapes.items()}
        super().__init__([(name, "bfloat16", shape) for name, shape in shapes.items()], size_bytes)
        self._block = b""
        self.step()

    def step(self) -> None:
        """Take a training step; the first call, at construction, gives the weights before training."""
        layer = [one for name, masters in self._masters.items() for one in updates.as_bf16(name, next(masters)[0])]
        self._block = b"".join(values.tobytes() for _, _, values in layer)

    def block(self) -> bytes:
        return self._block


class FileWeights(Repeated):
    """Random weights of which a step changes some."""

    def __init__(self, size_bytes: int) -> None:
        self._rng = np.random.default_rng()
        weights = self._rng.standard_normal(_BLOCK_BYTES // 2, np.float32) * np.float32(_WEIGHT_SCALE)
        self._block = weights.astype(ml_dtypes.bfloat16).view(np.uint16)
        super().__init__([("w", "bfloat16", self._block.shape)], size_bytes)

    def step(self) -> None:
        """Change 1 % of the weights by one unit in the last place."""
        count = int(_CHANGED_SHARE * len(self._block))
        self._block[self._rng.choice(len(self._block), count, replace=False)] += 1

    def block(self) -> memoryview:
        return self._block.data.cast("B")  # no copy: a version is written before the next step


class NoiseLearner:
    """A learner that publishes a version on command and trains nothing.

    Args:
        size_bytes: least size of each version's state.
        limit_s: seconds that all peers have to join, and to hold each version.
    """

    def __init__(
        self, config: LearnerConfig, enrolment: Enrolment, client: CoordinatorClient, size_bytes: int, limit_s: float
    ) -> None:
        self._config = config
        self._enrolment = enrolment
        self._client = client
        self._size_bytes = size_bytes
        self._limit_s = limit_s
        self._weights: LayerStack | FileWeights | None = None
        self._made_at = 0.0  # Unix time at which the newest state was made, or began to be frozen
        publish = config.publish
        self._retained = RetainedVersions(
            RunFolder(config.run_folder).prepare().versions,
            mapped=1,
            in_memory=publish.keeps_states_in_memory,
            newest_only=publish.newest_in_memory_only,
        )

    async def live(self, peers: int, commands: asyncio.StreamReader) -> None:
        """Publish a version at each command until stdin is closed.

        Raises:
            RollcastError: joining, publishing or a wait failed.
        """
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())

            async def announce(announcement: pb.VersionAnnouncement) -> bool:
                sizes = [manifest.size_bytes for manifest in parse_announcement(announcement).manifests]
                seconds = time.time() - self._made_at
                at = {"started_at": self._made_at, "seconds": seconds, "stages_s": publisher.stages_s}
                print_json(event="origin_holds", encoding_bytes=sizes, **at)
                await commands.readline()
                return await self._client.announce(announcement)

            publisher = await self.publisher(stack, http, peers, announce)
            print_json(event="ready")
            version = 0
            while line := await commands.readline():
                snapshot = await asyncio.to_thread(self._snapshot, line.decode().strip(), Version(version))
                await publisher.publish(Version(version), snapshot)
                status = await self._until_held(http, peers, version)
                print_json(event="peers_hold", version=version, t_bcast_s=status["t_bcast_s"]["last"])
                self.forget(version)
                version += 1

    async def publisher(
        self, stack: AsyncExitStack, http: aiohttp.ClientSession, peers: int, announce: Announce
    ) -> Publisher:
        """Return a publisher once the origin and ``peers`` peers are connected."""
        info = await self._client.wait_for_origin(self._config.join_timeout_s)
        await self._until_held(http, peers, None)
        origin = OriginPusher(
            self._find_origin, self._credentials, timeout_s=self._config.publish.timeout_s, random=SystemRandom()
        )
        stack.push_async_callback(origin.close)
        return Publisher(
            identity=Identity.load(self._config.identity_file),
            run=info,
            model_json=ModelConfig().model_dump_json(),
            config=self._config.publish,
            retained=self._retained,
            origin=origin,
            announce=announce,
        )

    def forget(self, newest: int) -> None:
        """Remove all kept versions but the newest ``_VERSIONS_KEPT``; ``newest`` is the one published last."""
        self._retained.remove(self._retained.versions()[:-_VERSIONS_KEPT], oldest_replayed=newest)

    async def _find_origin(self) -> pb.RunInfo:
        return await self._client.wait_for_origin(self._config.join_timeout_s)

    def _snapshot(self, command: str, version: Version) -> Snapshot | Freezing:
        if command == "publish":
            snapshot = noise(self._size_bytes)
            self._made_at = time.time()
            return snapshot
        if command in ("update", "file-step") and self._weights is not None:
            self._weights.step()
        else:
            self._weights = (FileWeights if command.startswith("file") else LayerStack)(self._size_bytes)
        self._made_at = time.time()
        return self._retained.freeze(version, self._weights.begin_freeze)

    async def _credentials(self) -> TlsCredentials:
        """Return the certificate of the enrolment, which no benchmark outlives, so that none is ever renewed."""
        return self._enrolment.credentials

    async def _until_held(self, http: aiohttp.ClientSession, peers: int, version: int | None) -> dict[str, Any]:
        """Return the first status in which all peers are connected, and hold ``version`` unless that is None."""
        waiting_for = f"{peers} peers to join" if version is None else f"{peers} peers to hold version {version}"
        async with deadline(self._limit_s, waiting_for):
            while True:
                status = await self._status(http)
                here = [peer for peer in status["peers"] if peer["role"] == "peer" and peer["state"] not in _GONE]
                held = [peer["active_version"] for peer in here]
                if len(held) == peers and (version is None or all(one is not None and one >= version for one in held)):
                    return status
                await asyncio.sleep(_POLL_S)

    async def _status(self, http: aiohttp.ClientSession) -> dict[str, Any]:
        context = self._enrolment.credentials.ssl_client_context()
        url = f"{self._enrolment.http_url}/api/v1/status"
        assert self._config.invite_file is not None  # the coordinator wrote it into the folder of its operator key
        key = self._config.invite_file.with_name("operator.key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        async with http.get(url, ssl=context, server_hostname=COORDINATOR_NAME, headers=headers) as response:
            response.raise_for_status()
            status: dict[str, Any] = await response.json()
            return status


def print_json(**values: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(values), flush=True)


async def run(config: LearnerConfig, make: Callable[[Enrolment, CoordinatorClient], NoiseLearner], peers: int) -> int:
    """Join the run and publish at the commands of stdin; returns exit status 0.

    Raises:
        RollcastError: see NoiseLearner.live.
    """
    identity = Identity.load(config.identity_file)
    invite = await read_invite("", config.invite_file, config.join_timeout_s)
    enrolment = await enrol(invite, identity, config.run_folder / "enrolment", config.join_timeout_s)

    async def fresh() -> Enrolment:
        return enrolment

    client = CoordinatorClient(
        fresh, identity.public_key, reconnect_timeout_s=config.reconnect_timeout_s, random=SystemRandom()
    )
    loop, commands = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    try:
        await make(enrolment, client).live(peers, commands)
    finally:
        await client.close()
    return 0


def main() -> int:
    die_with_parent()
    config = load_config(Path(sys.argv[1]), LearnerConfig)
    configure_logging("learner", log_file=Path(sys.argv[2]))
    size_bytes, peers, limit_s = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    return run_process(
        lambda _: run(
            config, lambda enrolment, client: NoiseLearner(config, enrolment, client, size_bytes, limit_s), peers
        )
    )


if __name__ == "__main__":
    sys.exit(main())
