from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import WrongKey
from rollcast.wire.identity.certificates import (
    Caller,
    caller_from_certificate_pem,
    caller_from_der,
    caller_from_san_uris,
    caller_issued_by,
    fingerprint_of,
)
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import RunId
from tests.peer.links.link_run import LinkRun

RUN_ID = RunId("test-run")
PEER_ID = Identity.generate().peer_id


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["localhost"],
        [f"rollcast://run/peer/{PEER_ID}", f"rollcast://run/origin/{PEER_ID}"],
        [f"rollcast://run/peer/{PEER_ID}", f"ROLLCAST://run/origin/{PEER_ID}"],
        [f"rollcast://run/peer/{PEER_ID}", "rollcast:"],
        [f"rollcast://run/admin/{PEER_ID}"],
        [f"rollcast://run/Peer/{PEER_ID}"],
        [f"rollcast://run/peer/{PEER_ID}/"],
        [f"rollcast://run/peer/{PEER_ID}\n"],
        [f"rollcast://run/peer/{PEER_ID[:-1]}"],
        ["rollcast://run/peer/coordinator"],
        [f"rollcast://run/coordinator/{PEER_ID}"],
        [f"rollcast://../peer/{PEER_ID}"],
        [f"rollcast:///peer/{PEER_ID}"],
        [f"rollcast://{'r' * 65}/peer/{PEER_ID}"],
        [f"https://run/peer/{PEER_ID}"],
    ],
)
def test_callers_are_parsed_strictly(names: list[str]) -> None:
    with pytest.raises(WrongKey):
        caller_from_san_uris(names)


@given(st.lists(st.text(max_size=80) | st.from_regex(r"rollcast://\S{0,80}"), max_size=3))
@settings(deadline=None, max_examples=100)
def test_other_names_are_no_caller(names: list[str]) -> None:
    with pytest.raises(WrongKey):
        caller_from_san_uris(names)


def test_a_caller_is_found_among_other_names() -> None:
    caller = Caller(RUN_ID, "learner", PEER_ID)
    assert caller_from_san_uris(["localhost", caller.uri, "127.0.0.1"]) == caller


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=50)
def test_malformed_bytes_are_no_certificate(data: bytes) -> None:
    for parse in (caller_from_der, caller_from_certificate_pem, fingerprint_of):
        with pytest.raises(WrongKey):
            parse(data)


def test_a_certificate_outside_tls_is_checked_against_the_run_ca(tmp_path: Path) -> None:
    run, other = LinkRun(tmp_path), LinkRun(tmp_path, "run-2")
    peer_id, credentials = run.member("origin")
    der, now = credentials.certificate_der, datetime.now(UTC)
    assert caller_issued_by(run.ca.certificate_pem, der, now) == Caller(run.run_id, "origin", peer_id)
    for ca, shown, when, why in (
        (other, der, now, "CA"),
        (run, b"", now, "CA"),
        (run, der[:-1] + bytes([der[-1] ^ 1]), now, "CA"),
        (run, der, now + timedelta(hours=2), "valid"),
        (run, der, now - timedelta(days=2), "valid"),
    ):
        with pytest.raises(WrongKey, match=why):
            caller_issued_by(ca.ca.certificate_pem, shown, when)
