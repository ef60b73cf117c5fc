"""Serve a cell's uplink: take the head's leases and verdicts, return stored rollouts and what the fleet can do."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from coordinator.core.events.cell_events import LentKey, MembersConvicted, SlotsOver
from coordinator.core.events.events import SlotsLent
from coordinator.core.lent.lent import Lent, prompts_of
from coordinator.ledger.store import BatchEntry
from coordinator.rpc.sanitise import counter, text
from coordinator.shell.shell import Shell
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.ids import LeaseId, PeerId, RolloutId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import lease_from_pb

WAIT_S_MAX = 30.0
ROLLOUTS_MAX = 256  # returned by one call
BODIES_BYTES_MAX = 8 << 20  # of one answer; its last rollout may exceed it


class CellCalls:
    """Handles the method Cell; RoleGate has checked the caller's role."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def Cell(self, report: pb.CellReport, _context: Any) -> pb.CellAnswer:
        """Apply a report of the uplink, and answer at once, or as soon as there is a rollout."""
        if not self._shell.core.settings.is_cell:
            raise MalformedMessage("this coordinator serves no cell", fix="set cell.invite_file in its configuration")
        self._apply(report)
        chosen = await self._undelivered(min(report.rollouts_max, ROLLOUTS_MAX), report.wait_s)
        answer = self._facts()
        if not report.rollouts_max:
            answer.leases.extend(self._shell.core.state.lent.leases())
        lent = {rollout_id: slot for slot, rollout_id in chosen}
        size_bytes = 0
        for entry in await self._shell.batches.read_rollouts(list(lent)) if lent else []:
            answer.rollouts.append(_at_head(entry, lent[entry.rollout_id]))
            size_bytes += answer.rollouts[-1].ByteSize()
            if size_bytes >= BODIES_BYTES_MAX:
                break
        return answer

    def _apply(self, report: pb.CellReport) -> None:
        leases = [lease_from_pb(one) for one in report.leases]
        if leases:
            self._shell.apply(SlotsLent(tuple(prompt for one in leases for prompt in prompts_of(one))))
        if report.over:
            self._shell.apply(_over(report.over))
        if report.convicted:
            named = {PeerId(text(one.peer_id, limits.PEER_ID_LENGTH_MAX)): text(one.reason) for one in report.convicted}
            self._shell.apply(MembersConvicted(named))

    async def _undelivered(self, count: int, wait_s: float) -> list[tuple[Lent, RolloutId]]:
        if not count:
            return []
        self._shell.deliveries.clear()
        if not self._shell.core.undelivered():
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(wait_s, WAIT_S_MAX))):
                    await self._shell.deliveries.wait()
        return self._shell.core.undelivered()[:count]

    def _facts(self) -> pb.CellAnswer:
        facts = self._shell.core.cell()
        return pb.CellAnswer(
            workers=facts.workers,
            slots=facts.slots,
            slots_wanted=facts.slots_wanted,
            has_version=facts.version is not None,
            version=facts.version or 0,
            epoch=facts.epoch,
            slots_lent=facts.slots_lent,
            tokens_generated=facts.tokens_generated,
            tokens_per_second=facts.tokens_per_s,
        )


def _over(slots: Iterable[pb.SlotOver]) -> SlotsOver:
    reasons: defaultdict[str, list[LentKey]] = defaultdict(list)
    leases: defaultdict[str, list[LeaseId]] = defaultdict(list)
    for slot in slots:
        lease_id, reason = LeaseId(counter(slot.lease_id)), text(slot.reason)
        if slot.whole_lease:
            leases[reason].append(lease_id)
        else:
            reasons[reason].append((lease_id, slot.sample_index))
    return SlotsOver(
        {reason: tuple(keys) for reason, keys in reasons.items()},
        {reason: tuple(ended) for reason, ended in leases.items()},
    )


def _at_head(entry: BatchEntry, lent: Lent) -> pb.Rollout:
    """Return a member's rollout as the head expects it: under its own lease."""
    rollout = pb.Rollout()
    rollout.CopyFrom(entry.rollout)
    rollout.lease_id, rollout.fencing_token = lent.lease_id, lent.fencing_token
    rollout.group_id, rollout.sample_index = lent.group_id, lent.sample_index
    return rollout
