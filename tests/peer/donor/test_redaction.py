from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.donor.bug_report import Redactor

SECRETS = ["hunter2-hunter2", "zo9KpQ8sVtXw1", "multi\nline-secret-of-two"]
REDACTOR = Redactor(SECRETS, home="/home/me")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("a hunter2-hunter2 b", "hunter2"),
        ('{"x": "zo9KpQ8sVtXw1"}', "zo9KpQ8sVtXw1"),
        ("line-secret-of-two alone", "line-secret"),
        ("invite rollcast1-eyJydW5faWQiOiJsb2Nhb pasted", "eyJydW5"),
        ("-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n-----END PRIVATE KEY-----\nafter", "MC4CAQAw"),
        ("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQ cut off", "MC4CAQAw"),
        ("Authorization: Bearer abcdef.123456-xyz", "abcdef"),
        ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ('{"join_token": "abcdefgh"}', "abcdefgh"),
        ('{"api-key" : "with \\" quote", "b": 1}', "quote"),
        ("MY_PASSWORD=letmein99 other", "letmein"),
        ("password: 'let me in'", "let me in"),
        ("https://user:pass@host/path", "user:pass"),
        ("https://bucket/x?X-Amz-Signature=deadbeef&y", "deadbeef"),
        ("http://127.0.0.1:1/#token=Zm9vYmFy", "Zm9v"),
        ("hf_abcdefghijklmnopqrst", "abcdefghij"),
        ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.sig-natureX", "hbGciOi"),
        ("/home/me/.config", "/home/me"),
    ],
)
def test_a_secret_is_gone(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in REDACTOR.clean(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens_per_second": 12.5, "tokens": 7, "token_ids": "x"}',
        '{"peer_id": "12D3KooWCASar7J6gZ9Ae3CoDbmqS6qRNLFERGrMupaBYLKvfhkA", "public_key": "ff00"}',
        'invite_file = "/etc/rollcast/invite.txt"',
        "generating - 4 rollouts of version 12",
        "https://host/path/file.safetensors",
    ],
)
def test_what_is_needed_stays(text: str) -> None:
    assert REDACTOR.clean(text) == text


@given(st.text(), st.text(st.characters(categories=["L", "N"]), min_size=8, max_size=40))
def test_a_known_secret_never_comes_through(around: str, secret: str) -> None:
    assert secret not in Redactor([secret]).clean(f"{around}{secret}{around}").replace("[redacted]", "\0")


@given(st.dictionaries(st.sampled_from(["token", "my_secret", "Password"]), st.text(min_size=1), min_size=1))
def test_json_stays_json(values: dict[str, str]) -> None:
    text = REDACTOR.clean(json.dumps(values))
    assert set(json.loads(text).values()) == {"[redacted]"}
