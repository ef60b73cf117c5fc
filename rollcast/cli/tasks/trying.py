"""`rollcast tasks try FILE.toml`: draw problems of a task, answer them, and show how the answers are scored."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

from rollcast.cli.options import Json, Settings
from rollcast.cli.tasks.episodes import Say, is_played, play, replayed, shown_on, turns_of
from rollcast.runtime.config import override, parse_config, read_toml
from rollcast.runtime.errors import ConfigError, NotScored, RollcastError
from rollcast.runtime.logs import configure_logging

if TYPE_CHECKING:
    from coordinator.config.config import CoordinatorConfig
    from coordinator.prompts.stored_rollouts import StoredRollout
    from coordinator.tasks.checks.task import FailureReason, Problem
    from coordinator.verifiers.scorer import Verdict

PROBLEMS_MOST = 10_000
_SECTIONS = ("task", "verifier", "environments")
_DRAWN_FROM = 1 << 20  # of an endless task: indices below this


def try_task(
    file: Path,
    /,
    *,
    n: int = 5,
    seed: int = 0,
    answers: Path | None = None,
    from_run: Annotated[Path | None, Parameter(name="--from")] = None,
    settings: Settings = (),
    json_output: Json = False,
) -> int:
    """Draw problems of a task, answer them, and show how the answers are scored.

    At a terminal each problem waits for an answer; an empty line stands for the problem's own answer. Elsewhere the
    problems' own answers are scored. A problem with an environment is played to its end, a turn a line; its teacher
    takes the turns for which there is no line.

    Parameters
    ----------
    file
        Configuration with a [task], or a [coordinator.task] as `rollcast up` takes it.
    n
        Number of problems.
    seed
        Seed of the choice of problems.
    answers
        File of answers, one a line: text, or JSON objects with `completion`. Further problems get none.
    from_run
        Run folder whose newest completions are scored, instead of new problems. Episodes of an environment are shown
        whole, with the reward that they had.
    settings
        Override a setting of the file, as `rollcast up` does; repeat for several, as section.key=value.
    json_output
        Print one JSON object per line, and do not ask for answers.
    """
    if not 1 <= n <= PROBLEMS_MOST:
        raise ConfigError(f"--n {n} is out of range", fix=f"use 1 to {PROBLEMS_MOST}")
    if answers is not None and from_run is not None:
        raise ConfigError("--answers and --from exclude each other", fix="give one of them")
    configure_logging("cli", level=logging.ERROR)  # a verifier that hangs or dies is in the verdict
    config, console, progress = _config(file, settings), Console(), Console(stderr=True)
    if from_run is not None:
        pairs, episodes = _kept(from_run, n)
        kept = replayed(episodes, (lambda *_: None) if json_output else shown_on(console))
        for facts in kept if json_output else ():
            print(json.dumps(facts))
    else:
        with progress.status("loading the task"), _keys_as_in(file):
            problems = _drawn(config, n, seed)
        if is_played(problems):
            return _play(config, problems, answers, console, json_output=json_output)
        pairs = list(zip(problems, _answers(problems, answers, console, ask=not json_output), strict=False))
    with progress.status(f"scoring {len(pairs)} completions"):
        verdicts = asyncio.run(_score(config, pairs)) if pairs else []
    scored = [_facts(problem, text, verdict) for (problem, text), verdict in zip(pairs, verdicts, strict=True)]
    for facts in scored:
        if json_output:
            print(json.dumps(facts))
        else:
            _show(console, facts)
    failed = [facts for facts in scored if "failed" in facts]
    if failed:
        raise NotScored(
            f"{len(failed)} of {len(scored)} completions could not be scored",
            cause=str(failed[0]["detail"]).strip().rpartition("\n")[2],
            fix=_fix(config, failed[0]["failed"]),
        )
    return 0


@contextmanager
def _keys_as_in(file: Path) -> Iterator[None]:
    """Name the keys of an error's fix as they stand in the file: below coordinator in one of `rollcast up`."""
    try:
        yield
    except RollcastError as error:
        if "coordinator" in read_toml(file):
            from rollcast.cli.up_config import with_full_keys  # imports the configuration of every role

            error.fix = with_full_keys(error.fix, "coordinator")
        raise


def _fix(config: CoordinatorConfig, reason: FailureReason) -> str:
    """Return what to do about a check that failed."""
    path = getattr(getattr(config.task, "check", None), "path", "") or "the check"
    if reason == "timeout":
        return f"make {path} faster, or raise verifier.timeout_s, which is {config.verifier.timeout_s:g} s"
    return f"correct {path}"


def _play(
    config: CoordinatorConfig, problems: Sequence[Problem], answers: Path | None, console: Console, *, json_output: bool
) -> int:
    """Play an episode of each problem, and show it."""
    say: Say = lambda: None  # noqa: E731 - the teacher's turns
    if answers is not None:
        say = turns_of(iter(_completion(line) for line in _lines(answers)))
    elif sys.stdin.isatty() and not json_output:
        say = lambda: _typed(console, "turn") or None  # noqa: E731
    played = asyncio.run(play(config, problems, say, (lambda *_: None) if json_output else shown_on(console)))
    if json_output:
        for facts in played:
            print(json.dumps(facts))
    failed = [facts for facts in played if "failed" in facts]
    if failed:
        raise NotScored(
            f"{len(failed)} of {len(played)} episodes failed",
            cause=str(failed[0].get("detail") or failed[0]["failed"]).strip().rpartition("\n")[2],
            fix=f"correct {getattr(config.task, 'path', None) or 'the environment'}",
        )
    return 0


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot read {file}", cause=str(error), fix="correct --answers") from None


def _config(file: Path, settings: Sequence[str]) -> CoordinatorConfig:
    """Return a coordinator's configuration with the file's task and verifiers."""
    from coordinator.config.config import CoordinatorConfig

    values = override(read_toml(file), settings)
    if isinstance(values.get("coordinator"), dict):
        values = values["coordinator"]
    if "task" not in values:
        raise ConfigError(f"{file} has no task", cause="neither [task] nor [coordinator.task] is there", fix="add one")
    chosen = {name: values[name] for name in _SECTIONS if name in values}
    return parse_config(chosen, CoordinatorConfig, source=str(file))


def _drawn(config: CoordinatorConfig, count: int, seed: int) -> list[Problem]:
    """Return different problems of the task, in turn from the parts of a mixture."""
    from coordinator.tasks.build import build_task
    from coordinator.tasks.multi_task import Mixed, Part, named

    task, random = build_task(config.task, config.run.seed), Random(seed)
    parts = task.parts if isinstance(task, Mixed) else (Part("", task),)
    drawn: list[list[Problem | None]] = []
    for part in parts:
        size = part.adapter.problem_count or _DRAWN_FROM
        indices = random.sample(range(size), min(size, count))
        drawn.append([named(part.name, part.adapter.problem(index)) for index in indices])
    in_turn = chain.from_iterable(zip_longest(*drawn))
    return [problem for problem in in_turn if problem is not None][:count]


def _answers(problems: Sequence[Problem], file: Path | None, console: Console, *, ask: bool) -> list[str]:
    """Return completions of the first problems."""
    if file is not None:
        return [_completion(line) for line in _lines(file)[: len(problems)]]
    if not (ask and sys.stdin.isatty()):
        return [problem.answer for problem in problems]
    found = []
    for problem in problems:
        console.print(Rule(problem.problem_id, align="left"))
        console.print(escape(problem.prompt), highlight=False)
        found.append(_typed(console, "answer") or problem.answer)
    return found


def _typed(console: Console, asked: str) -> str:
    """Return a line from the terminal; Ctrl-D is an empty one."""
    try:
        return console.input(f"[bold]{asked}[/bold] ")
    except EOFError:
        console.print()
        return ""


def _completion(line: str) -> str:
    """Return a line's completion: that of a JSON object, or the line itself."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return line
    return str(value["completion"]) if isinstance(value, dict) and "completion" in value else line


def _kept(run: Path, count: int) -> tuple[list[tuple[Problem, str]], list[StoredRollout]]:
    """Return the newest completions of a run with their problems, and the newest episodes of problems among these."""
    from coordinator.prompts.samples import newest_completions
    from coordinator.prompts.stored_rollouts import stored_rollouts
    from rollcast.cli.run.run_tools import run_config, run_tokenizer
    from rollcast.runtime.run_folder import RunFolder

    folder = RunFolder(run)
    tokenizer = run_tokenizer(run_config(run), folder)
    newest = newest_completions(folder, tokenizer, count)
    played = {problem.problem_id for problem, _ in newest if is_played([problem])}
    questions = [(problem, text) for problem, text in newest if problem.problem_id not in played]
    # An episode cannot be scored again: its environment gave the reward turn by turn.
    stored = stored_rollouts(folder, tokenizer, count) if played else []
    return questions, [one for one in stored if one.problem_id in played]


async def _score(config: CoordinatorConfig, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
    from coordinator.verifiers.build import build_scorer
    from coordinator.verifiers.scorer import ScoreItem

    scorer = build_scorer(config.task, config.run.seed, config.verifier)
    try:
        await scorer.start()
        return await scorer.score([ScoreItem(str(key), *pair) for key, pair in enumerate(pairs)])
    finally:
        await scorer.close()


def _facts(problem: Problem, text: str, verdict: Verdict) -> dict[str, Any]:
    from coordinator.verifiers.scorer import Failed

    facts: dict[str, Any] = {
        "problem_id": problem.problem_id,
        "prompt": problem.prompt,
        "answer": problem.answer,
        "completion": text,
    }
    if isinstance(verdict, Failed):
        return facts | {"failed": verdict.reason, "detail": verdict.detail}
    score = verdict.score
    return facts | {"reward": score.reward, "exact": score.exact, "parts": dict(score.parts), "detail": score.detail}


def _show(console: Console, facts: dict[str, Any]) -> None:
    if "failed" in facts:
        outcome = f"[red]not scored: {facts['failed']}[/red]"
    else:
        colour = "green" if facts["exact"] else "yellow"
        outcome = f"[{colour}]reward {facts['reward']:g}[/{colour}]"
    console.print(Rule(f"{escape(facts['problem_id'])}: {outcome}", align="left"))
    parts = ", ".join(f"{name} {value:g}" for name, value in facts.get("parts", {}).items())
    shown = {"prompt": facts["prompt"], "output": facts["completion"], "answer": facts["answer"]}
    for name, text in {**shown, "parts": parts, "detail": facts["detail"]}.items():
        if text:
            console.print(f"[dim]{name:<7}[/dim] {escape(text)}", highlight=False, soft_wrap=True)
