"""Test that ssh hosts meet the contract, through a real sshd where there is one and a program in ssh's place."""

from __future__ import annotations

import asyncio
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capacity.inputs.pool.columns import Record
from capacity.inputs.pool.starts import Address
from capacity.providers.base import WorkerTag
from capacity.providers.config import ProviderConfigs, SshConfig
from capacity.providers.machines import Machine
from capacity.providers.ssh import SshProvider, ssh_command
from rollcast.runtime.errors import ProviderFailed
from tests.capacity.providers.conformance import DEADLINE_S, INVITE, Setting, check
from tests.capacity.providers.pool_machines import machines
from tests.capacity.providers.workers import SLEEPER, kill_all, saw

ROOT = Path(__file__).parents[3]
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for home in tmp_path.iterdir():
        kill_all(home / "workers")


def python(home: Path) -> Path:
    """Create an interpreter with a home of its own that finds this source tree, wherever it is started."""
    home.mkdir(exist_ok=True)
    path = home / "python"
    exports = f"export PYTHONPATH={shlex.quote(str(ROOT))} HOME={shlex.quote(str(home))}"
    path.write_text(f'#!/bin/sh\n{exports}\nexec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return path


def hosts(folder: Path, address: str = "127.0.0.1") -> tuple[Machine, ...]:
    """Return two machines, which are this one with two homes."""
    each: Record = {"start": "ssh", "address": address}
    return machines(*(each | {"worker_id": one, "python": str(python(folder / one))} for one in ("box-1", "box-2")))


def provider(hosts: Sequence[Machine], **ssh: Any) -> SshProvider:
    config = ProviderConfigs.model_validate({"ssh": {"systemd": "never", "folder": "~/workers", **ssh}})
    return SshProvider("ssh", hosts, config, program=SLEEPER)


def setting(folder: Path, **ssh: Any) -> Setting:
    one, two = (provider(hosts(folder), **ssh) for _ in range(2))
    return Setting(one, two, lambda tag: saw(folder / tag.worker_id / "workers", tag))


# -------------------------------------------------------------------- in ssh's place


def fake_ssh(folder: Path, *, dead: str = "dead") -> Path:
    """Create an ssh that records its arguments and has a shell run the last one, as sshd does; one host is silent."""
    path = folder / "ssh"
    path.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {folder}/arguments\n'
        f'for last; do case "$last" in {dead}) echo "connect to host {dead}: no route" >&2; exit 255;; esac; done\n'
        'exec sh -c "$last"\n'
    )
    path.chmod(0o755)
    return path


async def test_it_meets_the_contract(folder: Path) -> None:
    await check(setting(folder, ssh=str(fake_ssh(folder))))
    arguments = (folder / "arguments").read_text()
    assert INVITE not in arguments
    assert "StrictHostKeyChecking=yes" in arguments


async def test_a_host_that_does_not_answer_is_named_and_the_others_are_listed(folder: Path) -> None:
    dead = machines({"worker_id": "far", "start": "ssh", "address": "dead"})
    ours = provider([hosts(folder)[0], *dead], ssh=str(fake_ssh(folder)))
    tag = WorkerTag("run-1", "box-1", 1)
    await ours.start(tag, INVITE, deadline_s=DEADLINE_S)
    listing = await ours.list("run-1", deadline_s=DEADLINE_S)
    assert [one.tag for one in listing.running] == [tag]
    assert list(listing.silent) == ["far"]
    assert "no route" in listing.silent["far"]
    with pytest.raises(ProviderFailed, match="no answer from dead"):
        await ours.start(WorkerTag("run-1", "far", 1), INVITE, deadline_s=DEADLINE_S)
    with pytest.raises(ProviderFailed, match="has no worker gone"):
        await ours.stop(WorkerTag("run-1", "gone", 1), deadline_s=DEADLINE_S)
    await ours.stop(tag, deadline_s=DEADLINE_S)


async def test_a_host_that_hangs_is_given_up_in_time(folder: Path) -> None:
    path = folder / "ssh"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    ours = provider(hosts(folder), ssh=str(path))
    async with asyncio.timeout(10):
        assert set((await ours.list("run-1", deadline_s=0.3)).silent) == {"box-1", "box-2"}


async def test_a_host_without_rollcast_is_named(folder: Path) -> None:
    bare = machines({"worker_id": "bare", "start": "ssh", "address": "b", "python": "/bin/false"})
    ours = provider(bare, ssh=str(fake_ssh(folder)))
    with pytest.raises(ProviderFailed, match="no answer from b") as found:
        await ours.start(WorkerTag("run-1", "bare", 1), INVITE, deadline_s=DEADLINE_S)
    assert "Python with Rollcast" in found.value.fix


def test_the_command_is_fixed_and_nothing_in_it_can_be_an_option() -> None:
    config = SshConfig(known_hosts=Path("/k"), identity_file=Path("/i"), config_file=Path("/c"))
    command = ssh_command(config, Address.parse("me@gpu1:2222"), "~/my_env/bin/python")
    assert command[:4] == ["ssh", "-T", "-F", "/c"]
    assert command[-3:] == ["--", "gpu1", "exec ~/my_env/bin/python -P -m capacity.providers.host_agent"]
    assert {"UserKnownHostsFile=/k", "IdentityFile=/i", "BatchMode=yes", "StrictHostKeyChecking=yes"} <= set(command)
    assert command[command.index("-l") + 1] == "me"
    assert command[command.index("-p") + 1] == "2222"
    for address in ("-oProxyCommand=x", "a b", "-x@h", "h:99999"):
        with pytest.raises(ValueError, match="HOST"):
            Address.parse(address)
    assert Address.parse("[fe80::1%eth0]:22") == Address("fe80::1%eth0", "", 22)


# -------------------------------------------------------------------- a real sshd


@dataclass(frozen=True)
class Sshd:
    port: int
    known_hosts: Path
    identity: Path


@pytest.fixture
def sshd(folder: Path) -> Iterator[Sshd]:
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd on this machine (Debian: apt-get install openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd run by root requires it
    home = folder / "sshd"
    home.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    public = (home / "user.pub").read_text()
    (home / "authorized_keys").write_text(public)
    (home / "known_hosts").write_text(f"[127.0.0.1]:{port} {(home / 'host.pub').read_text()}")
    (home / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {home}/host\nPidFile {home}/pid\n"
        f"AuthorizedKeysFile {home}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
    )
    command = [SSHD, "-D", "-e", "-f", str(home / "config")]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        if not _answers(port, process):
            pytest.skip(f"sshd does not run here: {(home / 'log').read_text()[-300:]}")
        yield Sshd(port, home / "known_hosts", home / "user")
    finally:
        process.terminate()
        process.wait()


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    for _ in range(100):
        if process.poll() is not None:
            return False
        try:
            with socket.create_connection(("127.0.0.1", port), 0.1):
                return True
        except OSError:
            pass
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    return False


def real(folder: Path, sshd: Sshd) -> SshProvider:
    at = hosts(folder, f"{getpass.getuser()}@127.0.0.1:{sshd.port}")
    return provider(at, known_hosts=sshd.known_hosts, identity_file=sshd.identity)


async def test_it_meets_the_contract_through_a_real_sshd(folder: Path, sshd: Sshd) -> None:
    one, two = (real(folder, sshd) for _ in range(2))
    await check(Setting(one, two, lambda tag: saw(folder / tag.worker_id / "workers", tag)))


async def test_a_host_whose_key_is_not_known_is_refused(folder: Path, sshd: Sshd) -> None:
    sshd.known_hosts.write_text("")
    ours = real(folder, sshd)
    with pytest.raises(ProviderFailed, match="no answer") as found:
        await ours.start(WorkerTag("run-1", "box-1", 1), INVITE, deadline_s=DEADLINE_S)
    assert "Host key verification failed" in found.value.cause
