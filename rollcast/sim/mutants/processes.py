"""Define the bugs to plant into peers, relays and the learner."""

from __future__ import annotations

from typing import Any

from peer.worker.core.core import WorkerCore
from peer.worker.core.version_swap import VersionSwap
from rollcast.sim.kernel.process import Script
from rollcast.sim.mutants.planting import Mutant, Patch, always, plain
from rollcast.sim.nodes import relay
from rollcast.sim.nodes.learner import LearnerNode
from rollcast.sim.nodes.relay_disk import Kept, RelayDisk

# ---------------------------------------------------------------- learner


def _no_trained_ids(self: LearnerNode) -> tuple[tuple[int, int], ...]:
    return ()


def _one_step_early(checkpoint: Any) -> Any:
    def mutated(self: LearnerNode) -> Any:
        found = checkpoint(self)
        return found if found.step == 0 else type(found)(found.step - 1, *_rest(found))

    return mutated


def _rest(found: Any) -> tuple[Any, ...]:
    return (found.epoch, found.newest_version, found.trained, found.state)


def _announce_first(self: LearnerNode, published: Any) -> Script:
    version = published.verified.version
    if version > self._newest_announced:
        self.ground.oracle.announcing(published.verified, self.origin.holds(version), self.agenda.now)
        yield from self._ask_coordinator(lambda node: node.announce, published.verified)
        self._newest_announced = version
        self._announced_hash = published.verified.record.state_hash
        yield from self._push(published)


def _sign_anyway(self: LearnerNode, version: int) -> bytes | None:
    return None


# ---------------------------------------------------------------- peers


def _newest_is_last(self: VersionSwap, key: Any) -> None:
    self.newest_verified = key


def _any_other(self: VersionSwap, key: Any) -> bool:
    return bool(key != self.active)


def _asked_before(opened: Any) -> Any:
    def mutated(self: WorkerCore, event: Any, now: float) -> Any:
        asked = self._slots_asked
        actions = opened(self, event, now)
        self._slots_asked = asked
        return actions

    return mutated


# ---------------------------------------------------------------- relays


def _never_right(self: Kept) -> bool:
    return self.complete


def _parts_are_whole(everything: Any) -> Any:
    def mutated(self: RelayDisk) -> list[Kept]:
        return [Kept(one.verified, one.hashes, one.chunks, whole=True) for one in everything(self)]

    return mutated


def _from_the_beginning(begin: Any) -> Any:
    def mutated(self: RelayDisk, verified: Any, hashes: bytes) -> Any:
        kept = self.get(verified.version)
        if kept is not None and not kept.whole:
            self.discard(verified.version)
        return begin(self, verified, hashes)

    return mutated


MUTANTS = (
    Mutant(
        "trained-ids-not-saved",
        "I2",
        "a checkpoint does not name the rollouts that were trained on",
        (Patch(LearnerNode, "_trained_ranges", plain(_no_trained_ids)),),
    ),
    Mutant(
        "checkpoint-one-step-early",
        "I2",
        "a checkpoint names the step before that of its state",
        (Patch(LearnerNode, "_checkpoint_now", _one_step_early),),
    ),
    Mutant(
        "other-bytes-under-a-known-version",
        "I4",
        "a learner whose replay ended in another state keeps signing in the same epoch",
        (Patch(LearnerNode, "_known_hash", plain(_sign_anyway)),),
    ),
    Mutant(
        "activated-without-hash-check",
        "I4",
        "neither chunks nor the state are compared with their signed hashes",
        (Patch(relay, "check_chunk", always(None)), Patch(Kept, "passes", plain(property(_never_right)))),
    ),
    Mutant(
        "older-version-activated",
        "I5",
        "the version that was verified last is activated, however old it is",
        (
            Patch(VersionSwap, "verified", plain(_newest_is_last)),
            Patch(VersionSwap, "_above_active", plain(_any_other)),
        ),
    ),
    Mutant(
        "verified-after-relaying",
        "I4",
        "chunks are forwarded before they are compared with their signed hashes",
        (Patch(relay, "check_chunk", always(None)),),
    ),
    Mutant(
        "work-not-asked-for-again",
        "I10",
        "after a lost session a peer assumes that the coordinator still has its number of free slots",
        (Patch(WorkerCore, "_opened", _asked_before),),
    ),
    Mutant(
        "announced-before-pushed",
        "I12",
        "a version is announced before the origin holds it durably",
        (Patch(LearnerNode, "_hand_over", plain(_announce_first)),),
    ),
    Mutant(
        "half-a-version-served",
        "I12",
        "after a restart a relay offers versions of which chunks are missing",
        (Patch(RelayDisk, "all", _parts_are_whole),),
    ),
    Mutant(
        "restarted-not-resumed",
        "I12",
        "after a restart a relay ignores the chunks that it had of a version",
        (Patch(RelayDisk, "begin", _from_the_beginning),),
    ),
)
