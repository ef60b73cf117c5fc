from __future__ import annotations

import pytest

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.version_swap import AT_VERSION_SWAP, at_version_swap_from_pb


def test_words_of_a_message() -> None:
    assert [at_version_swap_from_pb(word) for word in ("", *AT_VERSION_SWAP)] == ["finish", *AT_VERSION_SWAP]
    with pytest.raises(MalformedMessage, match="unknown word"):
        at_version_swap_from_pb("restart")
