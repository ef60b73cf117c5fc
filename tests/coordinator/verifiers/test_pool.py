"""Test the pool with real processes: correct, hanging and crashing ones, and ones that never start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from coordinator.config.checks import CodeCheck, ExactCheck, PythonCheck, SumCheck, SumPart
from coordinator.config.tasks import JsonlTask, MixturePart, MixtureTask, ReasoningGymTask
from coordinator.tasks.build import build_task, task_config_to_json
from coordinator.tasks.checks.task import Problem, Score
from coordinator.verifiers.batches import checks_together, verify_many
from coordinator.verifiers.pool import VerifierPool
from coordinator.verifiers.scorer import (
    COMPLETION_LENGTH_MAX,
    TOO_LONG,
    Failed,
    Scored,
    ScoreItem,
    Verdict,
    score_again,
)
from coordinator.workers.line_process import LineProcess
from rollcast.runtime.errors import TaskError
from rollcast.wire.text.hub_tokenizer import HubTokenizer
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.tasks.sandbox.processes import alive, own_temporary_folder
from tests.wire.text.hub_tokenizer_files import tokenizer_folder

ROOT = Path(__file__).parents[3]
HOSTILE = (sys.executable, str(Path(__file__).with_name("hostile_verifier.py")))
GARBAGE = (sys.executable, "-c", "print('not JSON')")
# Reports that it is ready, then ends without reading any item.
DEAF = (
    sys.executable,
    "-c",
    "import os, time; os.read(0, 65536); os.close(0); print('{\"ready\": true}', flush=True); time.sleep(60)",
)
ANY = Problem("hostile:0", "a", "a", {})


def test_a_process_imports_only_what_every_task_needs() -> None:
    code = "import sys, coordinator.verifiers.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"aiohttp", "numpy", "rich", "structlog"}.intersection(done.stdout.split())


def hostile_task(folder: Path, mode: str = "good") -> str:
    return task_config_to_json(JsonlTask(kind="jsonl", path=folder / mode))


@asynccontextmanager
async def hostile_pool(
    folder: Path,
    *,
    mode: str = "good",
    processes: int = 1,
    timeout_s: float = 2.0,
    queue_max: int = 1000,
    command: tuple[str, ...] = HOSTILE,
) -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(hostile_task(folder, mode), 0, processes, timeout_s, queue_max, command=command)
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


async def verdicts(pool: VerifierPool, *completions: str) -> list[Verdict]:
    return await pool.score([item(key, ANY, completion) for key, completion in enumerate(completions)])


def item(key: int, problem: Problem, completion: str) -> ScoreItem:
    return ScoreItem(str(key), problem, completion)


def right(key: int) -> Scored:
    return Scored(str(key), Score(1.0, True))


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


async def test_a_real_task(capsys: pytest.CaptureFixture[str]) -> None:
    config = ReasoningGymTask(parameters={"max_terms": 2, "max_digits": 2})
    task = build_task(config, 7)
    pool = VerifierPool(task_config_to_json(config), 7, 2, 10.0, 100)
    began = time.perf_counter()
    await pool.start()
    started_s = time.perf_counter() - began
    problems = [task.problem(key // 8) for key in range(256)]
    texts = [problem.answer if key % 3 else "nonsense" for key, problem in enumerate(problems)]
    began = time.perf_counter()
    scored = await pool.score([item(key, problems[key], texts[key]) for key in range(256)])  # more than the queue holds
    scored_s = time.perf_counter() - began
    pids = pool.pids
    await pool.close()
    assert scored == [Scored(str(key), Score(float(key % 3 > 0), key % 3 > 0)) for key in range(256)]
    assert len(pids) == 2
    assert not any(runs(pid) for pid in pids)
    with capsys.disabled():
        print(f"\nverifiers: start {started_s:.2f} s, 256 rollouts {1000 * scored_s:.0f} ms")


async def test_processes_decode_token_ids(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    folder = tokenizer_folder(tmp_path / "model")
    tokenizer = HubTokenizer(folder)
    task = task_config_to_json(JsonlTask(kind="jsonl", path=tmp_path / "never-read.jsonl", check=ExactCheck()))
    pool = VerifierPool(task, 0, 1, 10.0, 100, tokenizer_folder=folder)
    problem = Problem("jsonl:0", "6+6=", "12", {})
    too_long = [*tokenizer.encode("1")] * (COMPLETION_LENGTH_MAX + 1)
    answers = ([*tokenizer.encode("12"), tokenizer.eos_id], tokenizer.encode("13"), too_long)
    items = [ScoreItem(str(n), problem, "", struct.pack(f"<{len(ids)}I", *ids)) for n, ids in enumerate(answers)]
    await pool.start()
    try:
        found = await pool.score([*items, item(3, problem, "12")])
    finally:
        await pool.close()
    rewards = [one.score.reward for one in found if isinstance(one, Scored)]
    assert rewards == [1.0, 0.0, 0.0, 1.0]
    assert found[2] == Scored("2", TOO_LONG)


async def test_processes_decode_by_the_tokenizer_of_the_run_also_after_they_were_replaced(tmp_path: Path) -> None:
    task = task_config_to_json(JsonlTask(kind="jsonl", path=tmp_path / "never-read.jsonl", check=ExactCheck()))
    pool, tokenizer = VerifierPool(task, 0, 1, 10.0, 100), Tokenizer((), "0123456789")
    pool.decode_by(tokenizer.to_json())
    assert pool.decodes
    problem = Problem("jsonl:0", "6+6=", "12", {})
    right = ScoreItem("right", problem, "", pack_ids([*tokenizer.encode("12"), tokenizer.eos_id]))
    wrong = ScoreItem("wrong", problem, "", pack_ids(tokenizer.encode("13")))
    await pool.start()
    try:
        found = [await pool.submit(right)]
        os.kill(pool.pids[0], signal.SIGKILL)
        while isinstance(again := await pool.submit(wrong), Failed):  # the process died with it, or is being replaced
            pass
        found += [again, *await pool.score([right])]
    finally:
        await pool.close()
    assert [one.score.reward for one in found if isinstance(one, Scored)] == [1.0, 0.0, 1.0]


def code_pool(folder: Path, timeout_s: float, total_timeout_s: float) -> VerifierPool:
    check = CodeCheck(total_timeout_s=total_timeout_s, test_timeout_s=total_timeout_s)
    config = JsonlTask(kind="jsonl", path=folder / "never-read.jsonl", check=check)
    return VerifierPool(task_config_to_json(config), 0, 1, timeout_s, 100)


ADD = Problem("jsonl:0", "add", "", {"tests": {"statements": ["assert add(1, 2) == 3"]}})


async def test_programs_are_checked_by_their_tests(tmp_path: Path) -> None:
    pool = code_pool(tmp_path, 30.0, 20.0)
    await pool.start()
    programs = ("```python\ndef add(a, b): return a + b\n```", "def add(a, b): return 0", "import os; os.abort()")
    try:
        found = await pool.score([item(n, ADD, one) for n, one in enumerate(programs)])
    finally:
        await pool.close()
    wrong = Score(0.0, False, "0 of 1 tests passed")
    assert found == [right(0), Scored("1", wrong), Scored("2", wrong)]


async def test_a_program_dies_with_its_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_temporary_folder() as sandboxes:
        monkeypatch.setenv("TMPDIR", str(sandboxes))
        pool = code_pool(tmp_path, 0.5, 60.0)
        await pool.start()
        try:
            # Forks may fail: how many processes their user has is counted over all sandboxes of the machine.
            program = "import os\nfor _ in range(3):\n  try: os.fork()\n  except OSError: pass\nwhile True: pass"
            assert await pool.score([item(1, ADD, program)]) == [Failed("1", "timeout", "no verdict within 0.5 s")]
            assert until(lambda: not alive(sandboxes))
        finally:
            await pool.close()


async def test_a_wrong_task_is_refused_with_its_reason() -> None:
    pool = VerifierPool(task_config_to_json(ReasoningGymTask(name="chain_sun")), 7, 1, 10.0, 100)
    with pytest.raises(TaskError, match="no generator 'chain_sun'") as caught:
        await pool.start()
    assert "chain_sum" in caught.value.cause
    assert pool.pids == []
    await pool.close()


async def test_hanging_item_does_not_affect_others(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path, timeout_s=0.5) as pool:
        (before,) = pool.pids
        began = time.monotonic()
        scored = await verdicts(pool, "fine", "fine", "hang", "fine", "spin", *["fine"] * 20)
        assert time.monotonic() - began < 15.0
        failed = {key: Failed(str(key), "timeout", "no verdict within 0.5 s") for key in (2, 4)}
        assert scored == [failed.get(key, right(key)) for key in range(25)]
        assert not runs(before)


async def test_crash_does_not_affect_other_items(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path) as pool:
        scored = await verdicts(pool, "fine", "crash", *["fine"] * 10, "chatter", *["fine"] * 10)
        failed = [one for one in scored if isinstance(one, Failed)]
        assert failed == [Failed("1", "crash", "it was killed by signal 9"), Failed("12", "crash", "last words")]


async def test_an_item_that_failed_can_be_scored_again(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path) as pool:
        first, crashed, third = await verdicts(pool, "fine", "crash once", "fine")
        assert (first, third) == (right(0), right(2))
        assert isinstance(crashed, Failed)
        assert await score_again(pool, [item(1, ANY, "crash once")]) == [right(1)]


async def test_score_again_gives_up(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path) as pool:
        scored, crashed = await score_again(pool, [item(0, ANY, "fine"), item(1, ANY, "crash")])
        assert scored == right(0)
        assert isinstance(crashed, Failed)


async def test_one_key_is_scored_once(tmp_path: Path) -> None:
    """A second run of this item would succeed."""
    async with hostile_pool(tmp_path) as pool:
        both = await asyncio.gather(*(pool.score([item(7, ANY, "crash once")]) for _ in range(2)))
        assert both[0] == both[1]
        assert isinstance(both[0][0], Failed)


async def test_a_process_that_dies_idle_is_replaced(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path) as pool:
        (pid,) = pool.pids
        psutil.Process(pid).kill()
        items = [item(key, ANY, "fine") for key in range(2)]
        assert await score_again(pool, items) == [right(0), right(1)]
        assert pool.pids != [pid]


async def test_failing_verifiers_say_so(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path) as pool:
        scored = await verdicts(pool, "raise", "print", "write", "memory", "\ud800", "fine")
        assert [scored[key] for key in (1, 4, 5)] == [right(1), right(4), right(5)]  # prints are no answers
        for key, words in ((0, "ValueError: no such thing"), (2, "OSError"), (3, "MemoryError")):
            failed = scored[key]
            assert isinstance(failed, Failed)
            assert failed.reason == "exception"
            assert words in failed.detail
            assert "Traceback" in failed.detail


async def test_enormous_completion_is_not_read(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path) as pool:
        enormous, large = await verdicts(pool, "a" * (COMPLETION_LENGTH_MAX + 1), "a" * COMPLETION_LENGTH_MAX)
        assert enormous == Scored("0", Score(0.0, False, "the completion is too long"))
        assert large == right(1)


async def test_full_queue_makes_score_wait(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path, queue_max=2) as pool:
        scoring = asyncio.gather(*(pool.score([item(key, ANY, "fine")]) for key in range(10)))
        await asyncio.sleep(0)
        assert pool._jobs.full
        assert await scoring == [[right(key)] for key in range(10)]  # score waits while the queue is full


@pytest.mark.parametrize(
    ("mode", "command", "words"),
    [
        ("refuse", HOSTILE, "refused"),
        ("die", HOSTILE, "died of a bad start"),
        ("good", GARBAGE, "not JSON"),
        ("good", ("/no/such/program",), "No such file"),
    ],
)
async def test_a_process_that_does_not_start(tmp_path: Path, mode: str, command: tuple[str, ...], words: str) -> None:
    with pytest.raises(TaskError) as caught:
        async with hostile_pool(tmp_path, mode=mode, processes=2, command=command):
            pass
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "command", "completion", "words"),
    [("start once", HOSTILE, "hang", "it starts only once"), ("good", DEAF, "fine", "die before they score")],
)
async def test_pool_fails_when_processes_do_not_restart(
    tmp_path: Path, mode: str, command: tuple[str, ...], completion: str, words: str
) -> None:
    async with hostile_pool(tmp_path, mode=mode, timeout_s=0.3, queue_max=4, command=command) as pool:
        first = asyncio.create_task(pool.score([item(0, ANY, completion)]))
        others = [asyncio.create_task(pool.score([item(key, ANY, "fine")])) for key in range(1, 30)]
        outcomes = await asyncio.gather(first, *others, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, TaskError)]
        assert len(failures) >= 29
        assert words in str(failures[0])
        with pytest.raises(TaskError, match=words):
            await pool.score([item(99, ANY, "fine")])


async def test_a_process_that_is_killed_while_it_starts_does_not_start() -> None:
    silent = LineProcess((sys.executable, "-c", "import time; time.sleep(60)"), {}, name="silent")
    starting = asyncio.create_task(silent.start())
    while silent.pid is None:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0)
    await silent.kill()
    with pytest.raises(TaskError, match="a silent process did not start"):
        await starting


async def test_close_leaves_no_process_and_no_waiter(tmp_path: Path) -> None:
    async with hostile_pool(tmp_path, processes=2, timeout_s=60.0, queue_max=1) as pool:
        waiting = [asyncio.create_task(pool.score([item(key, ANY, "hang")])) for key in range(40)]
        await asyncio.sleep(0.1)
        pids = pool.pids
        await pool.close()
        assert not any(runs(pid) for pid in pids)
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, TaskError) for outcome in outcomes)
        with pytest.raises(TaskError, match="closed"):
            await pool.score([item(0, ANY, "fine")])


@pytest.mark.parametrize("completion", ["hang", "spin"])
def test_no_orphans_when_the_coordinator_is_killed(tmp_path: Path, completion: str) -> None:
    command = [sys.executable, "-m", "tests.coordinator.verifiers.pool_owner", json.dumps(HOSTILE)]
    with subprocess.Popen(
        [*command, hostile_task(tmp_path), completion], stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = json.loads(owner.stdout.readline())
        assert len(pids) == 2
        assert all(runs(pid) for pid in pids)
        owner.kill()
    assert until(lambda: not any(runs(pid) for pid in pids))


async def test_a_users_function_scores_batches_and_its_failures_say_so(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "def score(completions, answers):\n"
        "    if 'hang' in completions: time.sleep(600)\n"
        "    if 'raise' in completions: raise KeyError('oh')\n"
        "    return [{'right': float(one == two)} for one, two in zip(completions, answers)]\n"
    )
    (tmp_path / "reward.py").write_text(code)
    check = PythonCheck(kind="python", path=f"{tmp_path}/reward.py:score", batch=True)
    config = JsonlTask(kind="jsonl", path=tmp_path / "never-read.jsonl", check=check)
    pool = VerifierPool(task_config_to_json(config), 0, 1, 0.5, 100)
    await pool.start()
    try:
        assert await pool.score([item(0, ANY, "a"), item(1, ANY, "b")]) == [
            Scored("0", Score(1.0, True, parts={"right": 1.0})),
            Scored("1", Score(0.0, False, parts={"right": 0.0})),
        ]
        (raised,) = await pool.score([item(2, ANY, "raise")])
        assert isinstance(raised, Failed)
        assert "KeyError: 'oh'" in raised.detail
        verdicts = await score_again(pool, [item(3, ANY, "a"), item(4, ANY, "hang")])
        assert isinstance(verdicts[0], Scored)  # what hung beside it is scored in a batch of its own the second time
        assert isinstance(verdicts[1], Failed)
        assert verdicts[1].reason == "timeout"
    finally:
        await pool.close()


async def test_a_mixture_scores_each_part_by_its_own_check(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("async def score(completion):\n    return len(completion)")
    check = PythonCheck(kind="python", path=f"{tmp_path}/reward.py:score")
    rows = JsonlTask(kind="jsonl", path=tmp_path / "never-read.jsonl", check=check)
    exact = JsonlTask(kind="jsonl", path=tmp_path / "never-read.jsonl", check=ExactCheck())
    parts = [MixturePart(name="own", task=rows), MixturePart(name="exact", task=exact)]
    task = build_task(MixtureTask(kind="mixture", parts=parts), 0)
    task.warm_up()
    assert checks_together(task)
    items = [(Problem(f"{name}/jsonl:0", "?", "yes", {}), "yes") for name in ("exact", "own", "exact")]
    outcomes = await verify_many(task, items, 5.0)
    assert outcomes == [Score(1.0, True), Score(3.0, True), Score(1.0, True)]


async def test_a_completion_on_which_its_check_raises_fails_alone(tmp_path: Path) -> None:
    """Also where checks that answer at once stand beside one that scores batches."""
    code = (
        "async def length(completion):\n    return len(completion)\n"
        "def inverse(completion):\n    return 1 / len(completion)\n"
    )
    (tmp_path / "reward.py").write_text(code)
    length, inverse = (
        PythonCheck(kind="python", path=f"{tmp_path}/reward.py:{name}") for name in ("length", "inverse")
    )
    summed = SumCheck(kind="sum", parts=[SumPart(name="a", check=length), SumPart(name="b", check=inverse)])
    parts = [
        MixturePart(name=name, task=JsonlTask(kind="jsonl", path=tmp_path / "never-read.jsonl", check=check))
        for name, check in (("sum", summed), ("inverse", inverse))
    ]
    task = build_task(MixtureTask(kind="mixture", parts=parts), 0)
    task.warm_up()
    items = [(Problem(f"{name}/jsonl:0", "?", "", {}), text) for name in ("sum", "inverse") for text in ("", "yes!")]
    outcomes = await verify_many(task, items, 5.0)
    assert [one.reward if isinstance(one, Score) else one.reason for one in outcomes] == [
        "exception",
        4.25,
        "exception",
        0.25,
    ]
