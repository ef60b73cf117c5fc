from __future__ import annotations

import pytest

from peer.donor.report import newer_release


@pytest.mark.parametrize(
    ("theirs", "newer"),
    [
        ("rollcast 0.1.0", ""),
        ("rollcast 0.1.1 (commit 1a2b3c4)", "0.1.1"),
        ("rollcast 0.2.0rc1", "0.2.0"),
        ("rollcast 0.10.0", "0.10.0"),
        ("rollcast 1.0.0", "1.0.0"),
        ("rollcast 0.0.9", ""),
        ("", ""),
        ("another 9.9.9", ""),
        ("rollcast 9.9.9999999", ""),
        ("rollcast 9.9", ""),
    ],
)
def test_only_a_later_release_is_news(theirs: str, newer: str) -> None:
    found = newer_release("rollcast 0.1.0 (commit 89abcde)", theirs)
    assert ("" if found is None else found.theirs) == newer
    if found is not None:
        assert found.to_json()["ours"] == "0.1.0"
        assert "rollcast peer finish" in found.how


def test_software_that_does_not_say_has_no_news() -> None:
    assert newer_release("unknown", "rollcast 9.0.0") is None
