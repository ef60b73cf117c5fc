"""`rollcast init`: write a commented configuration, and the files that go with it, into the present folder."""

from __future__ import annotations

import difflib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from rollcast.cli.options import Json
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import write_atomically

#: The repository's folder of examples, also part of a wheel.
EXAMPLES = Path(__file__).with_name("examples")


@dataclass(frozen=True, slots=True)
class Start:
    """A starting point: a folder of examples, what it is in a few words, and the commands that come next."""

    folder: str
    about: str
    then: tuple[str, ...]


_UP = ("rollcast config validate run.toml", "rollcast up run.toml")
_TRY = ("rollcast tasks try run.toml --n 2", "rollcast up run.toml")
STARTS: dict[str, Start] = {
    "demo": Start("demo", "the demonstration: a small policy learns two-digit sums", _UP),
    "jsonl": Start("jsonl", "questions and answers of your own, in a file", _UP),
    "guessing": Start("guessing", "an environment of your own, in one class: a guessing game", _TRY),
    "calculator": Start("calculator", "an environment with a tool: the policy learns to ask a calculator", _TRY),
    "telling": Start("telling", "a game of two agents, both played by the policy, that learn to work together", _TRY),
    "verifiers": Start(
        "verifiers-recall",
        "an environment of the package verifiers, of two turns",
        (
            "python -m venv venv && venv/bin/pip install 'verifiers==0.4.*'",
            "rollcast tasks try run.toml --set coordinator.task.python=venv/bin/python --n 2",
            "rollcast up run.toml --set coordinator.task.python=venv/bin/python",
        ),
    ),
    "own-reward": Start("own-reward", "a reward function of your own, of ten lines", _TRY),
    "published": Start(
        "published",
        "Qwen3-4B learns mathematics",
        (
            "hf download Qwen/Qwen3-4B --local-dir models/Qwen3-4B",
            "rollcast plan-memory run.toml",
            "rollcast curate ... --out math.jsonl     # your problems; docs/data.md",
            "rollcast up run.toml",
        ),
    ),
    "plan": Start(
        "plan",
        "machines and a demand for the planner, which names the cheapest set; no run",
        (
            "rollcast capacity plan --pool pool.csv --demand demand.toml --out plan.json",
            "rollcast capacity explain plan.json",
            "rollcast capacity offers columns          # what pool.csv may contain; `offers demand` for demand.toml",
        ),
    ),
    "donor-fleet": Start(
        "donor-fleet",
        "coordinator, learner and origin for machines that join with an invite",
        (
            "rollcast identity learner.key            # prints the learner's public key",
            "rollcast coordinator coordinator.toml --set learner_public_key=KEY   # keeps its terminal",
            "cp runs/coordinator/secrets/invite-*.txt .",
            "rollcast peer run origin.toml            # in a terminal of its own",
            "rollcast learner learner.toml            # in a terminal of its own",
            "rollcast invite --quota 8 --run-folder runs/coordinator    # prints the line for donors",
        ),
    ),
}


def init(start: str = "", /, *, into: Path = Path(), json_output: Json = False) -> int:
    """Write the files of a starting point into the present folder; without a name, list the starting points.

    Parameters
    ----------
    start
        Name of the starting point: demo, jsonl, guessing, calculator, telling, verifiers, own-reward, published, plan
        or donor-fleet.
    into
        Folder for the files; created if it is missing. Existing files are never replaced.
    json_output
        Print one JSON object.
    """
    if not start:
        return _list(json_output=json_output)
    found = STARTS.get(start)
    if found is None:
        meant = difflib.get_close_matches(start, STARTS, n=1)
        choose = f"did you mean {meant[0]}? Otherwise choose" if meant else "choose"
        raise ConfigError(
            f"there is no starting point {start!r}",
            fix=f"{choose} one of {', '.join(STARTS)}; `rollcast init` describes each",
        )
    sources = files_of(found)
    existing = [path.name for path in sources if (into / path.name).exists()]
    if existing:
        fix = "give another folder with --into, or move these files away"
        verb = "exists" if len(existing) == 1 else "exist"
        raise ConfigError(f"{', '.join(existing)} {verb} already in {into.absolute()}", fix=fix)
    try:
        into.mkdir(parents=True, exist_ok=True)
        for path in sources:
            write_atomically(into / path.name, path.read_bytes(), mode=0o644)
    except OSError as error:
        fix = "choose another folder with --into"
        raise ConfigError(f"cannot write into {into}", cause=error.strerror or str(error), fix=fix) from None
    if json_output:
        print(json.dumps({"files": [str(into / path.name) for path in sources], "then": found.then}))
        return 0
    print(f"{found.about}: wrote {', '.join(str(into / path.name) for path in sources)}\n\nnext:")
    change_folder = () if into == Path() else (f"cd {shlex.quote(str(into))}",)
    print("\n".join(f"    {command}" for command in (*change_folder, *found.then)))
    return 0


def files_of(start: Start) -> list[Path]:
    """Return the files of a starting point, by name."""
    return sorted(path for path in (EXAMPLES / start.folder).iterdir() if path.is_file())


def _list(*, json_output: bool) -> int:
    if json_output:
        print(json.dumps({name: start.about for name, start in STARTS.items()}))
        return 0
    width = max(map(len, STARTS))
    for name, start in STARTS.items():
        print(f"rollcast init {name:<{width}}  {start.about}")
    return 0
