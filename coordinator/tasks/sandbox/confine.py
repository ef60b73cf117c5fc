"""Wrap the kernel's means to confine a process: namespaces, Landlock, seccomp, resource limits.

Each function raises OSError if the kernel lacks or forbids it. Linux only; no privileges are needed. child.py calls
these between fork and exec, so this module imports only light parts of the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Iterable

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP = 0x02000000
NOBODY = 65534  # user and group id of ``nobody`` by convention; it owns no files
_PRIVATE, _NOSUID_NODEV = 1 << 18 | 1 << 14, 2 | 4  # MS_PRIVATE | MS_REC, MS_NOSUID | MS_NODEV

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def die_with_parent() -> None:
    """Send this process SIGKILL when its parent ends. A change of user undoes this."""
    _check(_libc.prctl(1, 9, 0, 0, 0))  # PR_SET_PDEATHSIG


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, so that it can reap them."""
    _check(_libc.prctl(36, 1, 0, 0, 0))  # PR_SET_CHILD_SUBREAPER


def show_to_others(paths: Iterable[str]) -> None:
    """Make folders that only root can reach visible to others, for this process and its children; needs root."""
    hidden = {path: folder for path in paths if (folder := _hidden_by(path)) is not None}
    if not hidden:
        return
    _check(_libc.unshare(CLONE_NEWNS))
    held = {path: os.open(path, os.O_PATH) for path in hidden}  # as our own mount namespace has them
    _check(_libc.mount(b"none", b"/", None, _PRIVATE, None))
    for folder in sorted(set(hidden.values())):
        _check(_libc.mount(b"none", folder.encode(), b"tmpfs", _NOSUID_NODEV, b"size=64k,mode=755"))
    for path, descriptor in held.items():
        os.makedirs(path, 0o755, exist_ok=True)
        _check(_libc.mount(f"/proc/self/fd/{descriptor}".encode(), path.encode(), None, 1 << 12 | 1 << 14, None))
        os.close(descriptor)


def _hidden_by(path: str) -> str | None:
    """Return the first folder on the way to ``path`` that others may not enter; None if there is none."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        folder = "/" + "/".join(parts[:depth])
        try:
            if not os.stat(folder).st_mode & 0o001:
                return folder if depth < len(parts) else None
        except FileNotFoundError:
            return None
    return None


def become_nobody() -> None:
    """Give up root, which resource limits and file permissions do not restrict."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # Otherwise /proc/self belongs to root, and the user namespace's maps cannot be written.
    _check(_libc.prctl(4, 1, 0, 0, 0))  # PR_SET_DUMPABLE


def enter_namespaces() -> None:
    """Enter new user, network (empty), process, IPC, name and mount namespaces. The next child is process 1 of them."""
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS
    _check(_libc.unshare(flags))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount_memory(folder: str, size_bytes: int) -> None:
    """Mount an empty folder in memory over ``folder``, visible in this mount namespace only."""
    _check(_libc.mount(b"none", b"/", None, _PRIVATE, None))
    options = f"size={size_bytes},nr_inodes=4096,mode=700".encode()
    _check(_libc.mount(b"none", folder.encode(), b"tmpfs", _NOSUID_NODEV, options))


# ---------------------------------------------------------------- Landlock (linux/landlock.h)

_EXECUTE, _WRITE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_FILE_RIGHTS = _EXECUTE | _WRITE | _READ_FILE | _TRUNCATE
_RIGHTS_BY_ABI = (0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)


def no_new_privileges() -> None:
    """Make the set-user-id bit ineffective, which Landlock and seccomp require."""
    _check(_libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Forbid reading, running and writing everything outside these folders and files (Landlock)."""
    abi = _check(_libc.syscall(444, None, 0, 1))  # landlock_create_ruleset, LANDLOCK_CREATE_RULESET_VERSION
    handled = _RIGHTS_BY_ABI[min(abi, len(_RIGHTS_BY_ABI) - 1)]
    attribute = struct.pack("=QQQ", handled, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)  # files, TCP, signals
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _check(_libc.syscall(444, attribute, size, 0))
    try:
        for path in readable:
            _allow(rules, path, handled & (_EXECUTE | _READ_FILE | _READ_DIR))
        for path in writable:
            _allow(rules, path, handled)
        _check(_libc.syscall(446, rules, 0))  # landlock_restrict_self
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        _check(_libc.syscall(445, rules, 1, struct.pack("=Qi", rights, beneath), 0))  # landlock_add_rule
    finally:
        os.close(beneath)


# ---------------------------------------------------------------- seccomp (linux/filter.h, linux/seccomp.h)

#: Calls refused on every machine, where they have the same numbers: pidfd_send_signal, io_uring_*, open_tree,
#: move_mount, fs*, pidfd_open, pidfd_getfd, mount_setattr, memfd_secret.
_COMMON = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 442, 447)
_REFUSED = {
    # socket ptrace process_vm_{readv,writev} unshare mount umount2 pivot_root setns keyctl add_key request_key bpf
    # perf_event_open userfaultfd {,f}init_module delete_module kexec_load reboot swapon swapoff open_by_handle_at
    # setsid setpgid (a program stays in the process group that is killed)
    "x86_64": (
        *(41, 101, 310, 311, 272, 165, 166, 155, 308, 250, 248, 249, 321, 298, 323, 175, 313, 176, 246, 169, 167, 168),
        *(304, 112, 109),
    ),
    "aarch64": (
        *(198, 117, 270, 271, 97, 40, 39, 41, 268, 219, 217, 218, 280, 241, 282, 105, 273, 106, 104, 142, 224, 225),
        *(265, 157, 154),
    ),
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def refuse_calls() -> None:
    """Let system calls fail with EPERM that lead to a network, out of the namespaces, or into other processes."""
    machine = platform.machine()
    if machine not in _REFUSED:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    steps = _filter(machine)
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(steps), ctypes.addressof(buffer))
    _check(_libc.prctl(22, 2, program, 0, 0))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _filter(machine: str) -> list[tuple[int, int, int, int]]:
    def refuse(with_errno: int) -> tuple[int, int, int, int]:
        return (_RETURN, 0, 0, 0x00050000 | with_errno)

    steps = [
        (_LOAD, 0, 0, 4),  # the machine that the call is made for
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the call's number
        (_AT_LEAST, 0, 1, 0x40000000),  # the x32 calls of x86_64
        refuse(errno.EPERM),
    ]
    for number in (*_REFUSED[machine], *_COMMON):
        steps += [(_EQUAL, 0, 1, number), refuse(errno.EPERM)]
    steps += [(_EQUAL, 0, 1, _CLONE3), refuse(errno.ENOSYS)]  # its flags are in memory; libc falls back to clone
    steps += [(_EQUAL, 0, 3, _CLONE[machine]), (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _NAMESPACES), refuse(errno.EPERM)]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


# ---------------------------------------------------------------- resource limits


def limit(cpu_s: int, memory_bytes: int, file_bytes: int, processes: int) -> None:
    """Forbid core dumps, allow few descriptors, and set these limits, which cannot be raised again."""
    for which, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(which)
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (value, value))


def own_tasks() -> int:
    """Count this user's processes and threads: without a user namespace the limit counts them all."""
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count
