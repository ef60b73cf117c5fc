"""Test that the torch engine passes the conformance suite, samples the jax engine's tokens, and needs no jax."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from peer.engines.base import Engine, GenerateRequest, VersionState
from peer.engines.jax_engine import JaxEngine
from rollcast.policy.config import Llama3Scaling, ModelConfig
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.records import VersionRecord
from tests.peer.engines.engine_conformance import EngineConformance, RefusesNonsense, generate
from tests.peer.engines.test_jax_engine import MODEL, jax_version

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from peer.engines.torch_engine import TorchEngine  # noqa: E402

torch.set_num_threads(1)  # tiny products: a second thread only waits

SCALING = Llama3Scaling(factor=4.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=16)
LLAMA = MODEL.model_copy(update={"qk_norm": False, "tied_embeddings": False, "rope_scaling": SCALING})
QWEN25 = MODEL.model_copy(update={"qk_norm": False, "attention_bias": True})


class TestTorchEngine(EngineConformance, RefusesNonsense):
    def make_engine(self) -> Engine:
        return TorchEngine(concurrent_rollouts=4)

    def make_version(self, version: int) -> tuple[VersionRecord, bytes]:
        return jax_version(version)

    @pytest.mark.parametrize("model", [MODEL, LLAMA, QWEN25], ids=["qwen3", "llama", "qwen2"])
    async def test_it_samples_the_tokens_of_the_jax_engine(self, engine: Engine, model: ModelConfig) -> None:
        record, state = jax_version(0, model)
        asked = [
            GenerateRequest((5, 6, 7 + index % 3), 2**63 + index, Sampling(0.7, 8, (1,)), (4,) * (index % 2))
            for index in range(8)
        ]
        other = JaxEngine(concurrent_rollouts=4)
        for one in (engine, other):
            await one.load(VersionState(record, memoryview(state)))
            await one.activate(record.version)
        ours, theirs = await generate(engine, asked), await generate(other, asked)
        await other.close()
        assert [item.token_ids for item in ours] == [item.token_ids for item in theirs]
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.logprobs, two.logprobs, atol=2e-5)

    async def test_a_precision_that_transformers_lacks_is_refused(self, engine: Engine) -> None:
        record, state = jax_version(0, MODEL.model_copy(update={"precision": "fp8"}))
        with pytest.raises(MalformedMessage, match="cannot run a model in fp8"):
            await engine.load(VersionState(record, memoryview(state)))


def test_a_peer_with_this_engine_imports_no_jax() -> None:
    code = (
        "import sys, peer.service\n"
        "from peer.config import PeerConfig\n"
        "from peer.startup import make_engine\n"
        "make_engine(PeerConfig(engine={'kind': 'torch'}))\n"
        "found = {name.split('.')[0] for name in sys.modules} & {'jax', 'jaxlib', 'flax', 'ml_dtypes'}\n"
        "sys.exit(str(found) if found else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
