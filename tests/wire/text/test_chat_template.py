from __future__ import annotations

import pytest

from rollcast.runtime.errors import ModelError, TaskError
from rollcast.wire.text import chat_template
from rollcast.wire.text.chat_template import ChatTemplate

QUESTION = [{"role": "user", "content": "2 + 2?"}]
TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + message.content | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}"""


def test_messages_are_rendered_with_the_fixed_arguments() -> None:
    assert ChatTemplate(TEMPLATE, {"bos_token": "<s>"}).render(QUESTION) == "<s><|user|>2 + 2?<|end|><|assistant|>"
    quiet = ChatTemplate(TEMPLATE, {"bos_token": "", "enable_thinking": False})
    assert quiet.render(QUESTION).endswith("<|assistant|><think></think>")


def test_marks_of_the_models_own_turns_leave_no_trace() -> None:
    marked = "{% for one in messages %}{% generation %}{{ one.content }}!{% endgeneration %}{% endfor %}"
    assert ChatTemplate(marked, {}).render(QUESTION) == "2 + 2?!"


def test_json_is_written_as_it_is() -> None:
    assert ChatTemplate("{{ messages[0] | tojson }}", {}).render([{"content": "é<b>"}]) == '{"content": "é<b>"}'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system message') }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append({}) }}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
)
def test_a_template_that_breaks_the_rules_is_a_task_error(source: str) -> None:
    with pytest.raises(TaskError, match="chat template fails"):
        ChatTemplate(source, {}).render(QUESTION)


def test_a_templates_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDERED_LENGTH_MAX", 100)
    with pytest.raises(TaskError, match="more than 100"):
        ChatTemplate("{% for i in range(1000) %}xx{% endfor %}", {}).render(QUESTION)


@pytest.mark.parametrize(("source", "message"), [("{% if %}", "cannot be read"), ("x" * ((1 << 20) + 1), "too long")])
def test_malformed_templates_are_refused(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ChatTemplate(source, {})
