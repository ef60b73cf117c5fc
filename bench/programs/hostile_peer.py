"""Run a real peer that cheats: it joins, relays and holds versions as others do, and lies about its work.

usage: python -m bench.programs.hostile_peer KIND peer run CONFIG ...: the arguments of the command line follow KIND.
The RINGS are kinds of which several processes work together, whose CONFIG files lie in one folder.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from rollcast.cli.main import main
from rollcast.runtime.run_folder import write_atomically
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import ChunkIndex, PeerId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import rollout_to_pb
from rollcast.wire.token_ids import pack_ids, unpack_ids
from rollcast.wire.versions.receipts import NONCE_BYTES, ChunkReceipt, sign_receipt
from rollcast.wire.versions.records import KEYFRAME_ID

OTHER_SEEDS = 1 << 40
TEMPERATURE = 0.7
_FORGED_NATS = -1000.0
_KEPT_ANSWERS = 64
_VERSIONS_KEPT = 5  # S + 1 of the run
_RING_PROCESSES = 2

Params = dict[str, Any]  # tensors by name
Answer = tuple[list[int], Any]  # token ids, finish reason as in rollcast.proto
Lie = Callable[["Answers", Answer], Answer]


class SharedAnswers:
    """The answers of a ring: each member writes a file of its own, and reads those of the others."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._own: dict[str, Answer] = {}  # by group

    def add(self, group_id: int, answer: Answer) -> None:
        """Show the others an answer."""
        self._own[str(group_id)] = answer
        self._own = dict(list(self._own.items())[-_KEPT_ANSWERS:])
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / f"{self._name}.json", json.dumps(self._own).encode())

    def of_others(self, group_id: int) -> Answer | None:
        """Return another member's answer, to the same group if there is one; None if there is none at all."""
        files = sorted(self._folder.glob("*.json"))
        answers = [json.loads(file.read_text()) for file in files if file.stem != self._name]
        found = [one.get(str(group_id), list(one.values())[-1]) for one in answers]
        return (found[0][0], found[0][1]) if found else None


class Answers:
    """What this peer has answered so far."""

    def __init__(self, shared: SharedAnswers | None = None) -> None:
        self.random = Random(0)
        self.shared = shared  # None: it works alone
        self.first: Answer | None = None
        self.before: list[Answer] = []
        self.best: Answer | None = None  # of the group of the newest rollout
        self.group_id = -1


def _canned(said: Answers, honest: Answer) -> Answer:
    said.first = said.first or honest
    return said.first


def _copied(said: Answers, honest: Answer) -> Answer:
    said.before = [*said.before[-_KEPT_ANSWERS:], honest]
    return said.before[0]


def _random_text(said: Answers, honest: Answer) -> Answer:
    tokens, finish = honest
    return [said.random.choice(tokens) for _ in tokens[:-1]] + tokens[-1:], finish


def _truncated(_said: Answers, honest: Answer) -> Answer:
    return honest[0][: max(1, len(honest[0]) // 2)], pb.LENGTH


def _over_long(_said: Answers, honest: Answer) -> Answer:
    return 2 * honest[0], honest[1]


def _best_of_n(said: Answers, honest: Answer) -> Answer:
    """Send the answer that it likes best of those to the same prompt, whichever slot it was made for."""
    said.best = max(said.best or honest, honest, key=lambda answer: sum(answer[0]))
    return said.best


def _of_accomplice(said: Answers, honest: Answer) -> Answer:
    """Send what an accomplice answered, and show it the own answer."""
    assert said.shared is not None
    said.shared.add(said.group_id, honest)
    return said.shared.of_others(said.group_id) or honest


def _forged_logprobs(_said: Answers, honest: Answer) -> Answer:
    return honest  # its log-probabilities are forged by _told


LIES: dict[str, Lie] = {
    "canned": _canned,
    "copied": _copied,
    "random_text": _random_text,
    "best_of_n": _best_of_n,
    "truncated": _truncated,
    "over_long": _over_long,
    "forged_logprobs": _forged_logprobs,
    "copying_ring": _of_accomplice,
}


def _lie_in_uploads(lie: Lie, config: Path) -> None:
    from peer.worker import uploads

    said = Answers(SharedAnswers(config.parent / "ring", config.stem))
    uploads.rollout_to_pb = lambda rollout: _told(rollout_to_pb(rollout), lie, said)  # type: ignore[attr-defined]


def _told(message: pb.Rollout, lie: Lie, said: Answers) -> pb.Rollout:
    """Put a lie into a rollout: one segment of the last version, for all that was generated."""
    own = [one for one in message.segments if one.role == pb.ASSISTANT]
    honest = [token for one in own for token in unpack_ids(one.packed_ids)]
    if message.group_id != said.group_id:
        said.group_id, said.best = message.group_id, None
    tokens, finish = lie(said, (honest, message.finish_reason))
    message.finish_reason = finish
    told = pb.Segment()
    told.CopyFrom(own[-1])
    del told.reported_logprobs[:]
    told.packed_ids = pack_ids(tokens)
    told.loss_mask = b"\1" * len(tokens)
    told.reported_logprobs.extend([_FORGED_NATS] * len(tokens))
    kept = [one for one in message.segments if one.role != pb.ASSISTANT]
    del message.segments[:]
    message.segments.extend([*kept, told])
    return message


def _cheat_in_engine(kind: str) -> None:
    from peer.engines import jax_engine

    honest = jax_engine._sample_request

    def own_seeds(item: Any) -> Any:
        asked = honest(item)
        return replace(asked, seed=asked.seed ^ OTHER_SEEDS)

    def own_temperature(item: Any) -> Any:
        asked = honest(item)
        return replace(asked, sampling=replace(asked.sampling or item.sampling, temperature=TEMPERATURE))

    jax_engine._sample_request = {"own_seeds": own_seeds, "temperature": own_temperature}[kind]


def one_bit(params: Params) -> Params:
    """Round each matrix to signs, as a peer may that has no room for it."""
    import jax.numpy as jnp

    return {name: jnp.sign(leaf) * jnp.mean(jnp.abs(leaf)) if leaf.ndim >= 2 else leaf for name, leaf in params.items()}


def half_of_the_layers(params: Params) -> Params:
    """Let the upper half of the layers add nothing: a smaller model with the same tokens."""
    layers = {int(name.split(".")[1]) for name in params if name.startswith("layers.")}
    silent = tuple(f"layers.{number}." for number in sorted(layers)[len(layers) // 2 :])
    ends = (".attention.output.kernel", ".feed_forward.down.kernel")
    return {
        name: leaf * 0 if name.startswith(silent) and name.endswith(ends) else leaf for name, leaf in params.items()
    }


class AnyVersion:
    """Compute with any of the versions kept, and claim the newest: a choice among several answers to one slot."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._newest: Params | None = None
        self._kept: list[Params] = []

    def __call__(self, params: Params) -> Params:
        if params is not self._newest:
            copied = {name: leaf.copy() for name, leaf in params.items()}  # the engine frees tensors of old versions
            self._newest, self._kept = params, [*self._kept, copied][-_VERSIONS_KEPT:]
        return self._chance.choice(self._kept)


WEIGHTS: dict[str, Callable[[Params], Params]] = {
    "other_weights": one_bit,
    "smaller_model": half_of_the_layers,
    "any_version": AnyVersion(Random(0)),
}


def _compute_with_other_weights(kind: str) -> None:
    from peer.engines import jax_engine

    honest = jax_engine.JaxEngine._use

    def use(engine: Any, loaded: Any) -> Params:
        return WEIGHTS[kind](honest(engine, loaded))

    jax_engine.JaxEngine._use = use  # type: ignore[method-assign, assignment]


def _hoard(_kind: str) -> None:
    """Take every slot that the coordinator gives, and compute nothing."""
    from peer.engines import jax_engine

    async def never(_generation: Any, _tokens_max: int) -> Sequence[Any]:
        await asyncio.Event().wait()
        return ()

    jax_engine.JaxGeneration.next_slice = never  # type: ignore[method-assign, assignment]


def _accuse_neighbours(_kind: str) -> None:
    """Accuse every neighbour of a wrong chunk of each version, as the accomplices do."""
    from peer.relay import relay

    follow, announce = relay.Relay.apply_plan, relay.Relay.announce
    neighbours: list[PeerId] = []

    def follow_and_note(self: Any, plan: pb.RelayPlan) -> None:
        follow(self, plan)
        neighbours[:] = [PeerId(one.peer_id) for one in plan.neighbours]

    def announce_and_accuse(self: Any, announcement: pb.VersionAnnouncement) -> Any:
        verified = announce(self, announcement)
        own = self._accusations
        for lie in false_accusations(neighbours, verified.version, own._run_id, own._identity):
            own._accuse(lie)
        return verified

    relay.Relay.apply_plan = follow_and_note  # type: ignore[method-assign]
    relay.Relay.announce = announce_and_accuse  # type: ignore[method-assign]


def false_accusations(
    neighbours: Sequence[PeerId], version: Version, run_id: RunId, identity: Identity
) -> Iterator[pb.Accusation]:
    """Yield a lie about each neighbour in bare words, and one with a receipt that this peer signed in its place."""
    for culprit in neighbours:
        lie = pb.Accusation(culprit_peer_id=culprit, version=version, encoding_id=KEYFRAME_ID, reason="hash")
        yield lie
        forged = ChunkReceipt(
            run_id, version, KEYFRAME_ID, ChunkIndex(0), bytes(32), bytes(32), identity.peer_id, bytes(NONCE_BYTES)
        )
        proven = pb.Accusation()
        proven.CopyFrom(lie)
        proven.receipt.CopyFrom(sign_receipt(forged, identity))
        yield proven


ENGINES: dict[str, Callable[[str], None]] = {
    "own_seeds": _cheat_in_engine,
    "temperature": _cheat_in_engine,
    **dict.fromkeys(WEIGHTS, _compute_with_other_weights),
    "hoarder": _hoard,
    "accusing_ring": _accuse_neighbours,
}
KINDS = (*ENGINES, *LIES)
RINGS = {"copying_ring": _RING_PROCESSES, "accusing_ring": _RING_PROCESSES}  # processes that work together


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if kind in LIES:
        _lie_in_uploads(LIES[kind], Path(sys.argv[3]))
    else:
        ENGINES[kind](kind)
    main()
