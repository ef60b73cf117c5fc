"""Errors that a person sees: a stable code, what was wrong, why, and how to fix it.

    RollcastError
    ├── ConfigError            RC101  exit 64   a configuration file or option is wrong
    ├── PortInUse              RC102  exit 69   an address cannot be bound
    ├── UnsafeBind             RC103  exit 64   an address beyond loopback without protection
    ├── RunFolderError         RC104  exit 73   a run's or a peer's folder is missing, full or read-only
    ├── MissingExtra           RC105  exit 69   a role's packages are not installed
    ├── MachineUnfit           RC106  exit 69   a machine has too little memory, disk or speed for a run
    ├── ShadowedPackage        RC107  exit 69   another package has the name of one of Rollcast's
    ├── ReleaseMismatch        RC108  exit 76   the run expects another release of Rollcast
    ├── RunOver                RC109  exit 69   the run has ended: nothing about it can be changed any more
    ├── WaitTimedOut           RC201  exit 75   a wait reached its deadline
    ├── NoPeers                RC202  exit 75   no peer is connected that can generate rollouts
    ├── Unreachable            RC203  exit 69   another process cannot be reached
    ├── ProtocolMismatch       RC204  exit 76   the two sides have different protocol versions
    ├── NotDialable            RC205  exit 69   the address that a process advertises cannot be reached
    ├── ClockWrong             RC206  exit 69   this machine's clock is far from the coordinator's
    ├── JoinRefused            RC301  exit 77   an invite is wrong, expired or used up
    ├── WrongKey               RC302  exit 77   a key or certificate is not the expected one
    ├── BadSignature           RC303  exit 76   a signed object does not verify
    ├── CorruptChunk           RC304  exit 76   bytes do not match their signed hash
    ├── MalformedMessage       RC305  exit 76   bytes from the network have the wrong form or values
    ├── ClonedIdentity         RC306  exit 77   another machine uses the same identity at the same time
    ├── NotAllowed             RC307  exit 77   a token is missing or wrong, or its role does not allow the act
    ├── Banned                 RC308  exit 77   the run's operator banned this identity
    ├── RateLimited            RC309  exit 75   a caller sends more than its limit allows
    ├── StoreError             RC401  exit 74   the ledger or a store cannot be read or written
    ├── BackupError            RC402  exit 73   a backup cannot be made, read or restored
    ├── LedgerDamaged          RC403  exit 74   the run has lost or changed what it had stored
    ├── LeadershipLost         RC404  exit 75   another coordinator leads the run
    ├── MigrationError         RC405  exit 73   a run's store cannot be moved between SQLite and PostgreSQL
    ├── RunFormatError         RC406  exit 65   a run was stored in a format that this version cannot continue
    ├── TaskError              RC501  exit 65   a task, its data or a verifier is wrong
    ├── NotScored              RC502  exit 75   the verifiers failed on a completion each time
    ├── CheckpointError        RC601  exit 74   a checkpoint cannot be written or read
    ├── EpochOver              RC602  exit 76   another learner has continued the run
    ├── ModelError             RC603  exit 65   a model's files or its architecture cannot be used
    ├── CacheTooSmall          RC604  exit 69   a rollout does not fit into the engine's memory for keys and values
    ├── NotFinite              RC605  exit 65   training gives numbers that are not finite
    ├── NotProfiled            RC606  exit 75   the learner's steps cannot be profiled now
    ├── ProcessFailed          RC701  exit 70   a process that we started has failed
    ├── DaemonAway             RC702  exit 69   no peer runs from this state folder
    ├── ServiceManager         RC703  exit 69   the system's service manager refuses, or is missing
    ├── PoolError              RC901  exit 65   a pool of workers cannot be read, or nothing in it can be used
    ├── PlanFileError          RC902  exit 65   a file is not a plan of this version of Rollcast
    ├── OffersUnavailable      RC903  exit 69   the list of machines for rent cannot be fetched
    └── ProviderFailed         RC904  exit 69   a provider cannot start, stop or list workers

Exit statuses follow sysexits.h. docs/errors.md has a section for each code; a test keeps the two in step.
"""

from __future__ import annotations

import re

_ERRNO = re.compile(r"\[Errno -?\d+\] ")  # before the system's text, which says the same
_WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class RollcastError(Exception):
    """An error with a fix, for the person who runs the command.

    Args:
        what: what happened, in one sentence.
        cause: why it happened, in one sentence; empty if it is not known.
        fix: what to do about it, in one sentence; empty if nothing helps.
    """

    code = "RC000"
    exit_code = 70

    def __init__(self, what: str, *, cause: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.fix = fix

    @property
    def reason(self) -> str:
        """Return the kind of error as metrics name it: "rate_limited"."""
        return _WORD_STARTS.sub("_", type(self).__name__).lower()

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        if self.cause:
            lines.append(f"  cause: {_ERRNO.sub('', self.cause)}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


def meanings_of(exit_status: int) -> str:
    """Return the errors that end a process with this status, for one that printed no error; empty if none does."""
    return ", ".join(
        f"{cls.code} {cls.__name__}" for cls in RollcastError.__subclasses__() if cls.exit_code == exit_status
    )


def exit_words(status: int) -> str:
    """Return how a process ended; a negative status is the number of the signal that killed it."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


class ConfigError(RollcastError):
    code, exit_code = "RC101", 64


class PortInUse(RollcastError):
    code, exit_code = "RC102", 69


class UnsafeBind(RollcastError):
    code, exit_code = "RC103", 64


class RunFolderError(RollcastError):
    code, exit_code = "RC104", 73


class MissingExtra(RollcastError):
    code, exit_code = "RC105", 69


class MachineUnfit(RollcastError):
    code, exit_code = "RC106", 69


class ShadowedPackage(RollcastError):
    """A package of someone else has the name of one of Rollcast's and would be imported instead of it."""

    code = "RC107"
    exit_code = 69


class ReleaseMismatch(RollcastError):
    code, exit_code = "RC108", 76


class RunOver(RollcastError):
    code, exit_code = "RC109", 69


class WaitTimedOut(RollcastError):
    code, exit_code = "RC201", 75


class NoPeers(RollcastError):
    code, exit_code = "RC202", 75


class Unreachable(RollcastError):
    code, exit_code = "RC203", 69


class ProtocolMismatch(RollcastError):
    code, exit_code = "RC204", 76


class NotDialable(RollcastError):
    code, exit_code = "RC205", 69


class ClockWrong(RollcastError):
    code, exit_code = "RC206", 69


class JoinRefused(RollcastError):
    code, exit_code = "RC301", 77


class WrongKey(RollcastError):
    code, exit_code = "RC302", 77


class BadSignature(RollcastError):
    code, exit_code = "RC303", 76


class CorruptChunk(RollcastError):
    code, exit_code = "RC304", 76


class MalformedMessage(RollcastError):
    code, exit_code = "RC305", 76


class ClonedIdentity(RollcastError):
    code, exit_code = "RC306", 77


class NotAllowed(RollcastError):
    code, exit_code = "RC307", 77


class Banned(RollcastError):
    code, exit_code = "RC308", 77

    @classmethod
    def because(cls, reason: str) -> Banned:
        """Return the error with the operator's ``reason``, in words."""
        return cls("this peer is banned from the run", cause=reason, fix="ask the operator of the run")


class RateLimited(RollcastError):
    code, exit_code = "RC309", 75


class StoreError(RollcastError):
    code, exit_code = "RC401", 74


class BackupError(RollcastError):
    code, exit_code = "RC402", 73


class LedgerDamaged(RollcastError):
    code, exit_code = "RC403", 74


class LeadershipLost(StoreError):
    code, exit_code = "RC404", 75


class MigrationError(RollcastError):
    code, exit_code = "RC405", 73


class RunFormatError(StoreError):
    code, exit_code = "RC406", 65


class TaskError(RollcastError):
    code, exit_code = "RC501", 65


class NotScored(RollcastError):
    code, exit_code = "RC502", 75


class CheckpointError(RollcastError):
    code, exit_code = "RC601", 74


class EpochOver(RollcastError):
    code, exit_code = "RC602", 76


class ModelError(RollcastError):
    code, exit_code = "RC603", 65


class CacheTooSmall(RollcastError):
    code, exit_code = "RC604", 69


class NotFinite(RollcastError):
    code, exit_code = "RC605", 65


class NotProfiled(RollcastError):
    code, exit_code = "RC606", 75


class ProcessFailed(RollcastError):
    code, exit_code = "RC701", 70


class DaemonAway(RollcastError):
    code, exit_code = "RC702", 69


class ServiceManager(RollcastError):
    code, exit_code = "RC703", 69


class PoolError(RollcastError):
    code, exit_code = "RC901", 65


class PlanFileError(RollcastError):
    code, exit_code = "RC902", 65


class OffersUnavailable(RollcastError):
    code, exit_code = "RC903", 69


class ProviderFailed(RollcastError):
    code, exit_code = "RC904", 69
