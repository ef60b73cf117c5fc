"""Take a model from its published folder through RL and back: init_from, peers, evaluation, export, transformers.

The model is small and made here (bench.hub.small_model); the run is that of a shipped recipe with only the sizes
changed, in real processes. ``reward_before`` and ``reward_after`` are means over held-out problems, which the peers
answer before and after RL. ``export_equal`` is 1 if transformers, from the exported folder, makes the same prompts and
greedily the same answers, token by token, as the sampler of jax peers from the weights that peers hold. Both compute in
float32, because in bfloat16 two implementations round differently: ``bf16_equal_share`` is the share of problems with
the same answer in bfloat16.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import runs
from bench.hub.small_model import (
    NEW_TOKENS_MAX,
    SYSTEM_PROMPT,
    Sum,
    question,
    sums,
    write_problems,
    write_taught_model,
)
from bench.machine import Outcome
from learner.config import WarmStartConfig
from learner.evaluation.evaluate import complete_prompts
from learner.evaluation.export import export
from learner.publishing.versions import RetainedVersions
from rollcast.policy.config import ModelConfig, described_model
from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Completion, Sampler
from rollcast.policy.snapshot import thaw
from rollcast.runtime.install import install_command
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Version
from rollcast.wire.rollouts import FinishReason, Sampling
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer

TAUGHT = 6000  # sums that the model is taught before RL; the run's are the other 2,100
COMPARED = 32  # problems that peers and transformers answer
PROMPT_TOKENS_MAX = 64
TEMPLATE_ARGUMENTS = {"enable_thinking": True}  # those of the recipe
EXPORT_KEYS = ("export_equal", "export_logprob_difference_max", "bf16_equal_share")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/qwen3-4b-math.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)


def run(arguments: argparse.Namespace) -> Outcome:
    settings = {"config": str(arguments.config), "set": arguments.set, "steps": arguments.steps, "seed": arguments.seed}
    pairs = sums(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as name:
        folder = Path(name)
        model, exported = folder / "model", folder / "exported"
        model.mkdir()
        write_problems(folder / "sums.jsonl", pairs[TAUGHT:])
        taught = write_taught_model(
            model, pairs[:TAUGHT], pairs[TAUGHT:], WarmStartConfig(examples=TAUGHT), arguments.seed
        )
        print(f"the model answers {taught:.3f} of other sums correctly", file=sys.stderr)
        changed = [*scaled_down(folder, arguments.steps), *arguments.set]
        summary = runs.run(arguments.config, folder / "runs", changed, runs.Story())
        figures = {"exact_published": taught} | figures_of(summary)
        run_folder = Path(summary["run_folder"])
        export(run_folder, exported)
        answers = peers_answers(run_folder, Version(summary["version"]), model, pairs[-COMPARED:])
        try:
            return Outcome(settings, figures | agreement(exported, answers))
        except ImportError as error:
            print(f"nothing loaded the export: {error}; {install_command('torch')}", file=sys.stderr)
            return Outcome(settings, figures, EXPORT_KEYS)


def scaled_down(folder: Path, steps: int) -> list[str]:
    """Return the settings with which a recipe for 4 B parameters trains the model in ``folder`` on two cores."""
    return [
        "peers=2",
        "coordinator.serve.grpc_port=0",
        f"coordinator.run.steps={steps}",
        "coordinator.run.samples_per_group=8",
        f'coordinator.task.path="{folder}/sums.jsonl"',
        "coordinator.held_out_problems=256",
        f'coordinator.tokenizer.folder="{folder}/model"',
        f"coordinator.tokenizer.system_prompt='{SYSTEM_PROMPT}'",
        f"coordinator.sampling.prompt_tokens_max={PROMPT_TOKENS_MAX}",
        f"coordinator.sampling.new_tokens_max={NEW_TOKENS_MAX}",
        f'learner.init_from="{folder}/model"',
        "learner.packed_row_tokens=256",
        "learner.evaluation_problems=256",
        "learner.optimiser.learning_rate=5e-4",  # that of configs/local.toml, whose model has the same size
        "learner.optimiser.warmup_steps=5",
        "learner.optimiser.micro_batch_tokens=4096",
        "peer.engine.concurrent_rollouts=64",
    ]


def figures_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of the run from its summary."""
    kept = ("reward_before", "reward_after", "wall_s", "staleness_max_trained")
    rollouts = summary["rollouts"]
    accounted = rollouts["trained"] + rollouts["turns"] + rollouts["open"] + sum(rollouts["dropped"].values())
    return {name: summary[name] for name in kept} | {"rollouts_unaccounted": rollouts["issued"] - accounted}


# ---------------------------------------------------------------- the exported model


@dataclass(frozen=True, slots=True)
class Answer:
    """The greedy answer to a problem, computed in float32 and in bfloat16."""

    problem: str
    prompt: tuple[int, ...]  # token ids
    exact: Completion
    rounded: tuple[int, ...]  # token ids


def peers_answers(run_folder: Path, version: Version, model_folder: Path, pairs: Sequence[Sum]) -> list[Answer]:
    """Return the greedy answers of a published version, by the sampler of jax peers."""
    tokenizer = HubTokenizer(model_folder, ChatSettings(system=SYSTEM_PROMPT, arguments=TEMPLATE_ARGUMENTS))
    record, state = RetainedVersions(RunFolder(run_folder).versions, mapped=0).base(version)
    model = described_model(record)
    params = thaw(model, record.tensors, state)
    problems = [question(pair) for pair in pairs]
    prompts = [tuple(tokenizer.encode_prompt(text)) for text in problems]
    exact, rounded = (_greedy(model, params, dtype, prompts, tokenizer.stop_ids) for dtype in ("float32", "bfloat16"))
    return [
        Answer(problem, prompt, one, other.token_ids)
        for problem, prompt, one, other in zip(problems, prompts, exact, rounded, strict=True)
    ]


def _greedy(
    model: ModelConfig, params: Params, dtype: str, prompts: list[tuple[int, ...]], stop_ids: tuple[int, ...]
) -> list[Completion]:
    computed = model.model_copy(update={"precision": dtype})
    cast = jax.tree.map(lambda value: value.astype(jnp.dtype(dtype)), params)
    sampler = Sampler(computed, PROMPT_TOKENS_MAX, NEW_TOKENS_MAX, len(prompts))
    sampling = Sampling(1.0, NEW_TOKENS_MAX, stop_ids)
    return [found[0] for found in complete_prompts(sampler, cast, prompts, sampling, seed=0, greedy=True)]


def agreement(exported: Path, answers: Sequence[Answer]) -> dict[str, float]:
    """Return how far transformers, from an exported folder, agrees with these answers.

    Raises:
        ImportError: torch or transformers is not installed.
    """
    exact, rounded = Theirs(exported, "float32"), Theirs(exported, "bfloat16")
    prompts = [answer.prompt for answer in answers]
    equal, differences, rounded_equal = True, [0.0], 0
    for answer, found, other in zip(answers, exact.answers(prompts), rounded.answers(prompts), strict=True):
        same = found.token_ids == answer.exact.token_ids
        equal &= same and exact.prompt(answer.problem) == answer.prompt
        differences += np.abs(np.subtract(found.logprobs, answer.exact.logprobs)).tolist() if same else []
        rounded_equal += other.token_ids == answer.rounded
    return dict(zip(EXPORT_KEYS, (float(equal), max(differences), rounded_equal / len(answers)), strict=True))


class Theirs:
    """A model and its tokenizer as transformers load them from a folder.

    Raises:
        ImportError: torch or transformers is not installed.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        import torch
        import transformers

        self._torch = torch
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def prompt(self, problem: str) -> tuple[int, ...]:
        """Return the token ids of a problem in the chat template of the folder."""
        messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": problem}]
        made = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, **TEMPLATE_ARGUMENTS
        )
        return tuple(made["input_ids"])

    def answers(self, prompts: Sequence[tuple[int, ...]]) -> list[Completion]:
        """Return the greedy answers to prompts of one length, which end as generation_config.json says."""
        ids = self._torch.tensor(prompts)
        made = self._model.generate(
            ids,
            attention_mask=self._torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS_MAX,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = made.sequences[:, ids.shape[1] :]
        scores = self._torch.stack(made.logits, dim=1).float().log_softmax(-1)
        logprobs = scores.gather(-1, tokens[..., None])[..., 0]
        return [self._until_its_end(*rows) for rows in zip(tokens.tolist(), logprobs.tolist(), strict=True)]

    def _until_its_end(self, tokens: list[int], logprobs: list[float]) -> Completion:
        ends = self._model.generation_config.eos_token_id
        at = next((number for number, token in enumerate(tokens, start=1) if token in ends), len(tokens))
        reason: FinishReason = "stop" if tokens[at - 1] in ends else "length"
        return Completion(tuple(tokens[:at]), tuple(logprobs[:at]), reason)
