"""Test invites as text, and the first addresses that they lead to."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from rollcast.runtime.errors import JoinRefused, WaitTimedOut
from rollcast.wire.ids import RunId
from rollcast.wire.joining.bootstrap import PLACE_PATTERN, PLACES_MOST, Bootstrap, bootstraps
from rollcast.wire.joining.invite import Invite, read_invite

INVITE = Invite(
    run_id=RunId("local-1"),
    role="peer",
    http_url="http://127.0.0.1:7401",
    grpc_address="127.0.0.1:7400",
    ca_sha256="a" * 64,
    learner_public_key="b" * 64,
    token="secret_token-1",
)


def pack(values: object) -> str:
    return "rollcast1-" + base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def fields() -> dict[str, object]:
    return {name: getattr(INVITE, name) for name in Invite.__slots__ if name not in ("further", "release")}


def test_an_invite_is_one_word() -> None:
    text = INVITE.encode()
    assert text.startswith("rollcast1-")
    assert not set(text) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    assert Invite.decode(text) == INVITE
    assert Invite.decode(f"  {text}\n") == INVITE


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(INVITE)


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "../x"},
        {"run_id": ""},
        {"role": "coordinator"},
        {"role": "admin"},
        {"http_url": "ftp://host"},
        {"http_url": "http://host/path"},
        {"http_url": "http://user@host"},
        {"http_url": "http://"},
        {"http_url": "http://host\n"},
        {"grpc_address": "host"},
        {"grpc_address": "host:port"},
        {"grpc_address": "unix:/socket"},
        {"ca_sha256": "a" * 63},
        {"ca_sha256": "A" * 64},
        {"learner_public_key": "b" * 65},
        {"token": ""},
        {"token": "a b"},
        {"token": 7},
        {"token": None},
        {"token": ["x"]},
        {"further": ["run.example:7400"]},
        {"further": ["http://run.example"]},
        {"further": [7]},
        {"further": ["run.example\n"]},
        {"further": "run.example"},
        {"further": ["run.example"] * 8},
    ],
)
def test_fields_are_checked(change: dict[str, object]) -> None:
    with pytest.raises(JoinRefused):
        Invite.decode(pack({**fields(), **change}))
    with pytest.raises(JoinRefused):
        replace(INVITE, **change)  # type: ignore[arg-type]


def test_an_invite_may_name_further_places() -> None:
    invite = replace(INVITE, further=("run.example", "[2001:db8::1]:7500:7501"))
    assert Invite.decode(invite.encode()) == invite
    assert [place.grpc_address for place in invite.places(["10.0.0.1", "127.0.0.1"])] == [
        "127.0.0.1:7400",
        "run.example:7400",
        "[2001:db8::1]:7500",
        "10.0.0.1:7400",
    ]
    assert invite.places()[1].http_url == "http://run.example:7401"


def test_missing_and_further_fields_are_refused() -> None:
    for values in ({**fields(), "path": "/"}, {"run_id": "x"}, [], None, 7, "x"):
        with pytest.raises(JoinRefused):
            Invite.decode(pack(values))


@pytest.mark.parametrize("address", ["[::1]:7400", "train.example:443", "10.0.0.1:65535"])
def test_addresses_of_every_kind_are_allowed(address: str) -> None:
    invite = replace(INVITE, grpc_address=address, http_url=f"https://{address}")
    assert Invite.decode(invite.encode()) == invite


@given(st.text(max_size=100) | st.binary(max_size=100).map(lambda data: "rollcast1-" + data.hex()))
@settings(deadline=None, max_examples=100)
def test_malformed_invites_are_refused(text: str) -> None:
    with pytest.raises(JoinRefused):
        Invite.decode(text)


@given(st.integers(0, 10**6), st.sampled_from("aZ0-_=!\u00e9"))
@settings(deadline=None, max_examples=100)
def test_a_changed_character_never_crashes(at: int, character: str) -> None:
    text = INVITE.encode()
    at %= len(text)
    try:
        Invite.decode(text[:at] + character + text[at + 1 :])
    except JoinRefused:
        return


def test_a_cut_invite_is_refused() -> None:
    text = INVITE.encode()
    for length in range(0, len(text), 7):
        with pytest.raises(JoinRefused):
            Invite.decode(text[:length])
    with pytest.raises(JoinRefused):
        Invite.decode(text + "A" * 5000)


async def test_the_text_goes_before_the_file(tmp_path: Path) -> None:
    assert await read_invite(INVITE.encode(), tmp_path / "none", 1.0) == INVITE


async def test_a_file_that_appears_later_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "invite.txt"
    waiting = asyncio.create_task(read_invite("", file, 10.0))
    file.write_text("")
    await asyncio.sleep(0)
    file.write_text(INVITE.encode() + "\n")
    assert await waiting == INVITE


async def test_without_invite_the_reason_is_clear(tmp_path: Path) -> None:
    with pytest.raises(JoinRefused, match="no invite"):
        await read_invite("", None, 1.0)
    with capture_logs() as logs, pytest.raises(WaitTimedOut, match=r"invite\.txt"):
        await read_invite("", tmp_path / "invite.txt", 0.15)
    assert [(line["event"], line["at_most_s"]) for line in logs] == [("waiting for the invite", 0.15)]
    with pytest.raises(JoinRefused, match="cannot read"):
        await read_invite("", tmp_path, 1.0)
    (tmp_path / "wrong.txt").write_bytes(b"\xff\xfe not an invite")
    with pytest.raises(JoinRefused, match="not an invite"):
        await read_invite("", tmp_path / "wrong.txt", 1.0)


FIRST = ("https://run.example:7401", "run.example:7400")


def test_a_further_place_takes_the_ports_of_the_first() -> None:
    assert bootstraps(*FIRST, ["10.0.0.1", "[2001:db8::1]", "other.example:1:2"]) == (
        Bootstrap(*FIRST),
        Bootstrap("https://10.0.0.1:7401", "10.0.0.1:7400"),
        Bootstrap("https://[2001:db8::1]:7401", "[2001:db8::1]:7400"),
        Bootstrap("https://other.example:2", "other.example:1"),
    )


def test_one_place_is_tried_once_and_there_are_few() -> None:
    assert bootstraps(*FIRST, ["run.example", "run.example:7400:7401"]) == (Bootstrap(*FIRST),)
    assert len(bootstraps(*FIRST, [f"host-{number}" for number in range(20)])) == PLACES_MOST


@pytest.mark.parametrize("text", ["", "host:1", "host:1:2:3", "http://host", "a b", "::1", "host:x:y"])
def test_malformed_places_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither host"):
        bootstraps(*FIRST, [text])


@given(st.text(max_size=60))
def test_the_pattern_of_configurations_accepts_readable_places(text: str) -> None:
    if re.match(PLACE_PATTERN, text) and not text.endswith("\n"):
        assert len(bootstraps(*FIRST, [text])) <= 2
