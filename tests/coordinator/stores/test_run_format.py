"""Test which formats of stores are continued, and what a refusal says."""

from __future__ import annotations

import pytest

from coordinator.stores.run_format import check_format
from rollcast.runtime.errors import RunFormatError


@pytest.mark.parametrize("found", [0, 3, 4, 5])
def test_empty_and_known_formats_are_continued(found: int) -> None:
    check_format("the ledger", found, 3, 5, elsewhere="another run_folder")


@pytest.mark.parametrize(
    ("found", "oldest", "words"),
    [
        (2, 3, ("an earlier Rollcast", "it has format 2", "continues formats 3 to 5", "that wrote it")),
        (1, 5, ("an earlier Rollcast", "it has format 1", "continues format 5", "that wrote it")),
        (6, 3, ("a newer Rollcast", "it has format 6", "continues formats 3 to 5", "upgrade this installation")),
    ],
)
def test_refusal_names_what_was_found_what_is_known_and_a_way_out(
    found: int, oldest: int, words: tuple[str, ...]
) -> None:
    with pytest.raises(RunFormatError) as refused:
        check_format("the ledger", found, oldest, 5, elsewhere="another run_folder")
    message = f"{refused.value}"
    assert refused.value.code == "RC406"
    assert [one for one in (*words, "begin a new run with another run_folder") if one not in message] == []
