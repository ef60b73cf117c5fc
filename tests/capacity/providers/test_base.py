"""Tags are taken apart as they were put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.providers.base import RUN_ID, WORKER_ID, WorkerTag


@given(st.from_regex(RUN_ID, fullmatch=True), st.from_regex(WORKER_ID, fullmatch=True), st.integers(1, 999_999))
def test_a_tag_survives_being_written(run_id: str, worker_id: str, incarnation: int) -> None:
    if run_id.isascii() and worker_id.isascii():
        tag = WorkerTag(run_id, worker_id, incarnation)
        assert WorkerTag.parse(str(tag)) == tag


@pytest.mark.parametrize("text", ["", "run", "run.w", "run.w.0", "run.w.01", "run.W.1", "run.-w.1", ".w.1", "r/n.w.1"])
def test_other_texts_are_no_tags(text: str) -> None:
    with pytest.raises(ValueError, match=r"tag|incarnation"):
        WorkerTag.parse(text)
