"""Transfer one payload from a sender to a receiver on this machine's loopback interface, by several systems.

Each function yields one transfer after another through processes that were started before the first, and counts the
processor time of both ends from the moment at which the receiver may begin.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.systems import aria2, libtorrent
from bench.systems.base import ROOT, Case, Lines, check_copies, prepare_nodes, python_with
from bench.systems.rollcast_daemons import Daemons
from bench.wan.machines import Loopback, family_cpu_s
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import RunId

_POLL_S = 0.01
_START_S = 1.0
_ENDS = ("origin", "peer-1")
_SEEDER_PORT, _LEECHER_PORT = 26881, 26882
_HTTPS_PORT = 26443
_NGINX = """daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 64; }}
http {{ access_log off; {temporary}
 server {{ listen {address}:{port} ssl; root {folder}/node-0; ssl_protocols TLSv1.3;
  ssl_certificate {folder}/certificate.pem; ssl_certificate_key {folder}/key.pem; }} }}
"""
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer: its seconds, and the processor seconds of both ends."""

    seconds: float
    cpu_s: float


def rollcast(case: Case, network: int) -> Iterator[Transfer]:
    """Yield transfers of versions from a real origin to a real peer, with TLS, hashes and the store.

    A transfer lasts from the coordinator's announcement until the peer holds the version, its state's hash checked. The
    first version warms the connection up and does not count.

    Raises:
        RollcastError: a daemon ended, or a version did not arrive in time.
    """
    with Loopback(case.nodes, network) as machines:
        daemons = Daemons(machines, case)
        try:
            daemons.start()
            for version in range(sys.maxsize):
                one = _version(daemons, case, version)
                if version:
                    yield one
        except ProcessFailed as error:
            raise ProcessFailed(error.what, cause=daemons.last_words() or error.cause, fix=error.fix) from None
        finally:
            daemons.stop()


def _version(daemons: Daemons, case: Case, version: int) -> Transfer:
    time.sleep(case.settle_s)
    daemons.send_command("publish")
    daemons.next_answer("origin_holds", case.limit_s)
    cpu_s, started_s = daemons.cpu_s(*_ENDS), time.monotonic()
    daemons.send_command("announce")
    while (held_at := daemons.log("peer-1").last("version held", version)) is None:
        if time.monotonic() - started_s > case.limit_s:
            raise WaitTimedOut(f"waited {case.limit_s:.0f} s for the peer to hold version {version}")
        time.sleep(_POLL_S)
    cpu_s = daemons.cpu_s(*_ENDS) - cpu_s
    announced_at = daemons.log("coordinator").last("version announced", version)
    assert announced_at is not None, "the peer holds what was announced"
    daemons.next_answer("peers_hold", case.limit_s)
    return Transfer(held_at - announced_at, cpu_s)


def nginx_missing() -> str:
    """Return what is not installed; empty when nothing is missing."""
    absent = [package for tool, package in {"nginx": "nginx-light", "curl": "curl"}.items() if not shutil.which(tool)]
    return f"apt-get install {' '.join(absent)}" if absent else ""


def nginx(case: Case, network: int) -> Iterator[Transfer]:
    """Yield downloads with curl from nginx over TLS 1.3; nothing is hashed, so this does less than the others.

    Raises:
        ProcessFailed: a download failed.
    """
    folders, _, digest = prepare_nodes(case)
    _write_certificate(case.folder)
    with Loopback(case.nodes, network) as machines:
        temporary = " ".join(f"{name}_temp_path {case.folder}/tmp-{name};" for name in _TEMPORARY)
        address = machines.addresses[0]
        text = _NGINX.format(folder=case.folder, temporary=temporary, address=address, port=_HTTPS_PORT)
        (case.folder / "nginx.conf").write_text(text)
        server = machines.spawn(
            0, ["nginx", "-p", str(case.folder), "-c", str(case.folder / "nginx.conf"), "-e", "stderr"]
        )
        time.sleep(_START_S)
        copy = folders[1] / "payload"
        while True:
            copy.unlink(missing_ok=True)
            cpu_s, started_s = machines.cpu_s(), time.monotonic()
            url = f"https://{address}:{_HTTPS_PORT}/payload"
            curl = machines.spawn(1, ["curl", "-skf", "--max-time", f"{case.limit_s}", "-o", str(copy), url])
            if machines.reap(curl, grace_s=case.limit_s) or machines.has_ended(server):
                raise ProcessFailed("nginx did not deliver the payload", cause=f"see {case.folder}/nginx.err")
            transfer = Transfer(time.monotonic() - started_s, machines.cpu_s() - cpu_s)
            check_copies({1: copy}, digest)
            yield transfer


def _write_certificate(folder: Path) -> None:
    """Write a certificate and a key of the kind that the daemons have."""
    ca, key = RunCA.create(folder / "ca", RunId("bench")), new_tls_key()
    peer_id = Identity.load_or_create(folder / "identity.pem").peer_id
    pem = ca.issue(key.csr_pem(), peer_id=peer_id, role="peer", lifetime_s=86_400.0)
    credentials = TlsCredentials(ca.certificate_pem, pem, key.private_pem)
    (folder / "certificate.pem").write_bytes(credentials.certificate_pem)
    (folder / "key.pem").write_bytes(credentials.private_key_pem)


def aria2_pair(case: Case, network: int) -> Iterator[Transfer]:
    """Yield BitTorrent transfers between two aria2: no TLS, and the receiver hashes (SHA-1).

    Raises:
        WaitTimedOut: a transfer did not end in time.
    """
    folders, payload, digest = prepare_nodes(case)
    torrent = case.folder / "payload.torrent"
    with Loopback(case.nodes, network) as machines:
        address = machines.addresses[0]
        libtorrent.make_torrent(payload, torrent, aria2.PIECE_BYTES, f"http://{address}:{aria2.TRACKER_PORT}/announce")
        tracker = machines.spawn(0, [sys.executable, str(ROOT / "bench" / "programs" / "tracker.py"), address])
        time.sleep(_START_S)
        command = aria2.command(folders[0], torrent, _SEEDER_PORT, seeds=True)
        seeder = machines.spawn(0, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2 * _START_S)  # by then the seeder listens and has announced itself
        while True:
            shutil.rmtree(folders[1])
            folders[1].mkdir()
            cpu_s, started_s = family_cpu_s(seeder.pid), time.monotonic()
            command = aria2.command(folders[1], torrent, _LEECHER_PORT, seeds=False)
            leecher = machines.spawn(1, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not (folders[1] / "done").exists():
                if time.monotonic() - started_s > case.limit_s or machines.has_ended(tracker):
                    raise WaitTimedOut(f"waited {case.limit_s:.0f} s for aria2's download")
                time.sleep(_POLL_S)
            both_s = family_cpu_s(seeder.pid) + family_cpu_s(leecher.pid) - cpu_s
            transfer = Transfer(time.monotonic() - started_s, both_s)
            machines.reap(leecher, signal.SIGTERM)
            check_copies({1: folders[1] / "payload"}, digest)
            yield transfer


def libtorrent_pair(case: Case, network: int) -> Iterator[Transfer]:
    """Yield BitTorrent transfers between two libtorrent sessions, tuned, with pieces of 64 KiB: no TLS, SHA-1 hashes.

    Raises:
        WaitTimedOut: a transfer did not end in time.
        ProcessFailed: a node ended.
    """
    while True:
        folders, payload, digest = prepare_nodes(case)
        torrent, lines = case.folder / "payload.torrent", Lines()
        libtorrent.make_torrent(payload, torrent, libtorrent.PIECE_BYTES["tuned"])
        with Loopback(case.nodes, network) as machines:
            nodes = [_libtorrent_node(machines, number, folders[number], torrent) for number in (0, 1)]
            for number, node in enumerate(nodes):
                lines.follow(number, node)
            lines.count("ready", 2, case.limit_s)
            cpu_s, started_s = machines.cpu_s(), time.monotonic()
            for node in nodes:
                _write(node, "go")
            done = lines.count("done", 1, case.limit_s)
            transfer = Transfer(float(done[1]) - started_s, machines.cpu_s() - cpu_s)
            for node in nodes:
                _write(node, "quit")
                machines.reap(node)
        check_copies({1: folders[1] / "payload"}, digest)
        yield transfer


def _libtorrent_node(machines: Loopback, number: int, folder: Path, torrent: Path) -> subprocess.Popen[Any]:
    role, before = "leech" if number else "seed", machines.addresses[:number]
    node = ROOT / "bench" / "programs" / "libtorrent_node.py"
    arguments = [str(torrent), str(folder), machines.addresses[number], "tuned", role, *before]
    command = [python_with(), str(node), *arguments]
    return machines.spawn(number, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _write(process: subprocess.Popen[Any], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
