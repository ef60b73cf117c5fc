from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from rollcast.runtime.config import ConfigModel, describe, load_config, override, parse_config, read_toml
from rollcast.runtime.errors import ConfigError


class Inner(ConfigModel):
    deadline_s: float = Field(3.0, gt=0.0)
    """Seconds until something."""


class Outer(ConfigModel):
    name: str = "x"
    """A name."""
    inner: Inner = Inner()
    """A section."""


def test_unknown_key_names_the_close_one() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"inner": {"deadline": 1.0}}, Outer, source="file.toml")
    assert "unknown key 'inner.deadline'" in str(caught.value)
    assert "'deadline_s'" in str(caught.value)
    assert caught.value.exit_code == 64


def test_every_problem_is_listed() -> None:
    with pytest.raises(ConfigError, match="2 problems"):
        parse_config({"name": 3, "inner": {"deadline_s": -1.0}}, Outer, source="file.toml")


def test_missing_file_and_bad_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no configuration file"):
        read_toml(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("a = = 1")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(bad, Outer)


def test_load(tmp_path: Path) -> None:
    file = tmp_path / "good.toml"
    file.write_text('name = "y"\n[inner]\ndeadline_s = 5\n')
    assert load_config(file, Outer) == Outer(name="y", inner=Inner(deadline_s=5.0))


def test_a_folder_and_a_setting_without_a_value_say_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match="is a folder") as caught:
        read_toml(tmp_path)
    assert caught.value.fix == "give a file: it has run.toml"
    with pytest.raises(ConfigError) as caught:
        override({}, ["inner.deadline_s"])
    assert caught.value.fix == "write inner.deadline_s=VALUE"


def test_override_reads_toml_values_and_leaves_the_original() -> None:
    original = {"inner": {"deadline_s": 1.0}}
    changed = override(original, ["inner.deadline_s=2.5", "name=plain text", 'other.list=["a"]'])
    assert changed == {"inner": {"deadline_s": 2.5}, "name": "plain text", "other": {"list": ["a"]}}
    assert original == {"inner": {"deadline_s": 1.0}}


@pytest.mark.parametrize("assignment", ["name", "=3", "name.deeper=1"])
def test_override_refuses(assignment: str) -> None:
    with pytest.raises(ConfigError):
        override({"name": "x"}, [assignment])


@given(st.text(max_size=40))
def test_override_never_breaks_otherwise(text: str) -> None:
    assert set(override({}, [f"key={text}"])) == {"key"}


def test_describe_expands_sections() -> None:
    assert describe(Outer) == [
        ("name", '"x"', "A name."),
        ("inner.deadline_s", "3.0", "Seconds until something."),
    ]


class Circle(ConfigModel):
    kind: Literal["circle"]
    """Selects circles."""
    radius_m: float = 1.0
    """Radius in metres."""


class Sum(ConfigModel):
    kind: Literal["sum"] = "sum"
    """Selects sums."""
    parts: tuple[Circle | Sum, ...] = ()
    """Shapes that are added."""


class Drawing(ConfigModel):
    shape: Annotated[Circle | Sum, Field(discriminator="kind")] = Sum()
    """What is drawn."""
    named: dict[str, Inner] = Field(default_factory=dict)
    """Waits by name."""


def test_describe_names_kinds_lists_and_names_of_ones_own() -> None:
    assert [(key, default) for key, default, _ in describe(Drawing)] == [
        ("shape", '{"kind": "sum", "parts": []}'),
        ("shape{circle}.kind", '"required"'),
        ("shape{circle}.radius_m", "1.0"),
        ("shape{sum}.kind", '"sum"'),
        ("shape{sum}.parts", "[]"),
        ("shape{sum}.parts[]{circle}", "null"),
        ("shape{sum}.parts[]{sum}", "null"),
        ("named", "{}"),
        ("named.NAME.deadline_s", "3.0"),
    ]


class Settings(ConfigModel):
    drawing: Drawing = Drawing()
    """The drawing."""
    colour: Literal["red", "blue"] = "red"
    """Colour of lines."""
    count: int = 1
    """Copies."""
    unit: str = Field("mm", min_length=1)
    """Unit of lengths."""
    file: Path | None = None
    """File of points."""
    name: str = Field("", pattern=r"^[a-z]*$")
    """Title."""
    inner: Inner = Inner()
    """Waits."""


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"colour": "rad"}, "colour cannot be 'rad' (did you mean 'red'?); choose 'red' or 'blue'"),
        ({"count": "many"}, "count must be a whole number"),
        ({"file": 5}, 'file must be a path: "..."'),
        ({"name": 5}, 'name must be a text: "..."'),
        ({"unit": ""}, "unit must not be empty"),
        ({"name": "KEY"}, "name cannot be 'KEY'; it must have the form ^[a-z]*$"),
        ({"drawing": {"shape": {"kind": "sum", "parts": "x"}}}, 'drawing.shape.parts must be a list: ["...", "..."]'),
        ({"drawing": {"named": 1}}, "drawing.named must be a table: { ... }"),
        ({"deadline_s": 1.0}, "unknown key 'deadline_s' (did you mean 'inner.deadline_s'?)"),
        ({"inner": {"deadlines": 1.0}}, "unknown key 'inner.deadlines' (did you mean 'deadline_s'?)"),
        (
            {"drawing": {"shape": {"kind": "circel"}}},
            "drawing.shape.kind cannot be 'circel' (did you mean 'circle'?); choose one of circle, sum",
        ),
        (
            {"drawing": {"shape": {"kind": "circle", "radius_m": "wide"}}},
            "drawing.shape.radius_m must be a number",
        ),
        (
            {"drawing": {"shape": {"kind": "sum", "radius_m": 1.0}}},
            "unknown key 'drawing.shape.radius_m' (the kind is 'sum'; it is a key of 'circle')",
        ),
        (
            {"drawing": {"shape": {"kind": "circle", "radios_m": 1.0}}},
            "unknown key 'drawing.shape.radios_m' (did you mean 'radius_m'?)",
        ),
        ({"shape": {"kind": "sum"}}, "unknown key 'shape' (did you mean 'drawing.shape'?)"),
    ],
)
def test_each_problem_is_a_sentence(values: dict[str, object], cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(values, Settings, source="a.toml")
    assert (caught.value.what, caught.value.cause) == ("a.toml: 1 problem in the configuration", cause)
