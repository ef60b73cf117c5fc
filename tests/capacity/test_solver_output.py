from __future__ import annotations

import ctypes
import os

import pytest

from capacity.solver_output import off_stdout


def test_what_c_code_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    libc = ctypes.CDLL(None)
    print("before")
    with off_stdout():
        libc.puts(b"noise of C")
        os.write(1, b"noise of a descriptor\n")
    print("after")
    out, err = capfd.readouterr()
    assert out == "before\nafter\n"
    assert "noise of C" in err
    assert "noise of a descriptor" in err


def test_standard_output_comes_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), off_stdout():
        raise RuntimeError
    print("after")
    assert capfd.readouterr().out == "after\n"
