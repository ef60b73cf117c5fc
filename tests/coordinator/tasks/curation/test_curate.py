from __future__ import annotations

from collections.abc import Sequence

from coordinator.tasks.curation.contamination import EvaluationTexts
from coordinator.tasks.curation.curate import CHUNK_ROWS, Curation, CurationSettings, Kept, Removed, recorded
from coordinator.tasks.curation.pass_rates import PassRate, key_of
from coordinator.tasks.fields import BadRow, Row

LONG = "Tom has {} apples and gives a third of them to his sister who eats two of them at once before lunch today"


def test_every_row_is_kept_or_counted_under_one_reason() -> None:
    rows: list[Row | BadRow] = [
        Row("1+1?", "$2$"),
        Row("1 + 1", "2"),
        Row("1+1?", "3"),
        BadRow("here, line 4", "'answer' is missing", "it has prompt"),
        Row(LONG.format(12), "4"),
        Row(LONG.format(12) + " again", "4"),
        Row("The secret problem of the test set", "5"),
        Row("2+2?", "4"),
    ]
    removed: list[Removed] = []
    evaluation = EvaluationTexts([("test", ["the secret problem of the test set"])], 8)
    curation = Curation(CurationSettings(), evaluation=evaluation, on_removed=removed.append)
    assert [kept.row for kept in curation.run(rows)] == [Row("1+1?", "2"), rows[4], rows[7]]
    report = curation.report.to_json()
    assert (report["read"], report["kept"], sum(report["removed"].values())) == (8, 3, 5)
    assert [one.reason for one in removed] == [
        "exact_duplicate",
        "contradiction",
        "malformed",
        "near_duplicate",
        "contaminated",
    ]
    assert removed[2].detail == "here, line 4: 'answer' is missing (it has prompt)"
    assert removed[4].detail == "100% of test: the secret problem of the test set"
    assert report["contaminated_by"] == {"test": 1}
    assert report["normalised"] == {"marks": 1}


def test_a_band_of_difficulty() -> None:
    rows = [Row(f"{n}+{n}?", str(2 * n)) for n in range(6)]
    rates = {key_of(f"{n}+{n}?"): PassRate(8, 2.0 * n) for n in range(5)}
    settings = CurationSettings(pass_rate_low=0.2, pass_rate_high=0.8)
    curation = Curation(settings, profile=recorded(rates))
    assert list(curation.run(rows)) == [Kept(rows[n], PassRate(8, 2.0 * n)) for n in (1, 2, 3)]
    removed = curation.report.to_json()["removed"]
    assert (removed["too_hard"], removed["too_easy"], removed["no_pass_rate"]) == (1, 1, 1)
    assert curation.report.pass_rates == [1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1]
    known_or_not = Curation(CurationSettings(keep_unknown=True), profile=recorded(rates))
    assert len(list(known_or_not.run(rows))) == 6


def test_rows_are_profiled_in_chunks_and_some_do_not_fit() -> None:
    sizes: list[int] = []

    def profile(rows: Sequence[Row]) -> list[PassRate | None]:
        sizes.append(len(rows))
        return [None if row.prompt.endswith("7?") else PassRate(2, 1.0) for row in rows]

    curation = Curation(CurationSettings(), profile=profile)
    kept = list(curation.run(Row(f"number {n}?", "1") for n in range(100)))
    assert sizes == [CHUNK_ROWS, 100 - CHUNK_ROWS]
    assert (len(kept), curation.report.removed["does_not_fit"]) == (90, 10)


def test_what_is_switched_off_removes_nothing() -> None:
    rows = [Row(LONG.format(12), "$4$"), Row(LONG.format(12) + " again", "4")]
    settings = CurationSettings(near_similarity=1.1, normalise=False)
    assert [kept.row for kept in Curation(settings).run(rows)] == rows
