from __future__ import annotations

import pytest

from rollcast.cli.start.error_page import heading_asked, section
from rollcast.runtime import errors
from rollcast.runtime.errors import ConfigError, RollcastError


@pytest.mark.parametrize(
    ("subject", "heading"),
    [
        ("RC302", "RC302"),
        ("error rc302", "RC302"),
        ("status 77", "Exit status 77"),
        ("exit status 0", "Exit status 0"),
        ("peer RC302", None),
        ("step 40", None),
        ("", None),
    ],
)
def test_codes_and_statuses_are_told_from_other_subjects(subject: str, heading: str | None) -> None:
    assert heading_asked(subject) == heading


def test_each_error_and_its_exit_status_have_a_section() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, RollcastError)]
    for cls in classes:
        assert section(cls.code).startswith(f"{cls.code} {cls.__name__}\n\n")
        assert section(f"Exit status {cls.exit_code}").startswith(f"Exit status {cls.exit_code}\n")


def test_links_to_pages_that_are_not_installed_become_their_words() -> None:
    assert "(installing)" in section("RC105")
    assert "](" not in section("RC105")


@pytest.mark.parametrize(("heading", "known"), [("RC3", "RC302 WrongKey"), ("Exit status 7", "Exit status 77")])
def test_an_unknown_one_is_refused_with_those_that_exist(heading: str, known: str) -> None:
    with pytest.raises(ConfigError, match=f"no {heading}") as refused:
        section(heading)
    assert known in refused.value.fix
