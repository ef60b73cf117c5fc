"""Simulate a cell: a coordinator with the real core and a store of its own, and the uplink between it and the head.

The workers of a cell are PeerNodes whose coordinator is the cell's. Versions reach them at the time of the fluid bound,
from the uplink, which stands for the cell's origin as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, assert_never

from coordinator.core.cell import CellFacts
from coordinator.core.decisions.settings import CoreSettings
from coordinator.core.events import actions as act
from coordinator.core.events import events as ev
from coordinator.core.events.cell_events import LentKey, SlotsOver
from coordinator.core.events.events import PeerFacts
from coordinator.core.lent.lent import prompts_of
from peer.worker.core.events import (
    LeasesGranted,
    LeasesRevoked,
    ReportVersionHeld,
    RequestWork,
    ReturnLeases,
    SessionLost,
    SessionOpened,
    Tick,
    Verdict,
)
from peer.worker.core.spool import BUSY
from rollcast.cell.core import CellAnswered, CellSize, Delivered, Event, Report, UplinkCore
from rollcast.runtime.waits import backoff_delays_s
from rollcast.sim.kernel.disk import Disk
from rollcast.sim.kernel.network import Line
from rollcast.sim.kernel.process import Process
from rollcast.sim.kernel.rpc import Call, Failed, Reply
from rollcast.sim.nodes.control_link import Addresses, ControlLink
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.nodes.peer import Receiver
from rollcast.sim.world import Ground
from rollcast.wire.ids import PeerId, Step
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Rollout
from rollcast.wire.versions.records import VerifiedVersion

CALL_TIMEOUT_S = 10.0
RETRY_S = 0.5  # until a call that failed is repeated, or a cell without a rollout is asked again
DELIVERED_AT_ONCE = 64

Over = tuple[tuple[str, LentKey], ...]  # the reason, and the slot


class CellCoordinatorNode(CoordinatorNode):
    """The coordinator of one cell.

    Args:
        ground: the world with a judge of this cell's own.
    """

    def __init__(self, ground: Ground, name: str) -> None:
        super().__init__(ground, name=name)

    def _core_settings(self) -> CoreSettings:
        settings = super()._core_settings()
        return replace(
            settings,
            is_cell=True,
            steps=1 << 40,
            pacing="none",
            groups_per_step=settings.groups_per_step * settings.samples_per_group,
            samples_per_group=1,
            no_peer_timeout_s=math.inf,
        )

    def _restore_prompts(self) -> None:
        """Nothing: the prompts are the head's."""

    def _deliver(self, action: act.DeliverRollout) -> None:
        """Nothing: the uplink asks again and again."""

    def report(self, report: Report, reply: Reply) -> None:
        """Receive a report of the uplink; see coordinator/rpc/cell.py."""
        if self.core is None:
            reply.send(Failed("not listening yet"))
            return
        if report.leases:
            self.apply(ev.SlotsLent(tuple(prompt for one in report.leases for prompt in prompts_of(one))))
        if report.ended:
            self.apply(SlotsOver({}, {reason: (lease_id,) for lease_id, reason in report.ended}))
        reply.send(Failed("the process ended") if self.core is None else answer_of(self.core.cell(), self._leases()))

    def deliver(self, over: Over, reply: Reply) -> None:
        """Let go of slots, and answer with stored rollouts as the head expects them."""
        if self.core is None:
            reply.send(Failed("not listening yet"))
            return
        if over:
            self.apply(SlotsOver({reason: tuple(key for said, key in over if said == reason) for reason, _ in over}))
        reply.send(self._undelivered())

    def _undelivered(self) -> list[Rollout] | Failed:
        if self.core is None:
            return Failed("the process ended")
        found: list[Rollout] = []
        for lent, rollout_id in self.core.undelivered()[:DELIVERED_AT_ONCE]:
            rollout = replace(self.tables.stored_rollout(rollout_id), body=b"", group_id=lent.group_id)
            rollout = replace(rollout, lease_id=lent.lease_id, fencing_token=lent.fencing_token)
            found.append(replace(rollout, sample_index=lent.sample_index))
        return found

    def _leases(self) -> Iterable[int]:
        return [] if self.core is None else self.core.state.lent.leases()


def answer_of(facts: CellFacts, leases: Iterable[int]) -> pb.CellAnswer:
    """Return a cell's answer to a report."""
    return pb.CellAnswer(
        workers=facts.workers,
        slots=facts.slots,
        slots_wanted=facts.slots_wanted,
        slots_lent=facts.slots_lent,
        has_version=facts.version is not None,
        version=facts.version or 0,
        epoch=facts.epoch,
        leases=leases,
    )


class UplinkNode(Process):
    """The process of a cell's uplink: the real core, a session with the head, and calls of the cell's coordinator."""

    def __init__(
        self, ground: Ground, coordinators: Sequence[CoordinatorNode], cell: CellCoordinatorNode, name: str, line: Line
    ) -> None:
        super().__init__(name, ground.agenda)
        self.ground = ground
        self.cell = cell
        self.peer_id = PeerId(name)
        self.line = line
        self.disk = Disk(ground.chance.of(f"disk of {name}"))
        self.receiver: Receiver | None = None
        self.core: UplinkCore | None = None
        self.link: ControlLink | None = None
        self._addresses = Addresses(coordinators)
        self._random: Random = ground.chance.of(f"uplink {name}")
        self._newest: VerifiedVersion | None = None
        self._is_publishing = False
        self._delays_s = self._new_delays_s()

    # ---------------------------------------------------------------- lives

    def _begin(self) -> None:
        self.core, self.link, self._newest, self._is_publishing = UplinkCore(), None, None, False
        if self.receiver is not None:
            self.receiver.begin()
        self.later(self.ground.settings.boot_s, self._learn)

    def _killed(self) -> None:
        self.core = None
        if self.receiver is not None:
            self.receiver.killed()
        if self.link is not None:
            self.link.close("the connection was closed")

    def _learn(self) -> None:
        """Ask the cell what it has, then connect to the head, as rollcast/cell/service.py does."""

        def answered(outcome: Any) -> None:
            if isinstance(outcome, Failed):
                self.later(RETRY_S, self._learn)
                return
            self.apply(CellAnswered(outcome))
            self._ask_for_rollouts(())
            self._connect()
            self._tick()

        self._ask(self.cell.report, Report(), answered)

    def _connect(self) -> None:
        callbacks = (self._received, self._opened, lambda reason: self.apply(SessionLost(reason)))
        self.link = ControlLink(
            self.ground, self, self._addresses, self._joined, self._heartbeat, *callbacks, self._random
        )
        self.link.dial()

    def _tick(self) -> None:
        self.apply(Tick())
        self.later(RETRY_S, self._tick)

    # ---------------------------------------------------------------- the head

    def _joined(self) -> ev.PeerJoined:
        held = () if self.core is None else tuple(self.core.held_leases)
        named = (self.peer_id, "peer", self.name, f"{self.name}:1", 0, "simulated")
        return ev.PeerJoined(*named, held_leases=held, host=self.name, is_cell=True)

    def _opened(self, held_batches: float) -> None:
        self.apply(SessionOpened(held_batches))

    def _heartbeat(self) -> ev.HeartbeatReceived:
        size = CellSize() if self.core is None else self.core.size
        counts = (0, 0, 0, 0, 0, None, 0, 0, 0.0)
        facts = PeerFacts("generating", "", None, *counts, cell_workers=size.workers, cell_slots=size.slots)
        return ev.HeartbeatReceived(self.peer_id, facts)

    def _received(self, kind: str, content: Any) -> None:
        match kind:
            case "leases":
                self.apply(LeasesGranted(content))
            case "revoke":
                self.apply(LeasesRevoked(content.lease_ids, content.reason))
            case "announcement":
                if self.receiver is not None:
                    self.receiver.announced(content)
            case "stop":
                self._stop(content)
            case _:  # plans, probes and standby: versions come by the fluid bound, and every cell stays on
                pass

    def _stop(self, reason: str) -> None:
        """End the cell's run with the head's, then this process."""
        self.cell.apply(ev.RunEnded(reason, True))
        if self.link is not None:
            self.link.close(reason, finished=True)
        self.kill()

    def verified(self, verified: VerifiedVersion) -> None:
        """Publish a version that has been received in the cell, unless a newer one has been."""
        if self._newest is None or verified.version > self._newest.version:
            self._newest = verified
            if not self._is_publishing:
                self._is_publishing = True
                self._publish(verified)

    def _publish(self, verified: VerifiedVersion) -> None:
        def published(outcome: Any) -> None:
            newest = self._newest
            if isinstance(outcome, Failed):
                self.later(RETRY_S, self._publish, newest)
            elif newest is not None and newest.version > verified.version:
                self._publish(newest)
            else:
                self._is_publishing = False

        def in_epoch(outcome: Any) -> None:
            if isinstance(outcome, Failed) or outcome[0] < verified.record.epoch:
                self._open_epoch(verified, outcome, in_epoch)
            else:
                self._ask(self.cell.announce, verified, published)

        self._ask(self.cell.epoch_now, None, in_epoch)

    def _open_epoch(self, verified: VerifiedVersion, outcome: Any, then: Callable[[Any], None]) -> None:
        if isinstance(outcome, Failed):
            self.later(RETRY_S, self._publish, verified)
            return
        request = (Step(verified.version), None)
        self._ask(self.cell.open_epoch, request, lambda _: self._ask(self.cell.epoch_now, None, then))

    # ---------------------------------------------------------------- the core

    def apply(self, event: Event) -> None:
        """Pass an event to the core and carry out its actions, as rollcast/cell/uplink.py does."""
        if self.core is None:
            return
        for action in self.core.handle(event, self.agenda.now):
            match action:
                case RequestWork():
                    self._say(ev.WorkRequested(self.peer_id, action.free_slots))
                case ReportVersionHeld(key):
                    self._say(ev.VersionHeld(self.peer_id, key.epoch, key.version))
                case ReturnLeases():
                    self._say(ev.LeasesReturned(self.peer_id, action.lease_ids, action.reason))
                case Report():
                    self._report(action)
                case _:
                    assert_never(action)

    def _report(self, report: Report) -> None:
        def answered(outcome: Any) -> None:
            if isinstance(outcome, Failed):
                self.later(RETRY_S, self._report, report)
            else:
                self.apply(CellAnswered(outcome))

        self._ask(self.cell.report, report, answered)

    def _ask_for_rollouts(self, over: Over) -> None:
        def answered(outcome: Any) -> None:
            if isinstance(outcome, Failed):
                self.later(RETRY_S, self._ask_for_rollouts, over)
            elif outcome:
                self._upload(tuple(outcome))
            else:
                self.later(RETRY_S, self._ask_for_rollouts, ())

        self._ask(self.cell.deliver, over, answered)

    def _upload(self, rollouts: tuple[Rollout, ...]) -> None:
        head = self._addresses.current

        def answered(outcome: Any) -> None:
            if isinstance(outcome, Failed):
                self.later(next(self._delays_s), self._ask_for_rollouts, ())
                return
            self._delays_s = self._new_delays_s()
            final = [one for one in outcome if one.reason != BUSY]
            verdicts = [Verdict(one.lease_id, one.sample_index, one.accepted, one.reason) for one in final]
            self.apply(Delivered(tuple(verdicts)))
            over = tuple((one.reason, (one.lease_id, one.sample_index)) for one in final)  # accepted: no reason
            self.later(0.0 if final else RETRY_S, self._ask_for_rollouts, over)

        size_bytes = self.ground.settings.rollout_bytes * len(rollouts)
        Call(self.ground.network, self, head, head.upload, (self.peer_id, rollouts)).begin(
            answered, CALL_TIMEOUT_S * 2.0, size_bytes
        )

    def _new_delays_s(self) -> Iterator[float]:
        return backoff_delays_s(self._random, first_s=0.2, most_s=5.0)

    def _say(self, message: Any) -> None:
        if self.link is not None:
            self.link.send(message)

    def _ask(self, handler: Any, request: Any, on_outcome: Any) -> None:
        Call(self.ground.network, self, self.cell, handler, request).begin(on_outcome, CALL_TIMEOUT_S)
