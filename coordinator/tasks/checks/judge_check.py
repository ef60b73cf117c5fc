"""Have a language model judge completions by a rubric, at an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from blake3 import blake3

from coordinator.config.checks import JudgeCheck
from coordinator.tasks.checks.checker import Checker, Item, Outcome
from coordinator.tasks.checks.http_check import check_alone
from coordinator.tasks.checks.judgements import Judgement, Judgements
from coordinator.tasks.checks.service import ServiceClient
from coordinator.tasks.checks.task import Problem, Score, ScoringFailure
from coordinator.workers.tracebacks import users_traceback

_NUMBER = re.compile(r"(?<![\w.])-?\d{1,6}(?:\.\d{1,6})?(?![\w])")
_PLACE = re.compile(r"\{(prompt|completion|answer)\}")


class JudgeChecker(Checker):
    """Asks a model for a number. Judgements are kept, so that the same completion of a problem costs nothing again."""

    starts_processes = True  # resolving names starts threads, and judgements may be in a file
    together = True

    def __init__(self, config: JudgeCheck) -> None:
        self._config = config
        self._client: ServiceClient | None = None
        self._kept: Judgements | None = None
        self._asking: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._priced = bool(config.usd_per_million_input_tokens or config.usd_per_million_output_tokens)

    def warm_up(self) -> None:
        self._client = ServiceClient(self._config)
        self._client.load_secret()
        if self._kept is None:
            self._kept = Judgements(self._config.cache_file)

    def check(self, problem: Problem, completion_text: str) -> Score:
        return check_alone(self, problem, completion_text)

    async def check_many(self, items: Sequence[Item], timeout_s: float) -> list[Outcome]:
        if self._client is None:
            self.warm_up()
        return list(await asyncio.gather(*(self._outcome(*item, timeout_s) for item in items)))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _outcome(self, problem: Problem, text: str, timeout_s: float) -> Outcome:
        try:
            async with asyncio.timeout(timeout_s):
                return self._score(await self._judgement(problem, text))
        except TimeoutError:
            return ScoringFailure("timeout", f"the judge took longer than {timeout_s:g} s")
        except ScoringFailure as failure:
            return failure
        except Exception as error:
            return ScoringFailure("exception", users_traceback(error))

    async def _judgement(self, problem: Problem, text: str) -> Judgement:
        assert self._kept is not None
        config, question = self._config, self._question(problem, text)
        key = blake3(f"{config.url}\n{config.model}\n{question}".encode(errors="replace")).digest(length=16)
        # The samples of a group are often equal, and are judged at the same time: only the first one is paid for.
        async with self._asking.setdefault(key, asyncio.Lock()):
            return self._kept.get(key) or await self._ask(key, question)

    async def _ask(self, key: bytes, question: str) -> Judgement:
        """Ask the judge, and keep its answer.

        Raises:
            ScoringFailure: a limit is reached, or the judge gives no number.
        """
        assert self._client is not None
        assert self._kept is not None
        config = self._config
        self._refuse_beyond_limits()
        body = {
            "model": config.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": config.answer_tokens_max,
        }
        judgement = self._read(await self._client.post("/chat/completions", body))
        self._kept.spend(judgement.tokens, judgement.usd)  # also for an answer without a number
        _number_in(judgement.text)
        self._kept.put(key, judgement)
        return judgement

    def _question(self, problem: Problem, text: str) -> str:
        """Return the rubric with its places filled at once, so that no completion can name another place."""
        values = {"prompt": problem.prompt, "completion": text, "answer": problem.answer}
        return _PLACE.sub(lambda place: values[place[1]], self._config.rubric)

    def _refuse_beyond_limits(self) -> None:
        assert self._kept is not None
        tokens, usd = self._kept.spent()
        config = self._config
        if config.usd_max is not None and usd >= config.usd_max:
            raise ScoringFailure("limit", f"{usd:.2f} of {config.usd_max:.2f} US dollars for the judge are spent")
        if config.tokens_max is not None and tokens >= config.tokens_max:
            raise ScoringFailure("limit", f"{tokens} of {config.tokens_max} tokens for the judge are used")

    def _read(self, answer: Any) -> Judgement:
        try:
            text, usage = answer["choices"][0]["message"]["content"], answer.get("usage") or {}
            read, wrote = (max(0, int(usage.get(name) or 0)) for name in ("prompt_tokens", "completion_tokens"))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise ScoringFailure("unavailable", "the judge's endpoint answered with something else") from None
        if not isinstance(text, str):
            raise ScoringFailure("unavailable", "the judge answered without text")
        if not read + wrote and (self._priced or self._config.tokens_max is not None):
            raise ScoringFailure("unavailable", "the judge's endpoint does not report the tokens that it is paid for")
        price = self._config.usd_per_million_input_tokens * read + self._config.usd_per_million_output_tokens * wrote
        return Judgement(text, read + wrote, price / 1e6)

    def _score(self, judgement: Judgement) -> Score:
        reward = min(1.0, max(0.0, _number_in(judgement.text) / self._config.scale_max))
        return Score(reward, reward >= 1.0, parts={"judge_usd": judgement.usd} if self._priced else {})


def _number_in(text: str) -> float:
    """Return the last number of a judge's answer.

    Raises:
        ScoringFailure: it has none.
    """
    found = _NUMBER.findall(text)
    if not found:
        raise ScoringFailure("exception", f"the judge gave no number: {text[-200:]!r}")
    return float(found[-1])
