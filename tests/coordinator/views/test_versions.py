from __future__ import annotations

from coordinator.views.versions import VERSIONS_SHOWN, VersionHistory, VersionView
from tests.coordinator.core_world import announced, heartbeat, held
from tests.coordinator.views.viewed import world


def test_each_version_has_its_time_and_what_happened_until_the_next() -> None:
    run, history = world("a", "b"), VersionHistory()
    state = run.core.state
    history.observe(state)
    run.now += 3.0
    run.tell(announced(1))
    history.observe(state)
    run.tell(held("a", 1))
    run.tell(heartbeat("a", delta_bytes_saved=500, reparentings=1))
    history.observe(state)
    assert history.view()[-1] == VersionView(1, None, 500, 1)
    run.now += 4.0
    run.tell(held("b", 1))
    run.tell(announced(2))
    history.observe(state)
    run.tell(heartbeat("a", delta_bytes_saved=700, reparentings=1))
    history.observe(state)
    assert history.view()[-2:] == (VersionView(1, 4.0, 500, 1), VersionView(2, None, 200, 0))


def test_only_the_newest_are_kept() -> None:
    run, history = world("a"), VersionHistory()
    for version in range(1, VERSIONS_SHOWN + 10):
        run.tell(announced(version))
        history.observe(run.core.state)
    view = history.view()
    assert (len(view), view[-1].version) == (VERSIONS_SHOWN, VERSIONS_SHOWN + 9)
