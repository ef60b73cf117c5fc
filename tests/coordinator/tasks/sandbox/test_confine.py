from __future__ import annotations

import platform
import struct

import pytest

from coordinator.tasks.sandbox import confine


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_is_listed(machine: str) -> None:
    def verdict(number: int, flags: int = 0, architecture: int | None = None) -> int:
        """A filter's answer, by a small interpreter of its six instructions."""
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
