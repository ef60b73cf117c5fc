from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from rollcast.runtime.errors import DaemonAway, MalformedMessage, WaitTimedOut
from rollcast.wire.donor.control_socket import REPLY_BYTES_MAX, parse, request, socket_path


def answering(folder: Path, reply: bytes | None) -> threading.Thread:
    """Start a daemon that sends one reply, or none with None, and then closes."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(socket_path(folder)))
    server.listen(1)

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                if reply is None:
                    connection.settimeout(5.0)
                    connection.recv(1)  # until the other side gives up
                    connection.recv(1)
                else:
                    connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_a_reply_comes_back(tmp_path: Path) -> None:
    thread = answering(tmp_path, b'{"state": "on"}\n')
    assert request(tmp_path, {"do": "status"}) == {"state": "on"}
    thread.join(5.0)


def test_without_a_daemon_the_error_names_the_command_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(DaemonAway, match="rollcast peer join") as caught:
        request(tmp_path, {"do": "status"})
    assert caught.value.cause == "none has been started there, or it has ended"


def test_a_daemon_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(socket_path(tmp_path)))
    server.listen(1)
    with server, pytest.raises(WaitTimedOut, match="did not answer"):
        request(tmp_path, {"do": "status"}, deadline_s=0.05)


@pytest.mark.parametrize("reply", [b"", b"no json\n", b"[1]\n", b"x" * (REPLY_BYTES_MAX + 2)])
def test_malformed_replies_are_refused(tmp_path: Path, reply: bytes) -> None:
    answering(tmp_path, reply)
    with pytest.raises(MalformedMessage):
        request(tmp_path, {"do": "status"})


def test_a_message_is_one_json_object() -> None:
    assert parse(b'{"do": "pause"}\n') == {"do": "pause"}
    with pytest.raises(MalformedMessage):
        parse(b"\xff")


def test_a_long_folder_has_its_socket_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    deep = tmp_path / ("x" * 90)
    assert socket_path(deep).parent == Path("/run/user/7")
    assert len(str(socket_path(deep))) < 100
    assert socket_path(deep) != socket_path(tmp_path / ("y" * 90))
    assert socket_path(Path("/a")) == Path("/a/control.sock")


def test_a_folder_named_through_a_link_has_the_same_socket(tmp_path: Path) -> None:
    for name in ("short", "y" * 90):
        folder = tmp_path / name / "peer-1"
        folder.mkdir(parents=True)
        link = tmp_path / f"latest-{name[:1]}"
        link.symlink_to(folder.parent.name)
        assert socket_path(link / "peer-1") == socket_path(folder)
