"""Search for a setting in which naive fp8 rollouts harm training: longer answers, weaker starts, larger steps.

In every setting and with every seed the same warm-started policy is trained three times: bf16 learner and rollouts;
unified fp8, f32 carrier; and naive, a bf16 learner that treats fp8 rollouts as its own. ``SETTING_FLOW``: held-out
exact match after training, the mean over the seeds; ``SETTING_before``: that of the start in bf16. ``harm_most``: the
most, over settings, by which naive stays below bf16; ``unified_behind_most``: the same for unified; ``harmed``: the
number of settings in which naive is more than 0.02 below bf16 with every seed. Each training is printed when it ends;
with --kept it is also stored, and the next search with that file continues where this one ended.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.learner.demonstration import Course, Demonstration, reported_settings
from bench.machine import Outcome
from learner.training.trainer import Trainer
from rollcast.cli.up_config import UpConfig
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params
from rollcast.policy.sampling.sampler import Sampler
from rollcast.policy.snapshot import freeze, thaw

HARM = 0.02
FLOWS: dict[str, dict[str, str]] = {
    "bf16": {"precision": "bfloat16"},
    "unified": {"precision": "fp8"},
    "naive": {"precision": "fp8-naive"},
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The differences of a setting from the configuration."""

    learning_rate_factor: float = 1.0
    staleness: int = 0  # learner steps
    warm_start: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)  # parameters of the task that differ
    sampling: dict[str, int] = field(default_factory=dict)


WEAK: dict[str, Any] = {"accuracy_gate": 0.5, "check_every_steps": 50}
CARELESS: dict[str, Any] = {"flawed_steps": 400}


def _digits(count: int, **others: Any) -> Setting:
    """Return a setting: a weak start in sums of two numbers of ``count`` digits, with limits that fit."""
    digits = {"min_digits": count, "max_digits": count}
    room = {"prompt_tokens_max": 2 * count + 5, "new_tokens_max": count + 2}
    return Setting(parameters=digits, sampling=room, warm_start=WEAK, **others)


#: The most telling first: a search may end early.
SETTINGS = {
    "weak_fast": Setting(learning_rate_factor=3.0, warm_start=WEAK),
    "digits4_fast": _digits(4, learning_rate_factor=3.0),
    "weak_stale": Setting(staleness=6, warm_start=WEAK),
    "digits6": _digits(6),
    "as_is": Setting(),
    "digits4": _digits(4),
    "fast": Setting(learning_rate_factor=3.0),
    "weak": Setting(warm_start=WEAK),
    "stale": Setting(staleness=6),
    "careless": Setting(warm_start=CARELESS),
    "digits3": _digits(3),
    "terms3": Setting(parameters={"min_terms": 3, "max_terms": 3}, sampling={"prompt_tokens_max": 14}, warm_start=WEAK),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--search", type=int, default=0, help=f"train in the first N of {len(SETTINGS)} settings")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the search")
    parser.add_argument("--kept", type=Path, help="file that collects a search's trainings, so that none is repeated")


class Kept:
    """The finished trainings, each a line of JSON.

    Args:
        path: path of the file; None: trainings are kept in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._courses: dict[str, Course] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        for line in lines:
            found = json.loads(line)
            self._courses[json.dumps(found["training"])] = Course(**found["course"])

    def find(self, training: dict[str, Any]) -> Course | None:
        """Return the result of a training, identified by all its settings, or None if it has not run."""
        return self._courses.get(json.dumps(training))

    def add(self, training: dict[str, Any], course: Course) -> None:
        """Keep the result of a training."""
        self._courses[json.dumps(training)] = course
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"training": training, "course": asdict(course)}) + "\n")


def run(arguments: argparse.Namespace, config: UpConfig) -> Outcome:
    """Train in the first ``arguments.search`` settings."""
    names = list(SETTINGS)[: arguments.search]
    first = config.coordinator.run.seed
    seeds = range(first, first + arguments.seeds)
    kept = Kept(arguments.kept)
    courses = {(name, flow): _trainings(config, name, flow, seeds, arguments, kept) for name in names for flow in FLOWS}
    settings = reported_settings(arguments) | {"settings": {name: repr(SETTINGS[name]) for name in names}}
    return Outcome(settings, figures(courses))


def figures(courses: dict[tuple[str, str], list[Course]]) -> dict[str, float]:
    """Return the figures by setting and flow, and the worst of all."""
    found: dict[str, float] = {}
    behind: dict[str, list[float]] = {"unified": [], "naive": []}
    harmed = 0
    for name in dict.fromkeys(name for name, _ in courses):
        found[f"{name}_before"] = fmean(course.before for course in courses[name, "bf16"])
        for flow in FLOWS:
            found[f"{name}_{flow}"] = fmean(course.after for course in courses[name, flow])
        for flow, most in behind.items():
            most.append(found[f"{name}_bf16"] - found[f"{name}_{flow}"])
        pairs = zip(courses[name, "bf16"], courses[name, "naive"], strict=True)
        harmed += all(naive.after < bf16.after - HARM for bf16, naive in pairs)
    found["harm_most"] = max(behind["naive"])
    found["unified_behind_most"] = max(behind["unified"])
    found["harmed"] = float(harmed)
    return found


def _trainings(
    config: UpConfig, name: str, flow: str, seeds: Sequence[int], arguments: argparse.Namespace, kept: Kept
) -> list[Course]:
    """Train once for each seed; the trainings share their compiled code."""
    setting = SETTINGS[name]
    starts_as, trained_as = configured(config, setting), configured(config, setting, FLOWS[flow])
    trainer: Trainer | None = None
    sampler: Sampler | None = None
    courses = []
    for seed in seeds:
        training = {"setting": name, "as": asdict(setting), "flow": flow, "seed": seed, "steps": arguments.steps}
        course = kept.find(training)
        if course is None:
            demonstration = Demonstration(trained_as, seed, arguments.cache, sampler)
            learner = demonstration.learner({}, trained_as.learner.optimiser.learning_rate)
            trainer = trainer or Trainer(demonstration.model, learner)
            sampler = demonstration.sampler
            start = Demonstration(starts_as, seed, arguments.cache).start()
            publish = _frozen(demonstration.model)
            course = demonstration.train(
                learner, trainer, setting.staleness, arguments.steps, start=start, published=publish
            )
            kept.add(training, course)
        courses.append(course)
        course.report(f"{name} seed {seed} {flow}")
    return courses


def configured(config: UpConfig, setting: Setting, model: Mapping[str, str] | None = None) -> UpConfig:
    """Return the configuration with the differences of a setting, and of its model."""
    values = config.model_dump()
    values["learner"]["warm_start"] |= setting.warm_start
    values["coordinator"]["task"]["parameters"] |= setting.parameters
    values["coordinator"]["sampling"] |= setting.sampling
    values["learner"]["optimiser"]["learning_rate"] *= setting.learning_rate_factor
    values["learner"]["model"] |= model or {}
    return UpConfig.model_validate(values)


def _frozen(model: ModelConfig) -> Callable[[Params], Params]:
    """Return a function from masters to the weights of rollouts; the learner still scores with its masters."""

    def publish(params: Params) -> Params:
        snapshot = freeze(model, params)
        return thaw(model, snapshot.tensors, snapshot.state_bytes)

    return publish
