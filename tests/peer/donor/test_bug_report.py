"""Test the report of a machine full of secrets: none of them is in the archive, whatever its form."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.donor.bug_report import Redactor, bug_report, secrets_of
from peer.donor.install.join import ListenSettings, PeerPaths, write_configuration
from peer.donor.install.running import crash_log
from rollcast.runtime.errors import RunFolderError
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from tests.peer.donor.install.test_join import invite

MIRROR_KEY = "mirror-key-4242424242"

LOGGED = "hf_loggedbyaccident1234567890"

PAGE_TOKEN = "page-token-abcdefghijkl"


@pytest.fixture
def places(tmp_path: Path) -> PeerPaths:
    """Return the paths of a peer that has joined, with its keys, and a log that contains secrets."""
    here = PeerPaths(tmp_path / "config" / "peer.toml", tmp_path / "state")
    write_configuration(here, invite().encode(), name="shed", listening=ListenSettings())
    headers = tmp_path / "headers.toml"
    headers.write_text(f'["https://mirror.example/"]\nX-Key = "{MIRROR_KEY}"\n')
    with here.config_file.open("a") as file:
        file.write(f'[mirror]\nheaders_file = "{headers}"\n')
    state = here.state_folder
    identity = Identity.load_or_create(state / "identity.key")
    authority, key = RunCA.create(tmp_path / "ca", invite().run_id), new_tls_key()
    certificate = authority.issue(key.csr_pem(), peer_id=identity.peer_id, role="peer", lifetime_s=3600.0)
    TlsCredentials(authority.certificate_pem, certificate, key.private_pem).save(state)
    (state / "page.json").write_text(json.dumps({"port": 1, "token": PAGE_TOKEN}))
    here.log_file.parent.mkdir()
    lines = [
        json.dumps({"event": "joined", "invite": invite().encode(), "peer_id": identity.peer_id}),
        f"dialling with {LOGGED} and {MIRROR_KEY}",
        (state / "identity.key").read_text(),
        f"open http://127.0.0.1:1/#token={PAGE_TOKEN} {PAGE_TOKEN}",
        f"token of the invite: {invite().token} {invite().encode()}",
    ]
    here.log_file.write_text("\n".join(lines))
    crash_log(here.log_file).write_text((state / "credentials.pem").read_text())
    (state / "receipts").mkdir()
    (state / "receipts" / "counts.json").write_text('{"2026-11-22": {"accepted": 3}}')
    return here


def secrets_on(places: PeerPaths) -> list[str]:
    """Return all secrets of this peer, those of its PEM files line by line."""
    pem = (places.state_folder / "identity.key").read_text() + (places.state_folder / "credentials.pem").read_text()
    lines = [line for line in pem.splitlines() if not line.startswith("-----")]
    return [*lines, invite().encode(), invite().token, MIRROR_KEY, LOGGED, PAGE_TOKEN]


def test_the_report_contains_no_secret(places: PeerPaths, tmp_path: Path) -> None:
    out = tmp_path / "out" / "report.tar.gz"
    report = bug_report(places, tmp_path / "config", out=out)
    assert out.stat().st_mode & 0o777 == 0o600
    raw = gzip.decompress(out.read_bytes()).decode("utf-8", errors="replace")
    assert [secret for secret in secrets_on(places) if secret in raw] == []
    assert "PRIVATE KEY" not in raw
    with tarfile.open(out) as archive:
        assert sorted(member.name for member in archive) == [f"report/{name}" for name in report.files]


def test_the_report_contains_what_is_needed(places: PeerPaths, tmp_path: Path) -> None:
    out = tmp_path / "report.tar.gz"
    bug_report(places, tmp_path / "config", out=out)
    files = {}
    with tarfile.open(out) as archive:
        for member in archive:
            opened = archive.extractfile(member)
            assert opened is not None
            files[member.name.removeprefix("report/")] = opened.read().decode()
    peer_id = Identity.load(places.state_folder / "identity.key").peer_id
    assert json.loads(files["config.json"])["name"] == "shed"
    assert json.loads(files["receipts.json"])["2026-11-22"] == {"accepted": 3}
    assert json.loads(files["machine.json"])["cores"] >= 1
    assert peer_id in files["peer.log"]
    assert "no peer runs" in files["status.json"]
    assert "identity.key" in files["state-folder.txt"]


def test_a_broken_machine_gets_a_report_too(tmp_path: Path) -> None:
    places = PeerPaths(tmp_path / "none.toml", tmp_path / "nowhere")
    assert secrets_of(places) == []
    report = bug_report(places, tmp_path, out=tmp_path / "report.tar.gz")
    assert "machine.json" in report.files
    assert "machine.json" not in report.absent
    assert {"peer.log", "peer.err", "limits.json"} <= set(report.absent) <= set(report.files)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError):
        bug_report(places, tmp_path, out=tmp_path / "file" / "report.tar.gz")


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
def test_a_secret_is_removed_in_any_form(text: str, secret: str) -> None:
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
def test_ordinary_text_stays(text: str) -> None:
    assert REDACTOR.clean(text) == text


@given(st.text(), st.text(st.characters(categories=["L", "N"]), min_size=8, max_size=40))
def test_a_known_secret_never_comes_through(around: str, secret: str) -> None:
    assert secret not in Redactor([secret]).clean(f"{around}{secret}{around}").replace("[redacted]", "\0")


@given(st.dictionaries(st.sampled_from(["token", "my_secret", "Password"]), st.text(min_size=1), min_size=1))
def test_json_stays_json(values: dict[str, str]) -> None:
    text = REDACTOR.clean(json.dumps(values))
    assert set(json.loads(text).values()) == {"[redacted]"}
