"""Keep completions for people to read: of evaluations in files of the run folder, of training in the ledger.

There is one JSON lines file per version and evaluation set. The oldest files are deleted when all together are too
large.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from coordinator.stores.reader import reading
from coordinator.tasks.checks.task import Problem, Score
from rollcast.runtime.errors import RunFolderError
from rollcast.runtime.run_folder import RunFolder, run_folder_error
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import TextTokenizer
from rollcast.wire.token_ids import unpack_ids

TEXT_LENGTH_MAX = 32 << 10  # characters kept of a prompt, answer or completion
LINE_BYTES_MAX = 1 << 20
SAMPLES_BYTES_MAX = 64 << 20
TRAINING = "training"  # the set of rollouts that were trained on or dropped

_VERSIONS_NAMED = 8  # newest versions that an error names
_NAME = re.compile(r"^(\d{12})\.([a-z0-9_-]+)\.jsonl$")


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion and its score. ``version`` sampled it; ``detail`` may say why it is not exact."""

    set: str
    version: int
    problem_id: str
    sample_index: int
    prompt: str
    answer: str
    completion: str
    reward: float
    exact: bool
    detail: str = ""
    parts: dict[str, float] = field(default_factory=dict)


def sample_of(name: str, version: int, problem: Problem, index: int, completion: str, score: Score) -> Sample:
    """Return a sample with its texts cut to TEXT_LENGTH_MAX characters."""
    prompt, answer, drawn = (text[:TEXT_LENGTH_MAX] for text in (problem.prompt, problem.answer, completion))
    outcome = (score.reward, score.exact, score.detail, dict(score.parts))
    return Sample(name, version, problem.problem_id, index, prompt, answer, drawn, *outcome)


class SampleBook:
    """Writes samples of evaluations.

    Args:
        bytes_max: limit on all files together, except the newest one.
    """

    def __init__(self, folder: RunFolder, bytes_max: int = SAMPLES_BYTES_MAX) -> None:
        self._folder = folder.samples
        self._bytes_max = bytes_max
        self._lock = asyncio.Lock()

    async def keep(self, sample: Sample) -> None:
        """Append a sample to its file.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        async with self._lock:
            await asyncio.to_thread(self._append, sample)

    def _append(self, sample: Sample) -> None:
        path = self._folder / f"{sample.version:012d}.{sample.set}.jsonl"
        try:
            self._folder.mkdir(exist_ok=True)
            new = not path.exists()
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(sample)) + "\n")
            if new:
                self._make_room()
        except OSError as error:
            raise run_folder_error(self._folder, error) from None

    def _make_room(self) -> None:
        files = sorted(path for path in self._folder.iterdir() if _NAME.match(path.name))
        sizes = {path: path.stat().st_size for path in files}
        for path in files[:-1]:
            if sum(sizes.values()) <= self._bytes_max:
                return
            del sizes[path]
            path.unlink()


def evaluated(folder: RunFolder, name: str = "", version: int | None = None) -> list[Sample]:
    """Return the samples of one evaluation set at one version.

    An empty ``name`` means the first set that has samples, ``version`` None the newest version that has any.

    Raises:
        RunFolderError: there are no samples, or a file cannot be read.
    """
    kept = sorted(
        (int(match[1]), match[2], path)
        for path in (folder.samples.iterdir() if folder.samples.is_dir() else ())
        if (match := _NAME.match(path.name))
    )
    found = [one for one in kept if name in ("", one[1]) and version in (None, one[0])]
    if not found:
        raise _no_samples(folder, name, version, [(number, of) for number, of, _ in kept])
    newest = found[-1][0]
    _, chosen, path = next(one for one in found if one[0] == newest)
    # A learner that had to retry its call sent some completions twice.
    once = {(sample.problem_id, sample.sample_index): sample for sample in _read(path, chosen)}
    return list(once.values())


def _no_samples(folder: RunFolder, name: str, version: int | None, kept: Sequence[tuple[int, str]]) -> RunFolderError:
    """Return the error to raise where there are no samples of this set at this version; ``kept``: those there are."""
    sets = sorted({of for _, of in kept})
    what = f"no samples of {name or 'an evaluation'}{'' if version is None else f' at version {version}'}"
    if not sets:
        cause = "no evaluation has been scored yet"
        fix = "evaluate at intervals (learner.evaluation.every_steps) or with `rollcast eval`, or pass --set training"
    elif name and name not in sets:
        cause = f"there are samples of {', '.join(sets)}, and rollouts of training"
        fix = f"pass --set with one of them: {', '.join((*sets, TRAINING))}"
    else:
        versions = sorted({number for number, of in kept if name in ("", of)})
        cause = f"the versions with samples are {', '.join(map(str, versions[-_VERSIONS_NAMED:]))}"
        fix = "pass --version with one of them, or leave it out for the newest"
    return RunFolderError(f"{what} in {folder.root}", cause=cause, fix=fix)


def _read(path: Path, name: str) -> Iterator[Sample]:
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                if line.endswith(b"\n"):  # otherwise a process was killed while it wrote
                    yield Sample(**json.loads(line))
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"cannot read the samples in {path}", cause=str(error)) from None


def newest_completions(folder: RunFolder, tokenizer: TextTokenizer, limit: int) -> list[tuple[Problem, str]]:
    """Return the newest completions of the ledger, scored or not, with their problems.

    Raises:
        StoreError: the ledger cannot be read.
    """
    with reading(folder) as connection:
        rows = connection.execute(
            "SELECT problem, body FROM rollouts JOIN attempts USING (lease_id, sample_index)"
            " JOIN groups USING (group_id) ORDER BY rollout_id DESC LIMIT ?",
            (limit,),
        ).fetchall()
    return [(Problem.from_json(problem), _text_of(body, tokenizer)) for problem, body in rows]


def _text_of(body: bytes, tokenizer: TextTokenizer) -> str:
    return tokenizer.decode(
        [token for segment in pb.Rollout.FromString(body).segments for token in unpack_ids(segment.packed_ids)]
    )
