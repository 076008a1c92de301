"""`ChatTemplate`: where messages go, for templates as models bring them."""

from __future__ import annotations

import pytest
from making.random_gguf import CHATML

from edge.errors import ModelError
from edge.runtimes.generation.prompt import ChatTemplate

pytest.importorskip("jinja2")

NO_SYSTEM = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}
{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}[{{ message['role'] }}] {{ message['content'] | trim }}
{% endfor %}{% if add_generation_prompt %}[model] {% endif %}"""


def test_conversation() -> None:
    parts = ChatTemplate(CHATML).render(["system", "user", "assistant", "user"])
    assert parts == [
        "<|im_start|>system\n", 0, "<|im_end|>\n<|im_start|>user\n", 1, "<|im_end|>\n<|im_start|>assistant\n", 2,
        "<|im_end|>\n<|im_start|>user\n", 3, "<|im_end|>\n<|im_start|>assistant\n",
    ]  # fmt: skip


def test_system_message_goes_before_the_question_where_the_template_refuses_it() -> None:
    parts = ChatTemplate(NO_SYSTEM, bos="<s>").render(["system", "user"])
    assert parts == ["<s>[user] ", 0, "\n\n", 1, "\n[model] "]


def test_system_message_goes_before_the_question_where_the_template_drops_it() -> None:
    template = "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert ChatTemplate(template).render(["system", "user"]) == ["user: ", 0, "\n\n", 1, "\n"]


def test_settings_and_functions_of_transformers() -> None:
    template = (
        "{% for message in messages %}{% if loop.index0 == 5 %}{% break %}{% endif %}{{ message.content }}{% endfor %}"
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
        "{{ {'a': 'é'} | tojson }}{{ strftime_now('%Y') | length }}{{ eos_token }}"
    )
    assert ChatTemplate(template, eos="</s>").render(["user"]) == [0, '<think></think>{"a": "é"}4</s>']
    assert ChatTemplate(template, thinking=True).render(["user"]) == [0, '{"a": "é"}4']


def test_a_model_without_template_reads_plain_text() -> None:
    assert ChatTemplate(None).render(["system", "user"]) == [0, "\n\n", 1, "\n\n"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "does not give every message once"),
        ("{{ messages[1].content }}", "does not give every message once"),
        ("{{ raise_exception('no') }}", r"fails \(no\)"),
        ("{{ messages.nothing.content }}", "fails"),
        ("{{ 1 // 0 }}", "fails"),
        # The reason for the sandbox: a template comes with a file from anywhere.
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}{{ messages.append(1) }}", "fails"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "fails"),
    ],
)
def test_templates_that_cannot_be_used(template: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ChatTemplate(template).render(["user", "assistant", "user"])


def test_template_that_is_no_jinja() -> None:
    with pytest.raises(ModelError, match="not valid Jinja"):
        ChatTemplate("{% for m in messages %}")
