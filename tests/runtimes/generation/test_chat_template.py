"""`ChatTemplate`: where messages go, for templates as models bring them."""

from __future__ import annotations

import subprocess

import psutil
import pytest
from making.random_gguf import CHATML

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, ModelError
from edge.runtimes.generation.chat_template import ChatTemplate

pytest.importorskip("jinja2")


def budget(nbytes: int = 1 << 30) -> MemoryBudget:
    return MemoryBudget(nbytes, part=True)


NO_SYSTEM = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}
{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}[{{ message['role'] }}] {{ message['content'] | trim }}
{% endfor %}{% if add_generation_prompt %}[model] {% endif %}"""


DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("template", "roles", "parts"),
    [
        (CHATML, "system user assistant user",
         ["<|im_start|>system\n", 0, "<|im_end|>\n<|im_start|>user\n", 1, "<|im_end|>\n<|im_start|>assistant\n", 2,
          "<|im_end|>\n<|im_start|>user\n", 3, "<|im_end|>\n<|im_start|>assistant\n"]),
        (NO_SYSTEM, "system user", ["<s>[user] ", 0, "\n\n", 1, "\n[model] "]),
        (DROPS_SYSTEM, "system user", ["user: ", 0, "\n\n", 1, "\n"]),
        (None, "system user", [0, "\n\n", 1, "\n\n"]),
    ],
    ids=["whole", "refuses the system's", "drops the system's", "plain text"],
)  # fmt: skip
def test_messages_go_where_the_template_has_them(template: str | None, roles: str, parts: list[str | int]) -> None:
    """Where it refuses or drops the system message, this goes before the question."""
    assert ChatTemplate(template, budget(), bos="<s>").render(roles.split()) == parts


def test_settings_and_functions_of_transformers() -> None:
    template = (
        "{% for message in messages %}{% if loop.index0 == 5 %}{% break %}{% endif %}{{ message.content }}{% endfor %}"
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
        "{% generation %}{{ {'a': 'é'} | tojson }}{% endgeneration %}{{ strftime_now('%Y') | length }}{{ eos_token }}"
    )
    assert ChatTemplate(template, budget(), eos="</s>").render(["user"]) == [0, '<think></think>{"a": "é"}4</s>']
    source = f"{{# {'é' * 20_000} #}}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"
    assert ChatTemplate(source, budget()).render(["user"]) == [0], "more than a pipe holds arrives whole"


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
        ChatTemplate(template, budget()).render(["user", "assistant", "user"])


@pytest.mark.parametrize("template", ["{% for m in messages %}", "{{ 'x' | nothing }}", "{{ " + "(" * 9000])
def test_template_that_is_no_jinja(template: str) -> None:
    with pytest.raises(ModelError, match="not valid Jinja"):
        ChatTemplate(template, budget()).render(["user"])


BOMBS = {
    "a format's width": "{{ '%0999999999d' % 5 }}",
    "a repeated text": "{{ 'x' * 250000000 }}",
    "doubling": "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "loops that write": "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxxxx{% endfor %}{% endfor %}",
    "tojson": "{{ {'a': 1} | tojson(indent=10 ** 9) }}",
    "powers": "{{ 10 ** (10 ** 10) }}",
    "much text": "{% for i in range(99999) %}xxxxxxxxxx{% endfor %}",
    "macros": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_without_end_or_bound_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = watched(monkeypatch)
    template = ChatTemplate(BOMBS[name] + CHATML, budget())
    with pytest.raises(
        ModelError, match=r"does not run within 2 s and 4\.[0-9]+ MB|writes more than|fails \("
    ) as error:
        template.render(["user"])
    assert len(str(error.value)) < 400
    assert max(peaks, default=0) <= template.nbytes


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Anonymous bytes of the processes that run templates, as the watch of `ChatTemplate` sees them."""
    peaks: list[int] = []
    take = psutil.Process.memory_info

    def memory_info(process: psutil.Process) -> object:
        info = take(process)
        peaks.append(info.rss - info.shared)
        return info

    monkeypatch.setattr(psutil.Process, "memory_info", memory_info)
    return peaks


def test_a_form_runs_once_and_only_where_its_process_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = ChatTemplate(CHATML, budget()).nbytes
    with pytest.raises(BudgetExceeded, match="chat template needs"):
        ChatTemplate(CHATML, budget(nbytes - 1)).render(["user"])
    ledger = budget(nbytes)
    template = ChatTemplate(CHATML, ledger)
    first = template.render(["user"])
    monkeypatch.setattr(subprocess, "Popen", None)
    first.append("a caller's change")
    assert template.render(["user"]) == first[:-1]
    assert ledger.used == 0
