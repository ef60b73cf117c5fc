"""Make rollouts of a given size in bytes, serialized with as little work as possible."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from bench.fleet.process import answer_to
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.text.tokenizer import Tokenizer
from rollcast.wire.token_ids import pack_ids

_BYTES_A_TOKEN = 9  # id, mask and log-probability
_ANSWER_TOKENS = 6  # an answer is padded to this


def tokens_for(size_bytes: int) -> int:
    """Return the number of tokens of a completion that takes about this many bytes."""
    return max(_ANSWER_TOKENS + 1, size_bytes // _BYTES_A_TOKEN)


@dataclass(frozen=True, slots=True)
class LeasedSlot:
    """The leased slot that a rollout names: its peer, lease, group, sample and prompt."""

    peer_id: str
    lease_id: int
    fencing_token: int
    group_id: int
    sample_index: int
    epoch: int
    prompt_token_ids: tuple[int, ...]


class LongRollouts:
    """Completions of the right answer followed by blanks, ``tokens`` long including the end token."""

    def __init__(self, tokenizer: Tokenizer, tokens: int) -> None:
        (blank,) = tokenizer.encode(" ")

        def answer(prompt_token_ids: tuple[int, ...]) -> list[int]:
            ids = tokenizer.encode(answer_to(tokenizer.decode(prompt_token_ids)))
            return ids + [blank] * (_ANSWER_TOKENS - len(ids))

        self._answer = lru_cache(maxsize=4096)(answer)
        end = pack_ids([tokenizer.eos_id])
        self._blanks = (tokens - 1 - _ANSWER_TOKENS) * pack_ids([blank]) + end
        self._message = pb.Rollout(
            segments=[
                pb.Segment(
                    role=pb.ASSISTANT,
                    loss_mask=b"\x01" * tokens,
                    reported_logprobs=[-0.5 - 0.001 * number for number in range(tokens)],
                )
            ],
            finish_reason=pb.STOP,
        )

    def body(self, slot: LeasedSlot, version: int, generate_s: float) -> bytes:
        """Return a serialized rollcast.v1.Rollout."""
        message, segment = self._message, self._message.segments[0]
        message.lease_id, message.fencing_token = slot.lease_id, slot.fencing_token
        message.group_id, message.sample_index = slot.group_id, slot.sample_index
        message.generate_s = generate_s
        segment.epoch, segment.version, segment.peer_id = slot.epoch, version, slot.peer_id
        segment.packed_ids = pack_ids(self._answer(slot.prompt_token_ids)) + self._blanks
        return message.SerializeToString()


def upload_of(body: bytes) -> bytes:
    """Return a serialized rollcast.v1.RolloutUpload with this one rollout."""
    length, prefix = len(body), bytearray(b"\x0a")
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + body
