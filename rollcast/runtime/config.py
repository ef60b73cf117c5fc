"""Read TOML configuration into one frozen pydantic model per process; unknown keys are refused."""

from __future__ import annotations

import ast
import copy
import difflib
import functools
import inspect
import itertools
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from rollcast.runtime.errors import ConfigError

ConfigT = TypeVar("ConfigT", bound=BaseModel)

#: Names of other trainers for a key -> the key's name here.
_OTHER_NAMES = {
    "lr": "optimiser.learning_rate",
    "batch_size": "groups_per_step",
    "group_size": "samples_per_group",
    "num_generations": "samples_per_group",
    "max_steps": "steps",
    "max_tokens": "new_tokens_max",
    "max_new_tokens": "new_tokens_max",
    "max_prompt_length": "prompt_tokens_max",
    "beta": "kl_coefficient",
    "kl_coef": "kl_coefficient",
    "loss": "algorithm",
    "gradient_checkpointing": "remat",
}
_ELSEWHERE_SHOWN = 3  # keys of other sections that a message names
_TAG = re.compile(r"\{([^}]+)\}")  # in what `_sections` yields: the kind of a section
_OF_MANY = re.compile(r"[{\[]|\bNAME\b")  # in keys of sections that have kinds, or of which there are several


def _checked_network(text: str) -> str:
    ip_network(text, strict=False)
    return text


IpNetworkText = Annotated[str, AfterValidator(_checked_network)]
"""A network of IP addresses, such as 203.0.113.0/24."""


class ConfigModel(BaseModel):
    """Base of every configuration class: frozen, without unknown keys, described by the docstrings of its fields.

    ``describe`` reads these from the sources. pydantic can as well, but parses every class when it is imported, which
    took a tenth of a coordinator's start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        ConfigError: the file is missing, cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors of Windows add a byte order mark
    except FileNotFoundError:
        raise ConfigError(
            f"there is no configuration file {path}",
            cause="" if path.is_absolute() else f"there is none in {Path.cwd()}",
            fix="correct the path; `rollcast init` writes a configuration to begin with, and a donor's machine gets its"
            " own from `rollcast peer join INVITE`",
        ) from None
    except IsADirectoryError:
        files = sorted(file.name for file in path.glob("*.toml"))[:_ELSEWHERE_SHOWN]
        raise ConfigError(
            f"{path} is a folder", fix=f"give a file: it has {', '.join(files)}" if files else "give a TOML file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}", cause=str(error), fix="check the file and its permissions") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML", cause=str(error), fix="correct the line named above") from None


def parse_config(values: Mapping[str, Any], cls: type[ConfigT], *, source: str) -> ConfigT:
    """Validate a table of values. ``source`` names its origin in messages.

    Raises:
        ConfigError: a key is unknown or a value is out of range; every problem is listed.
    """
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        problems = [_explain(problem, cls) for problem in error.errors()]
        raise ConfigError(
            f"{source}: {len(problems)} {'problem' if len(problems) == 1 else 'problems'} in the configuration",
            cause="; ".join(problems),
            fix="correct the keys named above; `rollcast config show` lists every key with its meaning",
        ) from None


def load_config(path: Path, cls: type[ConfigT]) -> ConfigT:
    """Read and validate one process's configuration file (see read_toml and parse_config)."""
    return parse_config(read_toml(path), cls, source=str(path))


def dump_json(config: BaseModel) -> str:
    """Return the resolved configuration as indented JSON; the values of SecretStr fields are replaced by stars."""
    return json.dumps(config.model_dump(mode="json"), indent=2)


def plain_values(config: BaseModel, *, exclude_none: bool = False) -> dict[str, Any]:
    """Return the configuration as JSON values for a file that only its owner can read: secrets are in it."""

    def plain(value: object) -> str:
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

    values: dict[str, Any] = json.loads(json.dumps(config.model_dump(exclude_none=exclude_none), default=plain))
    return values


def _explain(problem: Any, cls: type[BaseModel]) -> str:
    place, context = _place(cls, problem["loc"]), problem.get("ctx", {})
    location = place.key
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key {location!r}{_meant_key(cls, place)}"
        case "union_tag_invalid":
            kinds = context["expected_tags"].replace("'", "")
            close = difflib.get_close_matches(str(context["tag"]), kinds.split(", "), n=1)
            key = context["discriminator"].strip("'")
            return f"{location}.{key} cannot be {context['tag']!r}{_did_you_mean(close)}; choose one of {kinds}"
        case "literal_error":
            close = difflib.get_close_matches(str(problem["input"]), re.findall("'(.*?)'", context["expected"]), n=1)
            return f"{location} cannot be {problem['input']!r}{_did_you_mean(close)}; choose {context['expected']}"
        case "string_too_short" if context["min_length"] == 1:
            return f"{location} must not be empty"
        case "string_pattern_mismatch":
            return f"{location} cannot be {problem['input']!r}; it must have the form {context['pattern']}"
        case "missing":
            return f"{location} must be given"
        case kind:
            return f"{location} {_RULES.get(kind) or _sentence(problem['msg'])}"


_RULES = {
    "tuple_type": 'must be a list: ["...", "..."]',
    "list_type": 'must be a list: ["...", "..."]',
    "dict_type": "must be a table: { ... }",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "path_type": 'must be a path: "..."',
    "string_type": 'must be a text: "..."',
}


def _sentence(message: str) -> str:
    """Return a message of pydantic as the end of a sentence that begins with the key."""
    if message.startswith("Input should be "):
        return f"must be {message.removeprefix('Input should be ')}"
    if message.startswith("Input should "):
        return f"must {message.removeprefix('Input should ')}"
    return f"is refused: {message.removeprefix('Value error, ').removeprefix('Assertion failed, ')}"


def _did_you_mean(close: Sequence[str]) -> str:
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a problem is.

    Attributes:
        key: dotted key, as a file has it.
        kind: kind of the key's section; empty if that has no kinds.
        section: class of the section; None if it is not one of ours.
        kinds: classes of the section by kind.
    """

    key: str
    kind: str
    section: type[BaseModel] | None
    kinds: Mapping[str, type[BaseModel]]


def _place(cls: type[BaseModel], location: Sequence[Any]) -> _Place:
    """Read pydantic's path of a key, which names the kind of a section as if it were a section of its own."""
    names: list[str] = []
    section: type[BaseModel] | None = cls
    kind, kinds = "", dict[str, type[BaseModel]]()
    for part, is_last in ((part, number == len(location)) for number, part in enumerate(location, start=1)):
        if part in kinds and not kind:
            section, kind = kinds[part], part
            continue
        names.append(str(part))
        if isinstance(part, int) or is_last:
            continue
        field = section.model_fields.get(part) if section is not None else None
        found = list(_sections(field.annotation)) if field is not None else []
        kind, kinds = "", {tag[1]: one for suffix, one in found if (tag := _TAG.search(suffix))}
        section = found[0][1] if len(found) == 1 else None
    return _Place(".".join(names), kind, section, kinds)


def _meant_key(cls: type[BaseModel], place: _Place) -> str:
    """Return in brackets a key of the same section with a similar name, or else where the name is a key."""
    typed = place.key.rpartition(".")[2]
    name = _OTHER_NAMES.get(typed, typed)
    if name == typed and (
        close := difflib.get_close_matches(name, place.section.model_fields if place.section else (), n=1)
    ):
        return _did_you_mean(close)
    if having := [kind for kind, one in place.kinds.items() if name in one.model_fields]:
        return f" (the kind is {place.kind!r}; it is a key of {', '.join(map(repr, having))})"
    keys = [key for key, _, _ in describe(cls) if not _OF_MANY.search(key)]
    elsewhere = [key for key in keys if f".{key}".endswith(f".{name}")]
    sections = dict.fromkeys(f"{key.partition(f'.{name}.')[0]}.{name}" for key in keys if f".{name}." in key)
    return _did_you_mean([*elsewhere, *sections][:_ELSEWHERE_SHOWN])


def override(values: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return a table with ``section.key=value`` assignments applied. A value is read as TOML, else as plain text.

    Raises:
        ConfigError: an assignment has no ``=``, or goes through a key that is not a table.
    """
    changed = copy.deepcopy(values)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path:
            raise ConfigError(f"the setting {assignment!r} has no value", fix=f"write {path.strip() or 'KEY'}=VALUE")
        *sections, key = path.strip().split(".")
        table = changed
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{section!r} in {path!r} is not a section", fix="check the dots in the key")
        table[key] = _toml_value(text)
    return changed


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def describe(cls: type[BaseModel], *, prefix: str = "") -> list[tuple[str, str, str]]:
    """Return every key of a configuration class as (dotted key, default as JSON, meaning).

    A key that must be given has the default "required". Keys of a section that has several kinds begin with
    `section{kind}.`, those of a list of sections with `section[].`, and those of sections with names of one's own with
    `section.NAME.`. Such a section is described where it stands first, and named where it stands again.
    """
    return list(_described(cls, prefix, {}))


def _described(cls: type[BaseModel], prefix: str, known: dict[type, str]) -> Iterator[tuple[str, str, str]]:
    meanings = _meanings(cls)
    for name, field in cls.model_fields.items():
        key, annotation = f"{prefix}{name}", field.annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):  # else its keys have the values
            yield key, _default(field), " ".join(meanings.get(name, "").split())
        for suffix, section in _sections(annotation):
            first = known.get(section)
            if suffix and first is not None:
                yield f"{key}{suffix}", "null", f"Has the keys of {first}."
                continue
            if suffix:
                known[section] = f"{key}{suffix}"
            yield from _described(section, f"{key}{suffix}.", known)


def _meanings(cls: type[BaseModel]) -> dict[str, str]:
    """Return the docstring under each field of a configuration class and of those that it extends."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if issubclass(one, ConfigModel):
            for field, below in itertools.pairwise(_classes_of(one.__module__)[one.__name__].body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = text
    return found


@functools.cache
def _classes_of(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes in a module's source by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return json.dumps("required")
    default = field.get_default(call_default_factory=True)
    return json.dumps(default.model_dump(mode="json") if isinstance(default, BaseModel) else default, default=str)


def _sections(annotation: Any, suffix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the configuration classes that a key may hold, each with what follows the key."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = annotation.model_fields.get("kind")
        kinds = get_args(kind.annotation) if kind is not None else ()
        yield f"{suffix}{{{kinds[0]}}}" if len(kinds) == 1 else suffix, annotation
        return
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        parts = parts[:1]
    elif origin in (list, tuple, Sequence):
        suffix += "[]"
    elif origin in (dict, Mapping):
        parts, suffix = parts[1:], f"{suffix}.NAME"
    elif origin not in (Union, UnionType):
        return
    for part in parts:
        yield from _sections(part, suffix)
