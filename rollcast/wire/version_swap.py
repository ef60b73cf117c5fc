"""Define what a peer's running rollouts do when it swaps to a newer version.

Configurations name it, so this module imports nothing that takes long to import.
"""

from __future__ import annotations

from typing import Literal

from rollcast.wire.checks import require

#: What a peer's running rollouts do when it swaps to a newer version. "finish": they end under the old one.
#: "continue": they go on under the new one, which reads all their tokens so far again. "keep": they go on under it from
#: the keys and values that older versions left, so that nothing is read again.
AtVersionSwap = Literal["finish", "continue", "keep"]
AT_VERSION_SWAP: tuple[AtVersionSwap, ...] = ("finish", "continue", "keep")


def at_version_swap_from_pb(value: str) -> AtVersionSwap:
    """Convert what a message says about running rollouts at a swap; empty means "finish".

    Raises:
        MalformedMessage: the word is unknown.
    """
    found = next((word for word in AT_VERSION_SWAP if word == (value or "finish")), None)
    require(found is not None, "unknown word for what rollouts do at a version swap")
    assert found is not None
    return found
