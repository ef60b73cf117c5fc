"""Say to a machine's owner what the run found wrong with its rollouts, why that may be, and what to do. Pure."""

from __future__ import annotations

import math
from typing import Any

from rollcast.wire.limits import TEXT_LENGTH_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

#: Honest causes of tokens that their seeds and versions do not give, the most likely first.
CAUSES = (
    "another build of the engine, or of its GPU kernels, than the run's bounds were measured with",
    "another precision than the run's, such as weights or caches in 8 bits",
    "memory errors: a GPU without ECC, overclocked or too hot, or memory of the machine that fails",
)
_TO_DO = {
    "watched": "nothing yet: such rollouts are left out; if it goes on, update the engine, check precision and clocks",
    "quarantined": "update or change the engine, reset clocks and test the memory; "
    "when it rejoins with another engine or device, the run judges it anew, once; else its operator may enable it",
}


def verdict_from(message: pb.AuditVerdict) -> dict[str, Any] | None:
    """Return the verdict for the owner's screens; None if the machine's work is in order.

    Keys: state, reason, token (which one, empty if no token was off), margin_nats, bound_nats, causes, to_do.
    """
    if message.state not in _TO_DO:
        return None
    values = (message.margin_nats, message.bound_nats)
    off = message.margin_nats > 0.0 and all(map(math.isfinite, values))
    token = f"token {message.token_at} of rollout {message.rollout_id}, sampled with {message.sampler[:64]}"
    return {
        "state": message.state,
        "reason": message.reason[:TEXT_LENGTH_MAX],
        "token": token if off else "",
        "margin_nats": values[0] if off else 0.0,
        "bound_nats": values[1] if off else 0.0,
        "causes": list(CAUSES) if off else [],
        "to_do": _TO_DO[message.state],
    }
