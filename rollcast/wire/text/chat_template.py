"""Render chat templates: the jinja text that a published model was trained to expect around a question.

A template is a program from the model's folder. It runs in jinja's sandbox, which gives it no attribute of Python's own
and no way to change its arguments; its output is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rollcast.runtime.errors import MissingExtra, ModelError, TaskError
from rollcast.runtime.install import install_command

TEMPLATE_LENGTH_MAX = 1 << 20
RENDERED_LENGTH_MAX = 4 << 20

#: One message: its role and content, and for templates with tools their calls.
Message = Mapping[str, Any]
#: One tool as chat templates take it: {"type": "function", "function": {"name", "description", "parameters"}}.
Tool = Mapping[str, Any]


class ChatTemplate:
    """A chat template with its constant arguments.

    Raises:
        ModelError: it is no template.
        MissingExtra: jinja2 is not installed.
    """

    def __init__(self, source: str, arguments: Mapping[str, Any]) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise MissingExtra(
                "a chat template needs jinja2", cause=str(error), fix=install_command("coordinator")
            ) from None
        if len(source) > TEMPLATE_LENGTH_MAX:
            raise ModelError(f"a chat template of {len(source)} characters is too long")
        # The same settings as in transformers, so that whitespace comes out the same.
        extensions = [loopcontrols, _answer_marks()]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._arguments = dict(arguments)
        self._error = TemplateError
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelError("the model's chat template cannot be read", cause=str(error)[:300]) from None

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, answer_begins: bool = True) -> str:
        """Return the text of a conversation, up to where the model's answer begins.

        Most templates write the definitions of the tools into the system message.

        Args:
            answer_begins: whether an answer follows; False: the conversation ends with the last message.

        Raises:
            TaskError: the template refuses these messages, fails, or writes too much.
        """
        pieces: list[str] = []
        length = 0
        given: dict[str, Any] = {"messages": [dict(one) for one in messages], "add_generation_prompt": answer_begins}
        given["tools"] = [dict(one) for one in tools] or None
        try:
            for piece in self._template.generate(**self._arguments, **given):
                pieces.append(piece)
                length += len(piece)
                if length > RENDERED_LENGTH_MAX:
                    raise TaskError(f"the chat template writes more than {RENDERED_LENGTH_MAX} characters")
        except (
            self._error,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise TaskError("the model's chat template fails", cause=f"{type(error).__name__}: {error}"[:300]) from None
        return "".join(pieces)


def _answer_marks() -> Any:
    """Return jinja's extension for `{% generation %}`, with which templates mark the model's own turns for training.

    What is marked is rendered like all else, as transformers does where the marks are not asked for.
    """
    from jinja2.ext import Extension

    class AnswerMarks(Extension):
        def __init__(self, environment: Any) -> None:
            super().__init__(environment)
            self.tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return AnswerMarks


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)
