"""Compare logits with those of Hugging Face transformers (torch on the CPU) on random weights.

Transformers makes and saves each family, tied and untied; the product loads the files. The comparison covers the whole
sequence in one pass, and again through both caches: a prompt, then one token at a time. ``max_abs_dlogit_f32`` is the
worst of all float32 comparisons. In bfloat16 two implementations round in different places, so each is compared with
the float32 logits: ``bf16_gap_ratio`` is our distance / theirs (root mean square, the worst case of all),
``bf16_max_ratio`` the same of the largest distances.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.machine import Outcome
from rollcast.policy.attention import segment_attend
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.config import model_config
from rollcast.policy.hub.load import load_params
from rollcast.policy.params import Params, bind
from rollcast.policy.sampling.kv_cache import empty_pages, extend
from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.install import install_command

Logits = np.ndarray[Any, np.dtype[np.float32]]  # [time, vocabulary]

PAGE_TOKENS = 16
VOCABULARY = 503
# Llama's stretch of rotary frequencies at lengths that a test reaches: wavelengths up to some 5,000 tokens occur.
STRETCH = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


# YaRN at lengths that a test reaches, as Qwen3's model card describes it for long contexts.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@dataclass(frozen=True, slots=True)
class Case:
    """One model: a family, tied or not, and for Qwen3 with YaRN or without."""

    family: str
    tied: bool
    yarn: bool = False

    @property
    def name(self) -> str:
        """The beginning of the names of this model's figures."""
        return f"{self.family}_{'tied' if self.tied else 'untied'}{'_yarn' if self.yarn else ''}"

    def settings(self, width: int, layers: int) -> dict[str, Any]:
        """Return the keyword arguments of the library's configuration."""
        rope = YARN if self.yarn else STRETCH if self.family == "llama" else {"rope_type": "default"}
        return {
            "vocab_size": VOCABULARY,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": width // 8,
            "intermediate_size": 3 * width,
            "tie_word_embeddings": self.tied,
            "rms_norm_eps": 1e-5 if self.family == "llama" else 1e-6,
            "max_position_embeddings": 4096,
            "rope_parameters": rope | {"rope_theta": 5e5 if self.family == "llama" else 1e6},
            "attn_implementation": "eager",
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prefill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=("qwen3", "qwen2", "llama"), action="append", help="default: all")


def run(arguments: argparse.Namespace) -> Outcome:
    figures: dict[str, float] = {}
    families = arguments.family or ["qwen3", "qwen2", "llama"]
    cases = [Case(family, tied) for family in families for tied in (True, False)]
    for case in cases + ([Case("qwen3", tied=True, yarn=True)] if "qwen3" in families else []):
        figures |= {f"{case.name}_{key}": value for key, value in compare(case, arguments).items()}
    worst = {
        key: max(value for name, value in figures.items() if name.endswith(f"_{ending}"))
        for key, ending in (
            ("max_abs_dlogit_f32", "f32"),
            ("max_abs_dlogit_f32_whole", "whole_f32"),
            ("max_abs_dlogit_f32_cache", "cache_f32"),
            ("bf16_gap_ratio", "bf16_gap_ratio"),
            ("bf16_max_ratio", "bf16_max_ratio"),
        )
    }
    settings = {name: getattr(arguments, name) for name in ("width", "layers", "tokens", "prompt", "seed")}
    return Outcome(settings | {"families": families} | _versions(), worst | figures)


def compare(case: Case, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one model."""
    tokens = np.random.default_rng(arguments.seed).integers(0, VOCABULARY, arguments.tokens)
    with tempfile.TemporaryDirectory() as name:
        theirs = _Theirs(case, arguments, Path(name))
        config = model_config(Path(name))
        params = load_params(config, Path(name))
    truth, cached = theirs.whole(tokens), theirs.through_cache(tokens, arguments.prompt)
    whole = _whole(config, params, tokens)
    half_config = config.model_copy(update={"precision": "bfloat16"})
    half = _whole(half_config, params, tokens)
    their_half = theirs.in_bfloat16().whole(tokens)
    return {
        "whole_f32": _largest(whole - truth),
        "cache_f32": max(
            _largest(_through_cache(config, params, tokens, arguments.prompt) - other) for other in (truth, cached)
        ),
        "bf16_gap_ratio": _mean_square(half - truth) / _mean_square(their_half - truth),
        "bf16_max_ratio": _largest(half - truth) / _largest(their_half - truth),
        "logit_deviation": float(truth.std()),
    }


class _Theirs:
    """The model of transformers with random weights, saved into a folder."""

    def __init__(self, case: Case, arguments: argparse.Namespace, folder: Path) -> None:
        self._torch, transformers = libraries()
        configs = {"qwen3": "Qwen3Config", "qwen2": "Qwen2Config", "llama": "LlamaConfig"}
        self._torch.manual_seed(arguments.seed)
        settings = case.settings(arguments.width, arguments.layers)
        made = getattr(transformers, configs[case.family])(**settings)
        self._model = transformers.AutoModelForCausalLM.from_config(made).eval()
        with self._torch.no_grad():  # the library's own start leaves scales at 1 and biases at 0
            for name, tensor in self._model.named_parameters():
                if tensor.ndim == 1:
                    tensor.normal_(0.0 if name.endswith("bias") else 1.0, 0.2)
                else:
                    tensor.normal_(0.0, tensor.shape[1] ** -0.5)
        self._model.save_pretrained(folder)

    def whole(self, tokens: Any) -> Logits:
        with self._torch.no_grad():
            return self._logits(self._model(self._ids(tokens), use_cache=False))

    def through_cache(self, tokens: Any, prompt: int) -> Logits:
        with self._torch.no_grad():
            answer = self._model(self._ids(tokens[:prompt]), use_cache=True)
            parts = [self._logits(answer)]
            for token in tokens[prompt:]:
                answer = self._model(self._ids([token]), past_key_values=answer.past_key_values, use_cache=True)
                parts.append(self._logits(answer))
        return np.concatenate(parts)

    def in_bfloat16(self) -> _Theirs:
        self._model = self._model.to(self._torch.bfloat16)
        return self

    def _ids(self, tokens: Any) -> Any:
        return self._torch.tensor(np.asarray(tokens)[None])

    def _logits(self, answer: Any) -> Logits:
        return np.asarray(answer.logits[0].float())


def _whole(config: ModelConfig, params: Params, tokens: Any) -> Logits:
    @jax.jit  # type: ignore[untyped-decorator]
    def forward(params: Params, tokens: jax.Array) -> jax.Array:
        model = bind(config, params)
        positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        return model.logits(model(tokens, positions, segment_attend(jnp.ones_like(tokens))).states)[0]

    return np.asarray(forward(params, jnp.asarray(tokens[None], jnp.int32)))


def _through_cache(config: ModelConfig, params: Params, tokens: Any, prompt: int) -> Logits:
    @jax.jit  # type: ignore[untyped-decorator]
    def read(params: Params, pages: Any, part: jax.Array, start: jax.Array) -> tuple[jax.Array, Any]:
        model = bind(config, params)
        counts = jnp.full((1,), part.shape[1], jnp.int32)
        hidden, pages = extend(model, pages, tables, part, start, counts)
        return model.logits(hidden.states)[0], pages

    needed = -(-len(tokens) // PAGE_TOKENS)
    tables = jnp.arange(1, needed + 1, dtype=jnp.int32)[None]
    pages = empty_pages(config, needed + 1, PAGE_TOKENS)
    parts = []
    for start, stop in _parts(prompt, len(tokens)):
        part = jnp.asarray(tokens[None, start:stop], jnp.int32)
        logits, pages = read(params, pages, part, jnp.full((1,), start, jnp.int32))
        parts.append(np.asarray(logits))
    return np.concatenate(parts)


def _parts(prompt: int, tokens: int) -> Iterator[tuple[int, int]]:
    yield 0, prompt
    yield from ((at, at + 1) for at in range(prompt, tokens))


def _largest(difference: Logits) -> float:
    return float(np.abs(difference).max())


def _mean_square(difference: Logits) -> float:
    return float(np.sqrt(np.square(difference, dtype=np.float64).mean()))


def libraries() -> tuple[Any, Any]:
    """Return the modules torch and transformers, whose warnings and progress bars are switched off.

    Raises:
        MissingExtra: one of them is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the libraries' own, about each other
            import torch
            import transformers
    except ImportError as error:
        raise MissingExtra(
            "the comparison needs torch and transformers", cause=str(error), fix=install_command("torch")
        ) from None
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


def _versions() -> dict[str, str]:
    torch, transformers = libraries()
    return {"torch": torch.__version__, "transformers": transformers.__version__}
