"""Test programs that try to escape their confinement, and the input that they get from their tests."""

from __future__ import annotations

import os
import platform
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.tasks.sandbox import confine, harness, runner
from coordinator.tasks.sandbox.runner import Limits, ProgramResult, run_python
from rollcast.runtime.errors import TaskError
from tests.coordinator.tasks.sandbox.processes import alive, own_temporary_folder


def run(program: str, stdin: bytes = b"", **limits: float) -> ProgramResult:
    settings = {"wall_s": 20.0, "memory_bytes": 256 << 20} | limits
    return run_python({"main.py": program}, "main.py", stdin, Limits(**settings))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this test's sandboxes."""
    with own_temporary_folder() as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder


def test_a_program_runs(temporary: Path) -> None:
    ended = run("import os, sys; print(input() * 2); print(os.getcwd(), file=sys.stderr); sys.exit(3)", b"ab\n")
    assert (ended.outcome, ended.status, ended.stdout) == ("exited", 3, b"abab\n")
    folder = ended.stderr.decode().strip()
    assert folder.startswith(f"{temporary}/rollcast-sandbox-")
    assert not os.path.exists(folder)
    assert ended.missing == {}


def test_environment_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLCAST_SECRET", "hush")
    ended = run("import os; print(sorted(os.environ)); print(os.path.exists('/proc/self'))")
    assert b"SECRET" not in ended.stdout


def test_two_neighbouring_descriptors_are_found_between_others() -> None:
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
    for one in held[::2]:  # no two of the lowest free descriptors are neighbours
        os.close(one)
    try:
        ended = run("print('through')")
    finally:
        for one in held[1::2]:
            os.close(one)
    assert ended.stdout == b"through\n"


def test_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for family in ("AF_INET", "AF_INET6", "AF_UNIX"):
            ended = run(f"import socket; socket.socket(socket.{family}); print('open')")
            assert b"PermissionError" in ended.stderr
            assert ended.stdout == b""
        assert run(f"import socket; socket.create_connection(('127.0.0.1', {port}))").status == 1


def test_no_files_of_others(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    secret.chmod(0o666)
    tmp_path.chmod(0o777)
    program = f"""
import os
for attempt in (
    lambda: open({str(secret)!r}).read(),
    lambda: open({str(secret)!r}, "w").write("x"),
    lambda: open({str(tmp_path / "new")!r}, "w"),
    lambda: os.listdir({str(tmp_path)!r}),
    lambda: os.remove({str(secret)!r}),
    lambda: os.symlink({str(secret)!r}, "link") or open("link").read(),
    lambda: open("/etc/passwd").read(),
):
    try:
        attempt()
    except PermissionError:
        continue
    print("escaped")
open("own", "w").write("fine")
print(open("own").read())
"""
    ended = run(program)
    assert ended.stdout == b"fine\n", ended.stderr
    assert secret.read_text() == "hush"
    assert not (tmp_path / "new").exists()


def test_a_fork_bomb_ends(temporary: Path) -> None:
    began_s = time.monotonic()
    ended = run("import os, time\nwhile True:\n    try: os.fork()\n    except OSError: pass", wall_s=0.6)
    assert ended.outcome == "timeout"
    assert time.monotonic() - began_s < 15.0
    assert alive(temporary) == []


def test_children_do_not_outlive_the_program(temporary: Path) -> None:
    run("import os, time\nif os.fork() == 0:\n    os.close(1); os.close(2); time.sleep(60)")
    assert alive(temporary) == []


def test_other_processes_are_not_killed() -> None:
    ended = run(
        f"import os\nfor pid in (os.getppid(), {os.getpid()}, -1):\n  try: os.kill(pid, 9)\n  except OSError: pass"
    )
    assert ended.outcome == "exited"


def test_huge_memory_fails() -> None:
    assert b"MemoryError" in run("bytearray(1 << 32)").stderr


def test_an_endless_loop_is_stopped() -> None:
    assert run("while True: pass", wall_s=0.4).outcome == "timeout"


def test_a_program_that_closes_its_streams_is_stopped_too() -> None:
    assert run("import os\nos.close(1); os.close(2)\nwhile True: pass", wall_s=0.4).outcome == "timeout"


def test_huge_output_is_cut() -> None:
    ended = run("while True: print('x' * 4096)", output_bytes_max=1 << 16)
    assert ended.outcome == "output"
    assert len(ended.stdout) <= (1 << 16) + runner.READ_BYTES


def test_huge_files_fail() -> None:
    assert b"File too large" in run("open('f', 'wb').write(bytes(3 << 20))", file_bytes_max=1 << 20).stderr
    ended = run("for n in range(64): open(str(n), 'wb').write(bytes(1 << 20))", file_bytes_max=1 << 20)
    assert b"No space left" in ended.stderr


def test_escape_attempts_are_refused() -> None:
    program = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, number in dict(unshare=272, mount=165, ptrace=101, io_uring_setup=425, setns=308, bpf=321).items():
    print(name, libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())
try: os.setsid()
except PermissionError: print("setsid refused")
"""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    lines = run(program).stdout.decode().splitlines()
    assert [line.split()[1:] for line in lines[:-1]] == [["-1", "1"]] * 6
    assert lines[-1] == "setsid refused"


def other_kernel(monkeypatch: pytest.MonkeyPatch, folder: Path, call: str, refused: str) -> None:
    """Give the child a copy of confine.py for which the kernel refuses one call."""
    for name in ("child.py", "confine.py"):
        text = Path(runner.CHILD).with_name(name).read_text()
        assert name == "child.py" or call in text
        (folder / name).write_text(text.replace(call, refused))
    monkeypatch.setattr(runner, "CHILD", str(folder / "child.py"))


def test_confinement_holds_without_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary: Path) -> None:
    other_kernel(monkeypatch, tmp_path, "_libc.unshare(flags)", "_libc.unshare(1 << 40)")
    ended = run("import os\nprint('ran')\nif os.fork() == 0:\n    os.close(1); os.close(2)\n    while True: pass")
    assert (ended.outcome, ended.stdout) == ("exited", b"ran\n")
    assert list(ended.missing) == ["namespaces"]
    assert alive(temporary) == []
    assert b"PermissionError" in run("import socket; socket.socket()").stderr
    assert b"PermissionError" in run("open('/etc/passwd')").stderr
    assert b"Resource temporarily" in run("import os\nwhile True: os.fork()").stderr


def test_missing_confinement_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other_kernel(monkeypatch, tmp_path, "_libc.syscall(444, None", "_libc.syscall(9444, None")
    with pytest.raises(TaskError, match="cannot confine") as caught:
        run("print('ran')")
    assert "Landlock (Function not implemented" in caught.value.cause.replace("[Errno 38] ", "")
    assert 'isolation = "best"' in caught.value.fix
    ended = run("print('ran')", full=False)
    assert ended.stdout == b"ran\n"
    assert list(ended.missing) == ["Landlock"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_refuses_listed_calls(machine: str) -> None:
    def verdict(number: int, flags: int = 0, architecture: int | None = None) -> int:
        """Return the filter's answer to a system call, by a small interpreter of its six instructions."""
        data = struct.pack(
            "=IIQQ", number, confine._AUDIT_ARCH[machine] if architecture is None else architecture, 0, flags
        )
        steps, at, value = confine._filter(machine), 0, 0
        while True:
            code, yes, no, operand = steps[at]
            at += 1
            match code:
                case confine._LOAD:
                    (value,) = struct.unpack_from("=I", data, operand)
                case confine._RETURN:
                    return operand
                case confine._EQUAL:
                    at += yes if value == operand else no
                case confine._AT_LEAST:
                    at += yes if value >= operand else no
                case confine._ANY_BIT:
                    at += yes if value & operand else no

    refused, allowed, killed = 0x00050001, 0x7FFF0000, 0x80000000
    assert {verdict(number) for number in (*confine._REFUSED[machine], *confine._COMMON)} == {refused}
    assert verdict(1) == allowed
    assert verdict(confine._CLONE[machine], 0x01200011) == allowed
    assert verdict(confine._CLONE[machine], confine.CLONE_NEWUSER) == refused
    assert verdict(435) == 0x00050026  # ENOSYS
    assert verdict(1 | 0x40000000) == refused
    assert verdict(1, architecture=0x40000003) == killed


def test_this_machine_has_a_list() -> None:
    assert platform.machine() in confine._REFUSED


def test_tasks_of_our_own_are_counted() -> None:
    assert confine.own_tasks() >= 1


def test_the_harness_answers_with_values() -> None:
    assert harness.value_of("x + 1", {"x": 2}, 5.0) == ["value", "3"]
    assert harness.value_of("nothing", {}, 5.0) == ["failed", "NameError"]
