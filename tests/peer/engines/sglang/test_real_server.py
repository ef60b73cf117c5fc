"""Run the suite of all engines on a real SGLang server, where one can run."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from peer.engines.base import Engine, VersionState
from peer.engines.sglang.config import SglangConfig
from peer.engines.sglang.engine import SglangEngine
from peer.engines.sglang.version_folders import VersionFolders
from rollcast.policy.config import ModelConfig
from rollcast.wire.versions.records import VersionRecord
from tests.peer.engines.engine_conformance import EngineConformance, RefusesNonsense
from tests.peer.engines.test_jax_engine import jax_version

PYTHON = os.environ.get("ROLLCAST_SGLANG_PYTHON", "")
START_S = 600.0

if shutil.which("nvidia-smi") is None:
    pytest.skip("no NVIDIA GPU: the engine is untested with a real SGLang server", allow_module_level=True)
if not PYTHON and importlib.util.find_spec("sglang") is None:
    found = "no SGLang: set ROLLCAST_SGLANG_PYTHON to the Python of an environment that has it"
    pytest.skip(found, allow_module_level=True)

# Sizes for which attention kernels of GPUs are written.
MODEL = ModelConfig(
    vocabulary_size=256,
    layers=2,
    width=256,
    query_heads=4,
    key_value_heads=2,
    head_size=64,
    feed_forward_width=512,
    precision="bfloat16",
)


@functools.cache
def real_version(version: int) -> tuple[VersionRecord, bytes]:
    return jax_version(version, MODEL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server with other weights of the model, in deterministic mode; yield its address."""
    folder = tmp_path_factory.mktemp("sglang")
    record, state = real_version(99)
    model = VersionFolders(folder).write(VersionState(record, memoryview(state)), MODEL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [PYTHON or sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--skip-tokenizer-init", "--context-length", "512"]
    command += ["--enable-deterministic-inference", "--mem-fraction-static", "0.3", "--disable-cuda-graph"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until_healthy(process, f"http://127.0.0.1:{port}/health", folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=60.0):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1.0)
    raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}")


class TestRealServer(EngineConformance, RefusesNonsense):
    def make_engine(self) -> Engine:
        raise NotImplementedError  # the fixture needs the server's address

    def make_version(self, version: int) -> tuple[VersionRecord, bytes]:
        return real_version(version)

    @pytest.fixture
    async def engine(self, server: str, tmp_path: Path) -> AsyncIterator[Engine]:
        engine = SglangEngine(SglangConfig(url=server), tmp_path, concurrent_rollouts=4)
        yield engine
        await engine.close()
