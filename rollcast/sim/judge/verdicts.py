"""Name the invariants that a simulation checks, and collect the violations that it finds."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.sim.kernel.trace import Trace

_KEPT = 20  # the first violations explain the rest, and a broken invariant is often reported at every event

#: What each rule promises: the invariants I1 to I12, and the rules without a number.
RULES = {
    "I1": "every acknowledged rollout, and every acknowledged turn of an episode, is stored after any crash",
    "I2": "a rollout enters at most one learner step, across restores",
    "I3": "at batch formation step - oldest segment's version <= S, and no segment is of an orphaned version",
    "I4": "active bytes hash to the signed manifest",
    "I5": "active versions strictly increase at each peer",
    "I6": "at most two live attempts a slot, each fenced; a late result counts only if the slot is empty",
    "I7": "no part of a submission that failed its check is stored or trained",
    "I8": "memory and disk of each process are bounded",
    "I9": "no honest peer is penalised or quarantined, and one that is quarantined stays so across restarts",
    "I10": "after faults end, steps resume within 30 s, or within the time of a step that starts without rollouts",
    "I11": "issued = trained + dropped for a counted reason + turns before the last + open",
    "I12": "a half-written version is invisible, and is resumed rather than restarted",
    "deadline": "no attempt without a rollout stays live after the deadline of its lease",
    "unscored": "no rollout is trained whose last verdict is a failure of the verifier",
    "starve": "a peer that delivers nothing gets ever less work: what it lets expire in a row is a few batches at most",
    "version": "no peer answers a lease with an older version than one with which it had answered before the lease",
    "seed": "each slot has a seed of its own, which is the same whenever the slot is issued",
    "evaluation": "each evaluation ends, its samples are what was leased, and none of them is trained on",
    "episode": "an episode is its turns and what its environment says to them; nothing of the latter is trained on",
    "leader": "after a take-over the former leader commits nothing and acknowledges nothing that is not stored",
    "cell": "a cell lets go of a rollout as delivered only once the head has stored it",
    "activation": "no peer that is switched off, drained or banned gets work",
    "own": "a core's own assertions hold, and the store refuses no change",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: ``event`` counts the trace entries until then, ``story`` holds the subject's last ones."""

    rule: str
    what: str
    at_s: float
    event: int
    story: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.rule} ({RULES[self.rule]}) at {self.at_s:.3f} s, event {self.event}: {self.what}"]
        return "\n    ".join([*lines, *self.story])


class Verdicts:
    """The violations found so far, of which the first ones are kept."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.found: list[Violation] = []
        self.checks = 0

    def blame(self, rule: str, what: str, now: float, subject: object = None) -> None:
        """Record that ``rule`` is broken, with the newest trace entries that name ``subject``."""
        if len(self.found) < _KEPT:
            story = () if subject is None else tuple(self.trace.story(subject))
            self.found.append(Violation(rule, what, now, self.trace.count, story))
