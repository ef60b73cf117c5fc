from __future__ import annotations

from pathlib import Path

from rollcast.runtime import errors
from rollcast.runtime.errors import PortInUse, RollcastError, meanings_of

DOCS = Path(__file__).parents[2] / "docs" / "errors.md"


def every_class() -> list[type[RollcastError]]:
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, RollcastError)]


def test_message_has_code_cause_and_fix() -> None:
    error = PortInUse("cannot listen on 127.0.0.1:7401", cause="another process listens there", fix="stop it")
    assert str(error).splitlines() == [
        "RC102: cannot listen on 127.0.0.1:7401",
        "  cause: another process listens there",
        "  fix:   stop it",
    ]


def test_codes_are_unique_and_documented() -> None:
    text = DOCS.read_text()
    codes = [cls.code for cls in every_class()]
    assert len(set(codes)) == len(codes)
    for cls in every_class():
        assert f"## {cls.code} {cls.__name__}" in text
        if cls is not RollcastError:
            assert f"| {cls.code} | {cls.__name__} | {cls.exit_code} |" in text
            assert f"{cls.__name__:<22} {cls.code}  exit {cls.exit_code}" in (errors.__doc__ or "")


def test_a_status_names_its_errors() -> None:
    assert meanings_of(74) == "RC401 StoreError, RC403 LedgerDamaged, RC601 CheckpointError"
    assert meanings_of(1) == ""


def test_every_exit_status_has_its_section_and_names_its_codes() -> None:
    sections = DOCS.read_text().split("## Exit status ")[1:]
    texts = {int(section.split()[0]): section for section in sections}
    assert {0, 130} <= texts.keys()
    for cls in every_class():
        assert "**Meaning.**" in texts[cls.exit_code]
        assert "**What to" in texts[cls.exit_code]
        assert cls.code in texts[cls.exit_code]
