"""Test that a lease of kind evaluation is generated with the version that it names, and with no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.worker.core.core import WorkerCore
from peer.worker.core.events import (
    Action,
    ActivateVersion,
    ContinueBatch,
    LeasesGranted,
    LeasesRevoked,
    LoadVersion,
    ReturnLeases,
    SendPartials,
    SessionOpened,
    StopRequested,
    Tick,
    UploadRollouts,
    VersionLoaded,
    VersionVerified,
)
from rollcast.wire.ids import LeaseId
from rollcast.wire.rollouts import LeaseGrant
from rollcast.wire.version_swap import AT_VERSION_SWAP, AtVersionSwap
from tests.peer.worker.core.worker_samples import begun, finished, grant, key, put_version, ready_core, work


def evaluation(lease_id: int, slots: int = 2, version: int = 0, deadline_s: float = 30.0) -> LeaseGrant:
    return grant(lease_id, slots, oldest_useful=version, kind="evaluation", deadline_s=deadline_s)


def of_type(actions: list[Action], kind: type) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


def load(core: WorkerCore, version: int, now: float) -> list[Action]:
    return core.handle(VersionVerified(key(version)), now) + core.handle(VersionLoaded(key(version)), now)


@pytest.mark.parametrize("at_swap", AT_VERSION_SWAP)
def test_a_newer_version_waits_until_the_evaluation_is_done(at_swap: AtVersionSwap) -> None:
    core = ready_core(SessionOpened(at_version_swap=at_swap))
    measured = evaluation(1, 4)
    core.handle(LeasesGranted((measured,)), 1.0)
    assert not of_type(load(core, 1, 1.1), ActivateVersion)
    assert not of_type(core.handle(begun(1, work(measured)), 1.5), ActivateVersion)
    assert of_type(core.handle(finished(1, work(measured)), 2.0), ActivateVersion) == [ActivateVersion(key(1))]


def test_a_version_stays_for_the_next_turn_until_the_evaluation_is_over_or_it_takes_too_long() -> None:
    def after_a_turn() -> WorkerCore:
        core, measured = ready_core(), replace(evaluation(1, 4), keep_version_s=10.0)
        core.handle(LeasesGranted((measured,)), 1.0)
        load(core, 1, 1.1)
        core.handle(begun(1, work(measured)), 1.5)
        assert not of_type(core.handle(finished(1, work(measured)), 2.0), ActivateVersion)
        return core

    core = after_a_turn()
    assert not of_type(core.handle(LeasesRevoked((LeaseId(9),), "another one"), 3.0), ActivateVersion)
    assert of_type(core.handle(LeasesRevoked((LeaseId(1),), "evaluation_over"), 3.0), ActivateVersion)
    core = after_a_turn()
    assert core.next_wake_s() == 12.0
    assert of_type(core.handle(Tick(), 12.0), ActivateVersion) == [ActivateVersion(key(1))]


def test_the_batch_is_refilled_while_a_version_waits_for_an_evaluation() -> None:
    core = ready_core()
    first, training, second = evaluation(1, 4), grant(2, 2), evaluation(3, 2)
    core.handle(LeasesGranted((first, training, second)), 1.0)
    load(core, 1, 1.1)
    (more,) = of_type(core.handle(finished(1, work(first)[:3]), 2.0), ContinueBatch)
    assert isinstance(more, ContinueBatch)
    assert more.more == work(training, second)[:3]


def test_a_version_that_is_to_be_evaluated_is_not_passed_over() -> None:
    core = ready_core()
    core.handle(LeasesGranted((grant(1, 4), evaluation(2, 2, version=1))), 1.0)
    load(core, 1, 1.1)
    assert not of_type(core.handle(VersionVerified(key(2)), 1.2), LoadVersion)  # it would replace version 1
    assert of_type(core.handle(finished(1, work(grant(1, 4))), 2.0), ActivateVersion) == [ActivateVersion(key(1))]


def test_a_lease_that_comes_too_late_is_returned() -> None:
    core = ready_core()
    put_version(core, 2, 1.0)
    (returned, *_) = core.handle(LeasesGranted((evaluation(1, 2, version=1),)), 1.1)
    assert returned == ReturnLeases((LeaseId(1),), "they evaluate a version that is not active any more")


@pytest.mark.parametrize("revoked", [False, True])
def test_an_evaluation_that_is_over_lets_the_newer_version_in(revoked: bool) -> None:
    core = ready_core()
    measured = evaluation(1, 4, deadline_s=5.0)
    core.handle(LeasesGranted((measured,)), 1.0)
    load(core, 1, 1.1)
    if revoked:
        core.handle(LeasesRevoked((measured.lease_id,), "lease_expired"), 2.0)
        actions = core.handle(begun(1, work(measured)), 2.1)
    else:
        actions = core.handle(Tick(), 11.0) + core.handle(begun(1, work(measured)), 11.1)
    assert of_type(actions, ActivateVersion) == [ActivateVersion(key(1))]


def test_no_part_of_an_evaluation_is_sent_before_its_end() -> None:
    core = ready_core(SessionOpened(partial_interval_s=0.1))
    measured, training = evaluation(1, 2), grant(2, 2)
    core.handle(LeasesGranted((measured, training)), 1.0)
    (partials,) = of_type(core.handle(begun(1, work(measured, training)), 2.0), SendPartials)
    assert isinstance(partials, SendPartials)
    assert {one.lease_id for one in partials.partials} == {training.lease_id}
    core.handle(StopRequested("SIGTERM"), 2.1)
    actions = core.handle(begun(1, work(measured, training)), 2.2)
    (upload,) = of_type(actions, UploadRollouts)
    assert isinstance(upload, UploadRollouts)
    assert {one.lease_id for one in upload.rollouts} == {training.lease_id}
    assert of_type(actions, ReturnLeases) == [ReturnLeases((measured.lease_id,), "stopping: SIGTERM")]
