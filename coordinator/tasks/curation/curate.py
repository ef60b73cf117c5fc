"""Pass over a source once: each row is kept, or removed for a counted reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from coordinator.tasks.curation.contamination import EvaluationTexts
from coordinator.tasks.curation.duplicates import ExactDuplicates, NearDuplicates
from coordinator.tasks.curation.ngrams import words_of
from coordinator.tasks.curation.normalise import normalise_answer
from coordinator.tasks.curation.pass_rates import PassRate, key_of
from coordinator.tasks.fields import Row
from rollcast.wire.text.data_files import BadRow

Reason = Literal[
    "malformed",  # no prompt or answer, or too long
    "exact_duplicate",  # the same words and the same answer as an earlier row
    "contradiction",  # the same words as an earlier row, with another answer
    "near_duplicate",  # almost the same words as an earlier row
    "contaminated",  # overlaps with a problem of an evaluation set
    "does_not_fit",  # the profiled policy cannot read it: too long, or characters that its tokenizer lacks
    "no_pass_rate",  # no recorded completions, so the rate at which it is solved is unknown
    "too_hard",  # solved less often than pass_rate_low
    "too_easy",  # solved more often than pass_rate_high
]
REASONS: tuple[Reason, ...] = get_args(Reason)
CHUNK_ROWS = 64  # profiled at a time
PROGRESS_ROWS = 256

#: Returns pass rates of some rows; None for a row that does not fit the policy.
Profile = Callable[[Sequence[Row]], Sequence[PassRate | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationSettings:
    """Settings that decide which rows are removed; shares from 0 to 1."""

    normalise: bool = True
    near_similarity: float = 0.8  # above 1: near duplicates are kept
    overlap: float = 0.5
    pass_rate_low: float = 0.0
    pass_rate_high: float = 1.0
    keep_unknown: bool = False  # rows without a pass rate


@dataclass(slots=True)
class Report:
    """Counts of the pass: read = kept + the sum of removed."""

    read: int = 0
    kept: int = 0
    normalised: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)
    contaminated_by: Counter[str] = field(default_factory=Counter)
    pass_rates: list[int] = field(default_factory=lambda: [0] * 11)  # kept and removed rows by tenths of their rate

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values, with every reason, also those with count 0."""
        return {
            "read": self.read,
            "kept": self.kept,
            "removed": {reason: self.removed[reason] for reason in REASONS},
            "normalised": dict(sorted(self.normalised.items())),
            "contaminated_by": dict(sorted(self.contaminated_by.items())),
            "pass_rate_tenths": self.pass_rates,
        }


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed row; ``detail`` explains the reason further."""

    reason: Reason
    detail: str
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    row: Row
    pass_rate: PassRate | None = None


class Curation:
    """One pass over a source.

    Args:
        evaluation: problems that must not be trained on; None: contamination is not checked.
        profile: returns pass rates, in chunks of CHUNK_ROWS; None: rows are kept whatever their pass rate.
        on_removed, on_progress: called at every removal, and every PROGRESS_ROWS rows.
    """

    def __init__(
        self,
        settings: CurationSettings,
        *,
        evaluation: EvaluationTexts | None = None,
        profile: Profile | None = None,
        on_removed: Callable[[Removed], None] = lambda removed: None,
        on_progress: Callable[[Report], None] = lambda report: None,
    ) -> None:
        self.report = Report()
        self._settings = settings
        self._evaluation = evaluation
        self._profile = profile
        self._on_removed = on_removed
        self._on_progress = on_progress
        self._exact = ExactDuplicates()
        self._near = NearDuplicates(settings.near_similarity) if settings.near_similarity <= 1.0 else None

    def run(self, rows: Iterable[Row | BadRow]) -> Iterator[Kept]:
        """Yield the kept rows in their order."""
        chunk: list[Row] = []
        for row in rows:
            self.report.read += 1
            if self.report.read % PROGRESS_ROWS == 0:
                self._on_progress(self.report)
            clean = self._checked(row)
            if isinstance(clean, Removed):
                self._remove(clean)
                continue
            if self._profile is None:
                yield self._keep(Kept(clean))
                continue
            chunk.append(clean)
            if len(chunk) == CHUNK_ROWS:
                yield from self._in_band(chunk)
                chunk = []
        if chunk:
            yield from self._in_band(chunk)
        self._on_progress(self.report)

    def _keep(self, kept: Kept) -> Kept:
        self.report.kept += 1
        return kept

    def _checked(self, row: Row | BadRow) -> Row | Removed:
        """Return the row with its answer normalised, or why it is removed."""
        if isinstance(row, BadRow):
            return Removed("malformed", f"{row} ({row.cause})" if row.cause else str(row))
        if self._settings.normalise and row.answer:
            answer, done = normalise_answer(row.answer)
            self.report.normalised.update(done)
            row = replace(row, answer=answer)
        words = words_of(row.prompt)
        if repeated := self._exact.find_or_add(words, row.answer):
            return Removed(repeated, "", row.prompt)
        if self._near is not None and (similarity := self._near.similar(words)):
            return Removed("near_duplicate", f"similarity {similarity:.2f}", row.prompt)
        overlap = None if self._evaluation is None else self._evaluation.overlap(words)
        if overlap is not None and overlap.share >= self._settings.overlap:
            self.report.contaminated_by[overlap.set] += 1
            detail = f"{overlap.share:.0%} of {overlap.set}: {overlap.problem}"
            return Removed("contaminated", detail, row.prompt)
        return row

    def _in_band(self, chunk: Sequence[Row]) -> Iterator[Kept]:
        assert self._profile is not None
        settings = self._settings
        for row, rate in zip(chunk, self._profile(chunk), strict=True):
            if rate is None:
                self._remove(Removed("does_not_fit", "", row.prompt))
            elif not rate.samples:
                if settings.keep_unknown:
                    yield self._keep(Kept(row))
                else:
                    self._remove(Removed("no_pass_rate", "", row.prompt))
            else:
                self.report.pass_rates[min(10, int(rate.share * 10))] += 1
                if settings.pass_rate_low <= rate.share <= settings.pass_rate_high:
                    yield self._keep(Kept(row, rate))
                else:
                    reason: Reason = "too_hard" if rate.share < settings.pass_rate_low else "too_easy"
                    self._remove(Removed(reason, f"{rate.right:g} of {rate.samples}", row.prompt))

    def _remove(self, removed: Removed) -> None:
        self.report.removed[removed.reason] += 1
        self._on_removed(removed)


def recorded(rates: dict[int, PassRate]) -> Profile:
    """Return a profile from recorded pass rates by key; rows without one have no samples."""
    none = PassRate(0, 0.0)
    return lambda rows: [rates.get(key_of(row.prompt), none) for row in rows]
