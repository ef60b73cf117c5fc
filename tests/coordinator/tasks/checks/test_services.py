"""Test checks by services: a reward model over HTTP, and a judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.config.checks import HttpCheck, JudgeCheck
from coordinator.tasks.checks import service
from coordinator.tasks.checks.http_check import HttpChecker
from coordinator.tasks.checks.judge_check import JudgeChecker
from coordinator.tasks.checks.task import Problem, Score, ScoringFailure
from rollcast.runtime.errors import TaskError

PROBLEM = Problem("jsonl:0", "1+1=", "2", {"metadata": {"level": 3}})
FREE = Score(0.75, False, parts={"judge_usd": 0.0})  # a judgement that was kept
Answer = Callable[[web.Request], Awaitable[web.Response]]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(service, "RETRY_MOST_S", 0.002)


@asynccontextmanager
async def serving(answer: Answer, path: str = "/") -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post(path, answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@asynccontextmanager
async def http_checker(answer: Answer, **settings: Any) -> AsyncIterator[HttpChecker]:
    async with serving(answer) as url:
        checker = HttpChecker(HttpCheck(kind="http", url=url, **settings))
        checker.warm_up()
        try:
            yield checker
        finally:
            await checker.close()


async def test_a_batch_is_one_request(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.headers["Authorization"], await request.json()))
        return web.json_response({"scores": [0.5, {"format": 1, "right": 0}, {"error": "too hot"}]})

    (tmp_path / "token").write_text("sesame\n")
    async with http_checker(answer, secret_file=tmp_path / "token") as checker:
        outcomes = await checker.check_many([(PROBLEM, text) for text in ("a", "b", "c")], 5.0)
    assert outcomes[:2] == [Score(0.5, False), Score(1.0, True, parts={"format": 1.0, "right": 0.0})]
    assert isinstance(outcomes[2], ScoringFailure)
    assert outcomes[2].detail == "the service says: too hot"
    ((authorization, body),) = seen
    assert authorization == "Bearer sesame"
    item = body["items"][1]
    assert len(item.pop("id")) == 32
    assert item == {"prompt": "1+1=", "completion": "b", "answer": "2", "metadata": {"level": 3}}


async def test_an_attempt_that_takes_too_long_is_followed_by_another() -> None:
    calls, never = 0, asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        if calls == 1:
            await never.wait()
        return web.json_response({"scores": [1.0]})

    async with http_checker(answer, attempt_timeout_s=0.5, attempts=20) as checker:
        client = checker._client
        assert client is not None
        assert await client.post("", {}) == {"scores": [1.0]}
        never.set()
    assert calls >= 2


async def failing(checker: HttpChecker) -> ScoringFailure:
    (outcome,) = await checker.check_many([(PROBLEM, "a")], 5.0)
    assert isinstance(outcome, ScoringFailure)
    return outcome


async def test_an_outage_is_retried_then_a_failure_and_the_service_rests(tmp_path: Path) -> None:
    calls = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.Response(status=503, text=f"busy, {request.headers['Authorization']}")

    (tmp_path / "token").write_text("sesame")
    async with http_checker(answer, attempts=3, secret_file=tmp_path / "token") as checker:
        failure = await failing(checker)
        assert (failure.reason, calls) == ("unavailable", 3)
        assert "503: busy, Bearer ***" in failure.detail  # the service repeats the secret, the detail does not
        for _ in range(service.FAILURES_IN_A_ROW_MAX - 1):
            await failing(checker)
        before = calls
        assert "rests" in (await failing(checker)).detail
        assert calls == before


async def test_a_short_outage_costs_a_retry() -> None:
    calls = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return web.json_response({"scores": [1]}) if calls == 2 else web.Response(status=500)

    async with http_checker(answer) as checker:
        assert await checker.check_many([(PROBLEM, "a")], 5.0) == [Score(1.0, True)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "not JSON"),
        ('{"scores": [1, 2]}', "list"),
        ('{"scores": ["high"]}', "no score"),
        ("x" * 3000, "more than 2048 bytes"),
    ],
)
async def test_bad_answers_are_failures(text: str, words: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    async with http_checker(answer, response_bytes_max=2048) as checker:
        assert words in (await failing(checker)).detail


def test_a_missing_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for name in ("empty", "none"):
        with pytest.raises(TaskError):
            HttpChecker(HttpCheck(kind="http", url="http://x", secret_file=tmp_path / name)).warm_up()


async def test_a_judge_is_asked_once_for_each_completion_and_stops_at_its_limit(tmp_path: Path) -> None:
    questions: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        questions.append(body["messages"][0]["content"])
        text = "Fine, but {answer}. 2 mistakes. Rating: 7.5" if "good" in questions[-1] else "I will not say"
        usage = {"prompt_tokens": 1000, "completion_tokens": 100}
        return web.json_response({"choices": [{"message": {"content": text}}], "usage": usage})

    async with serving(answer, "/v1/chat/completions") as url:
        config = JudgeCheck(
            kind="judge",
            url=f"{url}/v1",
            model="m",
            rubric="Rate {completion} as an answer to {prompt} ({answer}).",
            usd_per_million_input_tokens=2.0,
            usd_per_million_output_tokens=10.0,
            usd_max=0.006,
            cache_file=tmp_path / "judgements",
        )
        checker = JudgeChecker(config)
        checker.warm_up()
        try:
            (first,) = await checker.check_many([(PROBLEM, "good {answer}")], 5.0)
            assert first == Score(0.75, False, parts={"judge_usd": pytest.approx(0.003)})
            assert questions == ["Rate good {answer} as an answer to 1+1= (2)."]
            assert await checker.check_many([(PROBLEM, "good {answer}")], 5.0) == [FREE]
            assert len(questions) == 1
            (silent,) = await checker.check_many([(PROBLEM, "bad")], 5.0)
            (beyond,) = await checker.check_many([(PROBLEM, "good?")], 5.0)
        finally:
            await checker.close()
        assert isinstance(silent, ScoringFailure)
        assert silent.reason == "exception"
        assert isinstance(beyond, ScoringFailure)
        assert (beyond.reason, len(questions)) == ("limit", 2)
        again = JudgeChecker(config)  # a restart remembers both
        again.warm_up()
        try:
            assert await again.check_many([(PROBLEM, "good {answer}")], 5.0) == [FREE]
        finally:
            await again.close()


async def test_equal_completions_of_a_group_are_paid_for_once() -> None:
    questions: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        questions.append((await request.json())["messages"][0]["content"])
        usage = {"prompt_tokens": 10, "completion_tokens": 1}
        return web.json_response({"choices": [{"message": {"content": "7.5"}}], "usage": usage})

    async with serving(answer, "/v1/chat/completions") as url:
        checker = JudgeChecker(
            JudgeCheck(kind="judge", url=f"{url}/v1", model="m", rubric="{completion}?", usd_per_million_input_tokens=1)
        )
        try:
            outcomes = await checker.check_many([(PROBLEM, "same")] * 7 + [(PROBLEM, "other")], 5.0)
        finally:
            await checker.close()
    assert sorted(questions) == ["other?", "same?"]
    paid = Score(0.75, False, parts={"judge_usd": pytest.approx(1e-5)})
    assert outcomes == [paid, *[FREE] * 6, paid]


async def test_a_judge_that_reports_no_tokens_is_refused_where_they_are_limited() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"choices": [{"message": {"content": "7.5"}}]})

    async with serving(answer, "/v1/chat/completions") as url:
        free = JudgeCheck(kind="judge", url=f"{url}/v1", model="m", rubric="{completion}?")
        for config, scored in ((free, True), (free.model_copy(update={"tokens_max": 100}), False)):
            checker = JudgeChecker(config)
            try:
                (outcome,) = await checker.check_many([(PROBLEM, "2")], 5.0)
            finally:
                await checker.close()
            assert isinstance(outcome, Score) is scored
            if isinstance(outcome, ScoringFailure):
                assert "does not report the tokens" in outcome.detail


async def test_requests_that_wait_while_a_service_begins_to_rest_fail_at_once() -> None:
    asked = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=404)

    async with http_checker(answer, concurrency=1) as checker:
        for_each = (checker.check_many([(PROBLEM, str(number))], 5.0) for number in range(12))
        outcomes = await asyncio.gather(*for_each, return_exceptions=True)
    assert asked == service.FAILURES_IN_A_ROW_MAX
    assert len(outcomes) == 12
