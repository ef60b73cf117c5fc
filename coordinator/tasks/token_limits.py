"""Decide which problems fit a run: the lengths of prompts and answers in tokens, and the characters they use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from coordinator.tasks.checks.task import Demonstration, Problem
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.chat_template import Message
from rollcast.wire.text.tokenizer import TextTokenizer, Tokenizer

Unusable = Literal["", "unknown_characters", "too_long", "answer_too_long"]


class TokenLimits:
    """The limits, and the lengths seen so far, which are reported when problems run out."""

    def __init__(self, tokenizer: TextTokenizer, prompt_tokens_max: int, new_tokens_max: int) -> None:
        self.tokenizer = tokenizer
        self.prompt_tokens_max = prompt_tokens_max
        self.new_tokens_max = new_tokens_max
        self._longest_prompt = 0  # tokens, of all problems checked
        self._longest_answer = 0
        self._unknown = 0

    def check(self, problem: Problem) -> tuple[tuple[int, ...] | None, Unusable]:
        """Return the prompt's tokens, or None and the reason why the problem is unusable."""
        prompt = self._encode_prompt(problem)
        answer = self.encode_answer(problem.answer) if problem.answer else ()
        if prompt is None or answer is None:
            self._unknown += 1
            return None, "unknown_characters"
        self._longest_prompt = max(self._longest_prompt, len(prompt))
        self._longest_answer = max(self._longest_answer, len(answer))
        if len(prompt) > self.prompt_tokens_max:
            return None, "too_long"
        if len(answer) > self.new_tokens_max:
            return None, "answer_too_long"
        return prompt, ""

    def encode_answer(self, text: str) -> tuple[int, ...] | None:
        """Return the answer's tokens with the end of sequence; None if it has characters that the tokenizer lacks."""
        token_ids = self._encode(self.tokenizer.encode, text)
        return None if token_ids is None else (*token_ids, self.tokenizer.eos_id)

    def encode_example(
        self, problem: Problem, prompt: tuple[int, ...], shown: Demonstration
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the tokens of all that comes before a demonstrated answer, and of the answer; None if they do not fit.

        ``prompt``: the problem's; in a game of several agents the one that answers may have been shown something else.
        """
        if shown.shown:
            try:
                prompt = self.encode_view(problem, shown.shown)
            except TaskError:
                return None
        tokens = None if len(prompt) > self.prompt_tokens_max else self._encode_demonstration(shown)
        return None if tokens is None else ((*prompt, *tokens[0]), tokens[1])

    def _encode_demonstration(self, shown: Demonstration) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the tokens of the turns before the answer, and of the answer; None if they do not fit."""
        before: list[int] = []
        for text, reply in shown.turns:
            said = self.encode_answer(text)
            try:
                before += (*(said or ()), *self.tokenizer.encode_reply(reply, ended=True))
            except TaskError:
                return None
            if said is None:
                return None
        answer = self.encode_answer(shown.answer)
        if answer is None or len(before) + len(answer) > self.new_tokens_max:
            return None
        return tuple(before), answer

    def _encode_prompt(self, problem: Problem) -> tuple[int, ...] | None:
        """Return the tokens of a problem: one question, or the messages with which an environment begins."""
        if "messages" not in problem.data:
            return self._encode(self.tokenizer.encode_prompt, problem.prompt)
        try:
            if "agents" in problem.data:
                rules = problem.data["rules"]
                return self.encode_view(problem, problem.data["messages"][len(rules) :])
            return tuple(self.tokenizer.encode_chat(problem.data["messages"], problem.data.get("tools", ())))
        except TaskError:
            return None

    def encode_view(self, problem: Problem, shown: Sequence[Message]) -> tuple[int, ...]:
        """Return the tokens of the rules of a game of several agents, and of what one of them is shown first.

        Raises:
            TaskError: the messages cannot be encoded.
        """
        rules, tools = problem.data["rules"], problem.data["tools"]
        return (*self.tokenizer.encode_rules(rules, tools), *self.tokenizer.encode_shown(rules, shown, tools))

    def _encode(self, encode: Callable[[str], list[int]], text: str) -> tuple[int, ...] | None:
        try:
            return tuple(encode(text))
        except TaskError:
            return None

    def lengths(self) -> str:
        """Return the lengths seen so far, in words."""
        return (
            f"prompts have up to {self._longest_prompt} tokens (sampling.prompt_tokens_max = "
            f"{self.prompt_tokens_max}), answers have up to {self._longest_answer} tokens with their end of sequence "
            f"(sampling.new_tokens_max = {self.new_tokens_max}), and {self._unknown} have "
            "characters that the tokenizer lacks"
        )

    def higher_limits(self) -> list[str]:
        """Return the limits to raise so that every problem seen fits; empty if all do."""
        more = "" if isinstance(self.tokenizer, Tokenizer) else " (more where the model reasons first)"
        needs = (
            ("sampling.prompt_tokens_max", self._longest_prompt, self.prompt_tokens_max, ""),
            ("sampling.new_tokens_max", self._longest_answer, self.new_tokens_max, more),
        )
        raises = [f"{name} to {longest}{note}" for name, longest, limit, note in needs if longest > limit]
        return [f"raise {' and '.join(raises)}"] if raises else []
