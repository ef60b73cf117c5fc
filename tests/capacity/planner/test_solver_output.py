from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import ctypes, subprocess
from capacity.solver_output import c_prints_to_stderr

libc = ctypes.CDLL(None)
print("before", flush=True)
for _ in range(2):
    c_prints_to_stderr()
    libc.puts(b"puts")
    libc.printf(b"printf\\n")
print("after", flush=True)
subprocess.run(["echo", "a child"], check=True)
"""


def test_what_c_code_prints_goes_to_standard_error_and_nothing_else_does() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines() == ["before", "after", "a child"]
    assert ran.stderr.splitlines() == ["puts", "printf"] * 2
