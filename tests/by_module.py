"""Let each worker of `pytest -n` collect a module of tests only when it is about to run them.

pytest-xdist has every worker collect the whole suite before the first test. Here a worker finds one item for each
module, which stands for all tests of it, and these items are what the workers are given, so that tests begin at once;
the processor time of three workers is the same. A worker then collects the module, chooses among its tests as `-k`,
`-m` and ids on the command line demand, and runs them. The module's fixtures are set up once, as with
``--dist loadfile``.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Generator, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

#: Tests with these markers start processes, browsers or whole fleets: seconds to minutes each. So may those with a
#: timeout of their own of three digits or more.
_LONG = re.compile(r"mark\.(e2e|browser|sim)\b|mark\.timeout\(\d{3}")


class LaterModule(pytest.File):
    """A module of tests that is not imported yet; it has one item."""

    def collect(self) -> Iterable[pytest.Item]:
        yield WholeModule.from_parent(self, name="all")


class WholeModule(pytest.Item):
    """All tests of a module. They are run in its place, each with a report of its own."""

    def runtest(self) -> None:
        raise AssertionError("tests are run in its place")


class ByModule:
    """The plugin of one worker."""

    def __init__(self, config: pytest.Config) -> None:
        #: The tests that the command line names, by their module; no entry for a module that is run as a whole.
        self._named: dict[Path, set[str]] = {}
        whole = {_path(config, argument) for argument in config.args if "::" not in argument}
        for argument in config.args:
            path, _, name = argument.partition("::")
            if name and _path(config, path) not in whole:
                self._named.setdefault(_path(config, path), set()).add(name)
        config.args[:] = dict.fromkeys(argument.partition("::")[0] for argument in config.args)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> LaterModule:
        return LaterModule.from_parent(parent, path=module_path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Hide whole modules from options such as `-m`, which choose among tests, and run those with long tests first.

        If a module of minutes came last, the other workers would have nothing left to do while it runs.
        """
        modules = [item for item in items if isinstance(item, WholeModule)]
        if not modules:
            return (yield)
        items.clear()
        yield
        items[:] = sorted(modules, key=lambda item: not _LONG.search(item.path.read_text(encoding="utf-8")))
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not isinstance(item, WholeModule):
            return None
        session, tests = item.session, self._tests_of(item)
        if not tests:
            session._setupstate.teardown_exact(nextitem)  # what the module before shares with the one after it
        index = session.items.index(item)
        for test, following in pairwise([*tests, nextitem]):
            assert test is not None
            session.items[index] = test  # pytest-xdist checks that reports are on the item that it sent
            item.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[index] = item
        return True

    def _tests_of(self, whole: WholeModule) -> list[pytest.Item]:
        """Collect the module and return its tests, of those that were asked for."""
        assert whole.parent is not None
        gc.disable()  # nearly all that an import makes stays
        module = pytest.Module.from_parent(whole.parent.parent, path=whole.path)
        tests = [test for test in whole.session.genitems(module) if self._is_named(test)]
        whole.config.hook.pytest_collection_modifyitems(session=whole.session, config=whole.config, items=tests)
        gc.enable()
        return tests

    def _is_named(self, test: pytest.Item) -> bool:
        named, name = self._named.get(test.path), test.nodeid.partition("::")[2]
        return named is None or any(prefix in named for prefix in _prefixes(name))


def _path(config: pytest.Config, argument: str) -> Path:
    return config.invocation_params.dir / argument


def _prefixes(name: str) -> Iterator[str]:
    """Yield what may name a test on the command line: itself, its function without parameters, and its classes."""
    yield name
    function = name.partition("[")[0]
    while function:
        yield function
        function = function.rpartition("::")[0]
