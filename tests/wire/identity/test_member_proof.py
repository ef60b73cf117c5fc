"""A proof of membership is good for what it was made for, and soon for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.runtime.errors import BadSignature, RollcastError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.member_proof import GOOD_FOR_S, SCHEME, member_proof, proved_member

NOW_S = 1_700_000_000.7
PATH = "/api/v1/speed/seen"


def _proof(identity: Identity) -> str:
    scheme, _, text = member_proof(identity, "run-1", PATH, NOW_S)["Authorization"].partition(" ")
    assert scheme == SCHEME
    return text


def test_it_names_who_made_it() -> None:
    identity = Identity.generate()
    assert proved_member(_proof(identity), "run-1", PATH, NOW_S + GOOD_FOR_S - 1.0) == identity.peer_id


@pytest.mark.parametrize(
    ("run_id", "path", "now_s"),
    [("run-2", PATH, NOW_S), ("run-1", "/api/v1/else", NOW_S), ("run-1", PATH, NOW_S + GOOD_FOR_S + 2.0)],
)
def test_it_is_good_for_one_run_and_path_and_for_a_while(run_id: str, path: str, now_s: float) -> None:
    with pytest.raises(BadSignature):
        proved_member(_proof(Identity.generate()), run_id, path, now_s)


def test_seconds_cannot_be_changed() -> None:
    key, seconds, signature = _proof(Identity.generate()).split(".")
    with pytest.raises(BadSignature):
        proved_member(f"{key}.{int(seconds) + 1}.{signature}", "run-1", PATH, NOW_S)


@given(st.text(max_size=300))
def test_whatever_else_comes_is_refused(text: str) -> None:
    with pytest.raises(RollcastError):
        proved_member(text, "run-1", PATH, NOW_S)
