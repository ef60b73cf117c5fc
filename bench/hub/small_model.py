"""Make a small model in the form of the Hugging Face Hub, which adds two numbers and mostly forgets to carry.

Its folder has what published models have and test models mostly lack: a byte-level tokenizer with a chat template,
several ends of a completion, embedding rows beyond the tokenizer's ids, a tied head, and bfloat16 weights in several
files with an index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random

from coordinator.tasks.reasoning_gym import FORGET_PROBABILITY, careless_sum
from learner.config import LearnerConfig, WarmStartConfig
from learner.evaluation.evaluate import complete_prompts
from learner.supervised.warm_start import warm_start
from learner.training.packing import Example
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.save import save_model
from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Sampler
from rollcast.wire.rollouts import Sampling
from rollcast.wire.text.hub_tokenizer import ChatSettings, HubTokenizer
from rollcast.wire.text.model_folder import CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG

Sum = tuple[int, int]

SYSTEM_PROMPT = "Answer in \\boxed{}."
END_OF_TEXT, _, END_OF_TURN = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# The conversation format of Qwen's models. A model that shall not think is given an empty thought.
CHAT_TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
WORDS = r"\p{N}| ?\\?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"  # numbers are cut into digits, as by Qwen's tokenizers
MERGED_TOKENS = 290  # 256 bytes, and merges for the words of the problems
ACCURACY_PROBLEMS = 128
NEW_TOKENS_MAX = 8  # an answer takes six or seven tokens
FILE_BYTES_MAX = 200_000  # the weights take 691,000 bytes

#: Qwen3's architecture in the size of the demonstration; the embedding has 91 rows more than the tokenizer has ids.
MODEL = ModelConfig(vocabulary_size=384, rope_base=1e6, context_tokens_max=4096, tied_embeddings=True)


def sums(seed: int) -> list[Sum]:
    """Return all 8,100 pairs of numbers with two digits, in an order that follows from the seed."""
    pairs = [(left, right) for left in range(10, 100) for right in range(10, 100)]
    Random(f"rollcast/bench/small-model/{seed}").shuffle(pairs)
    return pairs


def question(pair: Sum) -> str:
    """Return a problem's text."""
    return f"What is {pair[0]}+{pair[1]}?"


def write_problems(path: Path, pairs: Iterable[Sum]) -> None:
    """Write problems as a JSONL file for a run's task."""
    rows = ({"prompt": question(pair), "answer": str(sum(pair))} for pair in pairs)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json with the chat template, and generation_config.json."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=MERGED_TOKENS, initial_alphabet=alphabet, show_progress=False)
    text = f"system\n{SYSTEM_PROMPT}\nuser\n{question((10, 10))}\nassistant\n{_answer(20)}"
    tokenizer.train_from_iterator([text, text], trainer)
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIAL])
    tokenizer.save(str(folder / TOKENIZER))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    ends = [tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT)]
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(settings, indent=2))
    (folder / GENERATION_CONFIG).write_text(json.dumps({"eos_token_id": ends, "pad_token_id": ends[1]}))
    # The tokenizer's size is that of the model; saving the weights writes the rest.
    (folder / CONFIG).write_text(json.dumps({"vocab_size": MODEL.vocabulary_size, "eos_token_id": ends[0]}))


def write_weights(folder: Path, params: Params) -> None:
    """Write the weights in bfloat16 and config.json beside a tokenizer."""
    base = json.loads((folder / CONFIG).read_text())
    save_model(MODEL, params, folder, "bfloat16", base_config=base, file_bytes_max=FILE_BYTES_MAX)


def write_taught_model(
    folder: Path, taught: Sequence[Sum], others: Sequence[Sum], teaching: WarmStartConfig, seed: int
) -> float:
    """Write a model that was taught some sums into an empty folder; return its share of right answers to other sums.

    Args:
        teaching: the settings of the training: first on right answers, then on a careless teacher's.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    write_tokenizer(folder)
    school = _School(HubTokenizer(folder, ChatSettings(system=SYSTEM_PROMPT)), taught, others, seed)
    trainer = Trainer(MODEL, LearnerConfig(seed=seed))
    row_tokens = school.prompt_tokens + NEW_TOKENS_MAX
    warm_start(trainer, teaching, school.examples, school.accuracy, time_tokens=row_tokens, seed=seed)
    params = trainer.params()
    write_weights(folder, params)
    return school.accuracy(params)


class _School:
    """Supply the training of a model with examples, and measure it on sums that are not taught."""

    def __init__(self, tokenizer: HubTokenizer, taught: Sequence[Sum], others: Sequence[Sum], seed: int) -> None:
        self._tokenizer = tokenizer
        self._taught = taught
        self._asked = others[:ACCURACY_PROBLEMS]
        self._prompts = [tuple(tokenizer.encode_prompt(question(pair))) for pair in self._asked]
        self._random = Random(f"rollcast/bench/small-model/teacher/{seed}")
        self._seed = seed
        self.prompt_tokens = max(map(len, self._prompts))
        self._sampler = Sampler(MODEL, self.prompt_tokens, NEW_TOKENS_MAX, len(self._asked))

    def examples(self, count: int, flawed: bool) -> list[Example]:
        """Return questions with right or careless answers, from the first again where there are too few."""
        return [self._example(pair, flawed) for pair in islice(cycle(self._taught), count)]

    def accuracy(self, params: Params) -> float:
        """Return the share of right answers at temperature 1."""
        sampling = Sampling(1.0, NEW_TOKENS_MAX, self._tokenizer.stop_ids)
        completed = complete_prompts(self._sampler, params, self._prompts, sampling, seed=self._seed)
        texts = [self._tokenizer.decode(one[0].token_ids) for one in completed]
        return sum(text == _answer(sum(pair)) for text, pair in zip(texts, self._asked, strict=True)) / len(texts)

    def _example(self, pair: Sum, flawed: bool) -> Example:
        careless = flawed and self._random.random() < FORGET_PROBABILITY
        answer = self._tokenizer.encode(_answer(careless_sum(*pair) if careless else sum(pair)))
        return Example.of(self._tokenizer.encode_prompt(question(pair)), [*answer, self._tokenizer.eos_id])


def _answer(value: int) -> str:
    return f"\\boxed{{{value}}}"
