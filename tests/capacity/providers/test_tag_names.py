"""Test that a name of a cluster or Job stands for one tag of one run."""

from __future__ import annotations

from capacity.providers.base import INCARNATIONS_MAX, WorkerTag
from capacity.providers.tag_names import name_of, tag_of


def test_a_name_stands_for_one_tag_of_one_run() -> None:
    tag = WorkerTag("My.Run", "a100-2", 13)
    name = name_of(tag)
    assert name.endswith("-a100-2-13")
    assert tag_of(name, "My.Run") == tag
    assert tag_of(name, "my.run") is None
    assert tag_of("rc-other", "My.Run") is None


def test_the_longest_name_leaves_room_for_what_kubernetes_appends() -> None:
    assert len(name_of(WorkerTag("r" * 64, "w" * 32, INCARNATIONS_MAX))) <= 57
