from __future__ import annotations

import pytest

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.checks import require


def test_what_does_not_hold_is_refused_by_name() -> None:
    require(True, "fine")
    with pytest.raises(MalformedMessage, match="too long"):
        require(False, "too long")
