"""Simulate the learner's process: it trains on batches, publishes and saves in the real order, and resumes by replay.

Its arithmetic is a hash: the state after a step follows from the state before, the batch and the hardware. It does
everything in the order of the real learner's loop, publisher and checkpoints; epochs are judged by the real Replay.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from coordinator.core.events.evaluation_events import EvaluationKey, EvaluationProblem, EvaluationRequested
from learner.publishing.epochs import Replay
from learner.training.trained_ids import TrainedIds
from rollcast.runtime.waits import backoff_delays_s
from rollcast.sim.kernel.disk import Disk, DiskFull
from rollcast.sim.kernel.process import Latch, Process, Script, Wait
from rollcast.sim.kernel.rpc import Failed, Handler, call
from rollcast.sim.nodes.control_link import Addresses
from rollcast.sim.nodes.coordinator import CoordinatorNode
from rollcast.sim.nodes.origin import OriginNode
from rollcast.sim.store.tables import Stored
from rollcast.sim.versions import Published, first_state, next_state
from rollcast.sim.world import Ground
from rollcast.wire.ids import Epoch, RolloutId, Step, Version

NAME = "learner"
CALL_TIMEOUT_S = 10.0  # seconds of each call; a request for a batch that takes longer is repeated
PUSH_TIMEOUT_S = 60.0
EVALUATION_POLL_S = 1.0
HASH_S = 0.05
RECORDS_KEPT = 64

Batch = list[tuple[RolloutId, Stored]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole state that a resumed learner needs to continue exactly as before."""

    step: int
    epoch: int
    newest_version: int
    trained: tuple[tuple[int, int], ...]
    oldest_kept: int  # the oldest version that is on disk for the batches that follow
    state: bytes


class LearnerNode(Process):
    """The learner's process and its machine. The disk outlives the process.

    Attributes:
        hardware: enters the result of each step; other hardware rounds differently, so a replay on it diverges.
    """

    def __init__(self, ground: Ground, coordinators: Sequence[CoordinatorNode], origin: OriginNode) -> None:
        super().__init__(NAME, ground.agenda)
        self.ground = ground
        self._addresses = Addresses(coordinators)
        self.origin = origin
        self.disk = Disk(ground.chance.of("disk of the learner"))
        self.disk.state.sync_s = ground.settings.sync_s
        self.hardware = 0
        self._random = ground.chance.of("learner")
        self._reset(first_state(ground.chance.seed))
        self.busy_s = 0.0  # seconds in training steps, including earlier lives and replays

    def _reset(self, state: bytes) -> None:
        self.step = self.epoch = self.newest_version = 0
        self.state = state
        self.trained = TrainedIds()
        self._newest_announced = -1
        self._announced_hash: bytes | None = None
        self._common: int | None = None
        self._diverged = False
        self._kappa = 1  # the publish period, which comes with every batch
        self._kept_age = self._oldest_kept = 0  # versions are kept up to this age in steps, which a batch may raise
        self._published = self._kept = self._saved = self._evaluated = _set()

    # ---------------------------------------------------------------- lives

    def _begin(self) -> None:
        self.follow(self._live())

    def _live(self) -> Script:
        yield self.sleep(self.ground.settings.boot_s)
        info = yield from self._ask_coordinator(lambda node: node.run_info, None)
        host = self._newest_checkpoint()
        if host is None:
            host = Checkpoint(0, 0, 0, (), 0, first_state(self.ground.chance.seed))
            yield from self._write_checkpoint(host)
        self._reset(host.state)
        self.step, self.epoch, self.newest_version = host.step, host.epoch, host.newest_version
        self.trained = TrainedIds(host.trained)
        self.ground.oracle.learner_resumed(host.step, len(self.trained), self.agenda.now)
        starts, recorded, newest, self._kept_age = info
        self._oldest_kept = host.oldest_kept
        if newest is not None:
            self._newest_announced, self._announced_hash = newest.version, newest.record.state_hash
        replay = Replay(host.epoch, starts, recorded)
        self._common = host.newest_version if host.newest_version < host.step else None
        yield from self._publish_kept(host.step)
        if host.newest_version == host.step:
            yield from self._start_publication()
            yield self._published.wait()
        while self.step < self.ground.settings.steps:
            yield from self._follow_epochs(replay)
            yield from self._do_step(replay)

    # ---------------------------------------------------------------- epochs

    def _follow_epochs(self, replay: Replay) -> Script:
        start = replay.jump(self.step)
        if start is not None:
            yield from self._enter_epoch(start.epoch, start.step)
        elif replay.ends(self.step):
            yield self._published.wait()
            if self._diverged:
                yield from self._publish_kept(self._newest_known())
                request = (Step(self.step), None if self._common is None else Version(self._common))
                opened = yield from self._ask_coordinator(lambda node: node.open_epoch, request)
                if opened.epoch == self.epoch:  # batches were recorded since: they are trained on first
                    replay.extend(opened.step)
                    return
                self.ground.trace.add(self.agenda.now, "epoch", opened.epoch, opened.step)
                yield from self._enter_epoch(opened.epoch, opened.step)

    def _enter_epoch(self, epoch: int, step: int) -> Script:
        yield self._published.wait()
        self._common, self._diverged = None, False
        self.step, self.epoch, self.newest_version = step, epoch, step
        self.ground.oracle.epoch_entered(epoch, step, self.agenda.now)
        if self._known_hash(step) is None:
            yield from self._start_checkpoint()
            yield self._saved.wait()
        yield from self._start_publication()

    # ---------------------------------------------------------------- steps

    def _do_step(self, replay: Replay) -> Script:
        batch: Batch = yield from self._batch()
        settings, oracle = self.ground.settings, self.ground.oracle
        ids = [int(rollout_id) for rollout_id, _ in batch]
        again = [one in self.trained for one in ids]
        oracle.training(self.step, self.epoch, batch, again, self._oldest_kept, self.agenda.now)
        yield self.sleep(settings.train_s)
        self.busy_s += settings.train_s
        rewards = [(int(rollout_id), stored.reward or 0.0) for rollout_id, stored in batch]
        self.state = next_state(self.state, rewards, self.hardware)
        for one in ids:
            self.trained.add(one)
        self.step += 1
        self._oldest_kept = max(self._oldest_kept, self.step - self._kept_age)
        oracle.stepped(self.step, self.epoch, self._state_hash(), self.agenda.now)
        if self._publishes(replay):
            yield from self._start_publication()
            self.newest_version = self.step
        if self.step % settings.checkpoint_every_steps == 0:
            yield from self._start_checkpoint()
        self._start_evaluation()
        yield from self._ask_coordinator(lambda node: node.step_done, Step(self.step))

    def _publishes(self, replay: Replay) -> bool:
        if replay.epoch_ahead:
            return self.step <= self._newest_announced and self._known_hash(self.step) is not None
        if self.step <= self._newest_known():
            return self._known_hash(self.step) is not None
        return self.step - self.newest_version >= self._kappa

    def _batch(self) -> Generator[Wait, Any, Batch]:
        self.ground.oracle.asking(self.step, self.agenda.now)
        answer = yield from self._ask_coordinator(lambda node: node.next_batch, Step(self.step))
        self._kappa, kept_age, batch = answer
        self._kept_age = max(self._kept_age, kept_age)
        found: Batch = batch
        return found

    # ---------------------------------------------------------------- evaluations

    def _start_evaluation(self) -> None:
        """Start the evaluation that is due after this step, unless the one before is still in progress."""
        every_steps = self.ground.settings.evaluate_every_steps
        if every_steps and self.step % every_steps == 0 and self._evaluated.is_set:
            self._evaluated = Latch()
            self.follow(self._evaluate(self.newest_version, self._published, self._evaluated))

    def _evaluate(self, version: int, published: Latch, evaluated: Latch) -> Script:
        """Ask the peers to evaluate a version, beside training, until that is done or given up."""
        yield published.wait()
        settings, oracle = self.ground.settings, self.ground.oracle
        key = EvaluationKey(
            "held_out", Version(version), settings.evaluation_problems, settings.evaluation_samples, seed=7
        )
        problems = tuple(EvaluationProblem(number, (3, number)) for number in range(settings.evaluation_problems))
        request = EvaluationRequested(key, problems, settings.evaluation_deadline_s)
        oracle.evaluation.asked(key, self.agenda.now)
        while True:
            done, given_up, exact = yield from self._ask_coordinator(lambda node: node.evaluate, request)
            if done or given_up:
                oracle.evaluation.ended(key, exact, given_up, self.agenda.now)
                evaluated.set()
                return
            yield self.sleep(EVALUATION_POLL_S)

    # ---------------------------------------------------------------- checkpoints

    def _newest_checkpoint(self) -> Checkpoint | None:
        names = self.disk.names("checkpoint-")
        found: Checkpoint | None = self.disk.read(names[-1]) if names else None
        return found

    def _start_checkpoint(self) -> Script:
        yield self._saved.wait()
        self._saved = saved = Latch()
        self.follow(self._save(self._checkpoint_now(), self._kept, saved))

    def _checkpoint_now(self) -> Checkpoint:
        return Checkpoint(
            self.step, self.epoch, self.newest_version, self._trained_ranges(), self._oldest_kept, self.state
        )

    def _trained_ranges(self) -> tuple[tuple[int, int], ...]:
        return tuple((start, end) for start, end in self.trained.ranges())

    def _save(self, host: Checkpoint, kept: Latch, saved: Latch) -> Script:
        yield kept.wait()
        if not self._diverged:
            yield self.sleep(self.ground.settings.checkpoint_s)
            yield from self._write_checkpoint(host)
        saved.set()

    def _write_checkpoint(self, host: Checkpoint) -> Script:
        yield from self._write(f"checkpoint-{host.step:09d}", host)
        for name in self.disk.names("checkpoint-")[: -self.ground.settings.checkpoints_kept]:
            self.disk.remove(name)

    def _write(self, name: str, content: Any) -> Script:
        """Write a file atomically and durably: write a new one, sync, rename, sync the folder; wait while full."""
        while True:
            try:
                self.disk.write(f"new-{name}", content)
                break
            except DiskFull:
                yield self.sleep(1.0)
        yield self.disk.fsync(self, f"new-{name}")
        self.disk.rename(f"new-{name}", name)
        yield self.disk.fsync(self, name)

    # ---------------------------------------------------------------- versions

    def _state_hash(self) -> bytes:
        return self.ground.signer.state_hash(self.state)

    def _known_hash(self, version: int) -> bytes | None:
        kept: Published | None = self.disk.read(f"record-{version:09d}")
        if kept is not None:
            return kept.verified.record.state_hash
        return self._announced_hash if version == self._newest_announced else None

    def _newest_known(self) -> int:
        names = self.disk.names("record-")
        return max(self._newest_announced, int(names[-1].removeprefix("record-")) if names else -1)

    def _start_publication(self) -> Script:
        yield self._published.wait()
        self._published, self._kept = Latch(), Latch()
        self.follow(self._publish(self.step, self.epoch, self.state, self._published, self._kept))

    def _publish(self, version: int, epoch: int, state: bytes, published: Latch, kept: Latch) -> Script:
        yield self.sleep(HASH_S)
        signed = self.ground.signer.sign(Epoch(epoch), Version(version), state)
        known = self._known_hash(version)
        if known not in (None, signed.verified.record.state_hash):
            self._diverged = True
        if self._diverged or (known is None and version <= self._newest_announced):
            kept.set()
        else:
            if self.disk.read(f"record-{version:09d}") is None:
                yield from self._write(f"record-{version:09d}", signed)
                for old in self.disk.names("record-")[:-RECORDS_KEPT]:
                    self.disk.remove(old)
            self._common = version
            kept.set()
            yield from self._hand_over(self.disk.read(f"record-{version:09d}"))
        published.set()

    def _publish_kept(self, until: int) -> Script:
        """Publish the versions that an earlier life kept on disk but did not announce."""
        for name in self.disk.names("record-"):
            kept: Published = self.disk.read(name)
            if self._newest_announced < kept.verified.version <= until:
                yield from self._hand_over(kept)

    def _hand_over(self, published: Published) -> Script:
        version = published.verified.version
        if version <= self._newest_announced:
            return
        yield from self._push(published)
        self.ground.oracle.announcing(published.verified, self.origin.holds(version), self.agenda.now)
        yield from self._ask_coordinator(lambda node: node.announce, published.verified)
        self._newest_announced = version
        self._announced_hash = published.verified.record.state_hash

    # ---------------------------------------------------------------- calls

    def _ask_coordinator(
        self, handler_of: Callable[[CoordinatorNode], Handler], request: Any
    ) -> Generator[Wait, Any, Any]:
        """Repeat a call of the coordinator until it is answered, at the next address each time.

        Args:
            handler_of: returns the method to call of a coordinator, which may be of a derived class.
        """

        def begin() -> Wait:
            coordinator = self._addresses.current
            handler = handler_of(coordinator)
            return call(self.ground.network, self, coordinator, handler, request, timeout_s=CALL_TIMEOUT_S)

        answer = yield from self._repeat(begin, self._addresses.failed)
        return answer

    def _push(self, published: Published) -> Generator[Wait, Any, Any]:
        """Push a version to the origin, and repeat it until the origin has it."""
        origin, size_bytes = self.origin, self.ground.settings.version_bytes
        begin = partial(call, self.ground.network, self, origin, origin.push, published)
        answer = yield from self._repeat(lambda: begin(timeout_s=PUSH_TIMEOUT_S, size_bytes=size_bytes), lambda: None)
        return answer

    def _repeat(self, begin: Callable[[], Wait], failed: Callable[[], None]) -> Generator[Wait, Any, Any]:
        """Repeat a call with backoff until it is answered; ``failed`` is called each time that it is not."""
        for delay_s in backoff_delays_s(self._random, most_s=3.0):
            answer = yield begin()
            if not isinstance(answer, Failed):
                return answer
            if "other content" in answer.reason:
                self.ground.oracle.failed(f"the learner's call is refused: {answer.reason}", self.agenda.now)
            failed()
            yield self.sleep(delay_s)
        raise AssertionError("delays are endless")


def _set() -> Latch:
    latch = Latch()
    latch.set()
    return latch
