from __future__ import annotations

from dataclasses import replace

import pytest

from rollcast import __version__
from rollcast.runtime.errors import JoinRefused, ReleaseMismatch
from rollcast.wire.joining.invite import Invite
from rollcast.wire.joining.release import Release, check_release
from tests.wire.joining.test_invite import INVITE, fields, pack

URL = "https://run.example/wheels/rollcast-0.2.0-py3-none-any.whl"
RELEASE = Release("0.2.0", "c" * 64, URL)


def test_an_invite_may_name_the_release() -> None:
    invite = replace(INVITE, release=RELEASE)
    assert Invite.decode(invite.encode()) == invite
    assert Invite.decode(INVITE.encode()).release is None


@pytest.mark.parametrize(
    "release",
    [
        {},
        {"version": "0.2"},
        {"version": "0.2.0; rm"},
        {"version": "0.2.0", "sha256": "c" * 63},
        {"version": "0.2.0", "url": URL},
        {"version": "0.2.0", "sha256": "c" * 64, "url": "https://run.example/a' b"},
        {"version": "0.2.0", "sha256": "c" * 64, "url": "file:///etc/passwd"},
        {"version": "0.2.0", "path": "x"},
        {"version": 2},
        "0.2.0",
        ["0.2.0"],
    ],
)
def test_a_malformed_release_is_refused(release: object) -> None:
    with pytest.raises(JoinRefused):
        Invite.decode(pack({**fields(), "release": release}))


@pytest.mark.parametrize(
    ("expected", "version", "fits"),
    [
        ("0.2.0", "0.2.7", True),
        ("0.2.7", "0.2.0", True),
        ("0.2.0", "0.3.0", False),
        ("0.10.0", "0.1.0", False),
        ("1.2.0", "1.9.3", True),
        ("1.2.0", "2.0.0", False),
        ("1.0.0", "0.1.0", False),
    ],
)
def test_versions_of_a_series_fit(expected: str, version: str, fits: bool) -> None:
    assert Release(expected).accepts(version) is fits


def test_another_series_is_refused_with_what_to_install() -> None:
    with pytest.raises(ReleaseMismatch) as caught:
        check_release(RELEASE, "peer", version="0.1.0")
    assert caught.value.cause == "this machine has 0.1.0, and 0.2.0 is expected"
    assert caught.value.fix.endswith(f"pip install 'rollcast[peer] @ {URL}#sha256={'c' * 64}'")
    with pytest.raises(ReleaseMismatch) as caught:
        check_release(RELEASE, "origin", version="0.1.0")
    assert f"'rollcast @ {URL}#" in caught.value.fix
    with pytest.raises(ReleaseMismatch, match="ask the run's operator"):
        check_release(Release("0.2.0"), "peer", version="0.1.0")


def test_another_build_of_the_version_is_refused() -> None:
    with pytest.raises(ReleaseMismatch, match="another build"):
        check_release(RELEASE, "peer", version="0.2.0", sha256="d" * 64)
    check_release(RELEASE, "peer", version="0.2.0", sha256="c" * 64)
    check_release(RELEASE, "peer", version="0.2.1", sha256="d" * 64)
    check_release(RELEASE, "peer", version="0.2.0", sha256="")  # from a clone
    check_release(None, "peer")
    check_release(Release(__version__), "peer")
