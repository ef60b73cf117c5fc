"""Provide the run's problems: sampled, demonstrated, held out and scored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from coordinator.config.config import CoordinatorConfig
from coordinator.core.events.events import Prompt
from coordinator.core.lent.lent import is_lent
from coordinator.environments.pool import EnvironmentPool
from coordinator.ledger.store import ProblemReward
from coordinator.prompts.evaluation_games import EvaluationGames, Played, cut_newest, split_turns
from coordinator.prompts.loading import Loaded, TaskLoading
from coordinator.prompts.sampled import SampledProblems
from coordinator.prompts.samples import SampleBook, sample_of
from coordinator.prompts.tokenizers import check_stop_strings, stored_tokenizer
from coordinator.tasks.build import EVALUATION
from coordinator.tasks.checks.task import Problem, Score
from coordinator.tasks.evaluation_sets import HELD_OUT
from coordinator.tasks.mixture import Example, PromptMixture, TrainingPrompt
from coordinator.tasks.volatility import Difficulty, Volatility
from coordinator.verifiers.scorer import Failed, ScoreItem, Verdict, score_again
from rollcast.runtime.errors import MalformedMessage, NotScored, TaskError
from rollcast.runtime.waits import cancel_and_wait, deadline
from rollcast.wire.ids import RolloutId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.stop_strings import StopStrings
from rollcast.wire.text.tokenizer import TextTokenizer, Tokenizer
from rollcast.wire.token_ids import unpack_ids

T = TypeVar("T")

GENERATOR_DEADLINE_S = 120.0  # one request to the task's generator, a cold import included


class Problems:
    """Gives access to the task, its mixture and its verifiers.

    Loading the task's library and starting the verifiers takes seconds, and uploads need neither: a coordinator that
    already has the tokenizer serves at once, and only calls that need problems wait for the loading.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        task: TaskLoading,
        loading: asyncio.Task[Loaded],
        volatility: Volatility | None,
        stop_strings: Sequence[str] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.environments = task.environments  # None: no problem has one
        self._games: EvaluationGames | None = None
        self._task = task
        self._scorer = task.scorer
        self._held_out_scored = 0
        self._loading = loading
        self._volatility = volatility
        if isinstance(tokenizer, Tokenizer):
            task.scorer.decode_by(tokenizer.to_json())
        self.ends = StopStrings(stop_strings, tokenizer.decode)
        self._sampled = SampledProblems()

    @classmethod
    async def start(
        cls,
        config: CoordinatorConfig,
        mixture_position: str | None,
        sampled: Sequence[Problem] = (),
        tokenizer_json: str | None = None,
        rewards: Iterable[ProblemReward] = (),
        task: TaskLoading | None = None,
    ) -> Problems:
        """Load the task, set its held-out problems apart, start its verifiers, and resume the mixture.

        Args:
            mixture_position: saved position of the mixture; None: its start.
            sampled: problems sampled earlier that may still have to be scored.
            tokenizer_json: the run's own tokenizer; None at its first start. With it, the task loads in the background,
                see ``failed``.
            rewards: the ledger's reward figures of problems.
            task: the task, if it loads already, to be closed with the problems; None: it is loaded.

        Raises:
            TaskError: the task or its data is wrong, or too small for the held-out problems.
            ModelError: the model's tokenizer cannot be used.
            ConfigError: a stop string has characters that no completion can have.
            MissingExtra: a library of the task is not installed.
        """
        task = task or TaskLoading(config)
        volatility = _volatility(config, rewards)
        loading = asyncio.create_task(task.resumed(mixture_position, volatility))
        try:
            if tokenizer_json is None:
                tokenizer = (await loading).mixture.tokenizer
            else:
                tokenizer = await asyncio.to_thread(stored_tokenizer, config.tokenizer, tokenizer_json)
            check_stop_strings(tokenizer, config.sampling.stop_strings)
        except BaseException:
            await _stop(loading, task)
            raise
        problems = cls(tokenizer, task, loading, volatility, config.sampling.stop_strings)
        if task.environments is not None:
            problems._games = _games(config, task.environments, tokenizer)
        problems._sampled.keep(sampled)
        return problems

    async def failed(self) -> Exception:
        """Wait for the task to load, and return the error if it cannot; never returns if it loads."""
        try:
            loaded = await asyncio.shield(self._loading)
        except Exception as error:
            return error
        if loaded.mixture.tokenizer.to_json() != self.tokenizer.to_json():
            return TaskError(
                "the task's wording differs from the one at the run's start",
                cause="its prompts and answers use other pieces or characters",
                fix="restore the task's settings and files, or choose another run_folder",
            )
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Stop the verifiers, the environments and the thread."""
        if self._games is not None:
            await self._games.close()
        await _stop(self._loading, self._task)

    async def sample(self, count: int, steps: Sequence[int] = ()) -> tuple[Prompt, ...]:
        """Return the next problems of the mixture; ``steps``: see SupplyPrompts.

        Raises:
            TaskError: the task has no more usable problems.
        """
        sampled = await self._in_thread(lambda mixture: mixture.sample(count, steps))
        self._sampled.keep(one.problem for one in sampled)
        return tuple(
            Prompt(
                one.problem.problem_id,
                self._shared_prompt(one),
                one.position,
                one.problem.data.get("environment", ""),
                len(one.problem.data.get("agents", ())) or 1,
            )
            for one in sampled
        )

    def _shared_prompt(self, one: TrainingPrompt) -> tuple[int, ...]:
        """Return the prompt of a problem's group: of a game of several agents, the rules that all of them read."""
        data = one.problem.data
        if "agents" not in data:
            return one.prompt_token_ids
        return tuple(self.tokenizer.encode_rules(data["rules"], data["tools"]))

    def forget_unless(self, in_use: Callable[[], Collection[str]]) -> None:
        """Keep old problems only while their ids are among those that this returns."""
        self._sampled.in_use = in_use

    def sampled(self, problem_id: str) -> Problem:
        """Return a problem that was sampled, or one without content if it is a slot of a head's."""
        return Problem(problem_id, "", "", {}) if is_lent(problem_id) else self._sampled[problem_id]

    def rewarded(self, problem_id: str, reward: float) -> ProblemReward | None:
        """Count a rollout's reward; return the problem's new figures for the ledger, or None if none are kept."""
        return None if self._volatility is None else self._volatility.rewarded(problem_id, reward)

    def stage_began(self, number: int, from_step: int) -> None:
        """Sample problems for the steps from this one on by the pass rates of the stage of this number."""
        if self._volatility is not None:
            self._volatility.stage_began(number, from_step)

    async def examples(self, count: int, *, flawed: bool, cursor: int) -> list[pb.Example]:
        """Return labelled problems for the warm start, none of them held out.

        Raises:
            TaskError: the task has no demonstrations.
        """
        found = await self._in_thread(lambda mixture: mixture.examples(count, flawed=flawed, cursor=cursor))
        return _to_pb(found)

    async def held_out(self, count: int, name: str = HELD_OUT) -> list[pb.Example]:
        """Return problems of an evaluation set, which are never trained on, without answers.

        Raises:
            TaskError: there is no such set.
        """
        sets = (await self._loaded()).sets
        if name not in sets:
            raise TaskError(f"there is no evaluation set {name!r}", cause=f"there are {', '.join(sets)}")
        return _to_pb(sets[name].examples[:count])

    def text_end(self, packed_turn: Callable[[], bytes]) -> int | None:
        """Return the number of tokens up to the first that completes a stop string; None if no token does.

        The tokens are read only if there are stop strings.
        """
        return self.ends.end(unpack_ids(packed_turn()), 0) if self.ends.strings else None

    def score(self, rollout_id: RolloutId, problem_id: str, packed_completion: bytes) -> asyncio.Future[Verdict]:
        """Score one completion of a sampled problem; the core decides whether to score it again. See Scorer.submit."""
        key, problem = f"rollout {rollout_id}", self._sampled[problem_id]
        if self._scorer.decodes:  # a long completion would hold up every other upload
            item = ScoreItem(key, problem, "", packed_completion)
        else:
            item = ScoreItem(key, problem, self.tokenizer.decode(unpack_ids(packed_completion)))
        return self._scorer.submit(item)

    async def score_held_out(self, example_id: int, token_ids: Sequence[int]) -> Score:
        """Score one completion of a problem of an evaluation set.

        Raises:
            MalformedMessage: there is no such problem.
            NotScored: the verifiers failed each time.
        """
        _, problem = await self.evaluated(example_id)
        self._held_out_scored += 1
        item = ScoreItem(f"evaluation {self._held_out_scored}", problem, self._text(token_ids))
        (verdict,) = await score_again(self._scorer, [item])
        if isinstance(verdict, Failed):
            raise NotScored(f"a completion of {problem.problem_id} could not be scored", cause=verdict.words)
        return verdict.score

    async def score_completion(self, completion: pb.Completion, book: SampleBook | None) -> pb.CompletionScore:
        """Score a completion of an evaluation problem, and keep it as a sample if the learner asks to.

        If the problem has an environment that goes on, the result is its answer instead.

        Raises:
            MalformedMessage: there is no such problem, or no such turns.
            NotScored: the verifiers or the environment failed each time.
            RunFolderError: the sample cannot be written.
        """
        name, problem = await self.evaluated(completion.example_id)
        token_ids = tuple(completion.token_ids)
        if "environment" in problem.data and self._games is not None:
            token_ids, lengths = cut_newest(token_ids, completion.turn_lengths, self.ends.cut)
            played = await self._games.play(problem, token_ids, lengths)
            if not played.ended:
                return _answer(completion, len(token_ids), played)
            parts = split_turns(token_ids, lengths)
            text = "\n".join(self.tokenizer.decode(part) for part in parts)  # decoding stops at the end of a turn
            score = Score(played.reward, played.reward >= 1.0)
        else:
            score, text = await self.score_held_out(completion.example_id, token_ids), self._text(token_ids)
        if completion.keep and book is not None:
            problem = replace(problem, problem_id=problem.problem_id.removeprefix(f"{EVALUATION}{name}/"))
            await book.keep(sample_of(name, completion.version, problem, completion.sample_index, text, score))
        return pb.CompletionScore(example_id=completion.example_id, reward=score.reward, exact=score.exact)

    def _text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion that was sampled without stop strings: what follows its end is cut off."""
        return self.tokenizer.decode(self.ends.cut(token_ids))

    async def evaluated(self, example_id: int) -> tuple[str, Problem]:
        """Return the evaluation set and the problem with this id.

        Raises:
            MalformedMessage: no problem has this id.
        """
        for name, one in (await self._loaded()).sets.items():
            first = one.examples[0].example_id if one.examples else 0
            if first <= example_id < first + len(one.examples):
                return name, one.examples[example_id - first].problem
        raise MalformedMessage(f"there is no held-out problem {example_id}")

    async def _loaded(self) -> Loaded:
        return await asyncio.shield(self._loading)

    async def _in_thread(self, work: Callable[[PromptMixture], T]) -> T:
        loaded = await self._loaded()
        async with deadline(GENERATOR_DEADLINE_S, "the task's generator"):
            result = await self._task.thread.run(lambda: work(loaded.mixture))
        loaded.skips.log_changes(time.monotonic())
        return result


async def _stop(loading: asyncio.Task[Loaded], task: TaskLoading) -> None:
    await cancel_and_wait(loading)
    await task.close()


def _games(config: CoordinatorConfig, environments: EnvironmentPool, tokenizer: TextTokenizer) -> EvaluationGames:
    pool = config.environments
    return EvaluationGames(
        environments,
        tokenizer,
        tokens_max=config.sampling.new_tokens_max,
        turns_max=pool.turns_max,
        kept_max=max(1, pool.episodes_max // 4),  # with those that take a turn half of all; the others are training's
        played_max=max(1, pool.episodes_max // 4),
        failures_max=pool.failures_max,
    )


def _answer(completion: pb.Completion, token_count: int, played: Played) -> pb.CompletionScore:
    return pb.CompletionScore(
        example_id=completion.example_id,
        goes_on=True,
        answer_token_ids=played.answer,
        answered_by_tools=played.by_tools,
        token_count=token_count,
    )


def _to_pb(examples: Iterable[Example]) -> list[pb.Example]:
    return [
        pb.Example(
            example_id=example.example_id,
            prompt_token_ids=example.prompt_token_ids,
            answer_token_ids=example.answer_token_ids,
            has_environment="environment" in example.problem.data,
        )
        for example in examples
    ]


def _volatility(config: CoordinatorConfig, rewards: Iterable[ProblemReward]) -> Volatility | None:
    """Return what chooses the problems to sample again; None if all of them are."""
    chosen = config.selection
    difficulty = [Difficulty(one.from_step, one.pass_rate_min, one.pass_rate_max) for one in config.stages]
    if not chosen.by_volatility and not any(stage.is_selective for stage in config.stages):
        return None
    return Volatility(
        config.run.seed,
        chosen.chance_least,
        rewards,
        exploration=chosen.exploration,
        weighs=chosen.by_volatility,
        difficulty=difficulty,
    )
