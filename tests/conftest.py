"""Configure the whole suite: examples of property tests, how jax compiles, garbage, and the order of test modules.

Property tests generate the same few examples each time, so that a commit does not fail for a bug of an older one.
`HYPOTHESIS_PROFILE=explore python -m pytest` generates others, and more of them.
"""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

import rollcast  # noqa: F401, before grpc, whose TLS it sets
from rollcast.runtime import logs
from tests.compiling import QUICK

#: Tests with these markers start processes, browsers or whole fleets: seconds to minutes each.
LONG_MARKERS = ("e2e", "browser", "sim")

#: What jax compiles for one test is loaded by the others, in all processes of this run and of later ones: compiling
#: took a third of the suite's processor time. The key of an entry holds the program, jax's version and the flags.
COMPILATION_CACHE = Path(__file__).parents[1] / ".cache" / "compiled-tests"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILATION_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.01")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("XLA_FLAGS", QUICK)

#: Programs do not name the lines that each operation comes from: a seventh of the processor time of tests with jax.
os.environ.setdefault("JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS", "0")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# No deadline: the time of an example depends on the machine's other load.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture
def restored_compilation_cache() -> Iterator[None]:
    """Return to the shared compilation cache after a test that chose another one for its process."""
    from rollcast.policy.compilation import use_compilation_cache  # imports jax, which reads the variables above

    yield
    use_compilation_cache(COMPILATION_CACHE)


@pytest.fixture
def restored_numerics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Return to the former precision and flags of XLA after a test that chose others for its process."""
    import jax

    before = jax.config.jax_default_matmul_precision
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    yield
    jax.config.update("jax_default_matmul_precision", before)


@pytest.fixture(autouse=True)
def _no_log_of_an_earlier_test() -> Iterator[None]:
    """Return to the default logging after a test that configured it, and close the test's log file."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        logs._file.close()


def pytest_configure() -> None:
    """Keep the garbage collector from tracing what collection makes: all of it stays, and there is a million of it.

    Each worker collects every test. The collector took a third of that time, and traced it all again in the tests.
    """
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let one worker after the other import a module of tests.

    All import the same modules in the same order. The first one compiles a module, asserts rewritten, with what it
    imports; the others find the bytecode. All at once, each would compile everything.
    """
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # Python's own cost a tenth of the tests that trace programs
    gc.enable()


def is_long(item: pytest.Item, timeout_s: float) -> bool:
    """Return whether a test is marked as long, or may take longer than the common timeout."""
    own = item.get_closest_marker("timeout")
    return any(map(item.get_closest_marker, LONG_MARKERS)) or (own is not None and own.args[0] > timeout_s)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run modules with long tests first.

    A worker takes whole modules (`--dist loadfile`): if a module of minutes came last, the other workers would have
    nothing left to do while it runs.
    """
    timeout_s = float(config.getini("timeout"))
    long_modules = {item.path for item in items if is_long(item, timeout_s)}
    items.sort(key=lambda item: item.path not in long_modules)
