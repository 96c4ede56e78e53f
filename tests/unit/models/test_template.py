"""What templates may do, how they fail, and that none runs for long."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from draftgraph.errors import ChatTemplateError
from draftgraph.models.chat import render_chat

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def rendered(template: str, messages: Any = None, **options: Any) -> str:
    options = {"bos": "<s>", "eos": "</s>", "control_literals": ["<s>", "</s>"], **options}
    return render_chat(template, user("hi") if messages is None else messages, **options).plain


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>hi</s>"),
        ("{% if add_generation_prompt %}yes{% endif %}", "yes"),
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% for i in [0, 1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ strftime_now('%d %b %Y') }}", "05 Mar 2024"),
        ("{{ {'é': ['<', '&', none, true]} | tojson }}", '{"é": ["<", "&", null, true]}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(1) ~ f('a' * 3) }}", "[1][aaa]"),
        ("{{ tools is defined }}{{ tools }}", "False"),
        ("{{ messages | map(attribute='role') | join('+') }}", "user"),
        ("{{ (messages | selectattr('role', 'equalto', 'user') | list)[0].content | upper }}", "HI"),
        ("{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}", "1True1"),
        ("{% for x in [1, 2, 3] %}{{ loop.previtem }}{{ loop.nextitem }}{{ x }}{% endfor %}", "2113223"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{{ 'a-b'.replace('-', '+') }}{{ 'a-b' | replace('-', '') }}{{ ','.join(['x', 'y']) }}", "a+babx,y"),
        ("{{ messages[-1:][0].content[::-1] }}{{ 'i' in messages[0].content }}{{ 7 % 4 }}{{ 2 ** 10 }}", "ihTrue31024"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ {'b': 1, 'a': 2} | dictsort | first | first }}{{ {'a': 1}.get('b', 3) }}{{ 3.0 | int }}", "a33"),
    ],
)  # fmt: skip
def test_templates_may_use_what_published_templates_use(template: str, expected: str) -> None:
    assert rendered(template, now=datetime(2024, 3, 5)) == expected


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ ", "unexpected"),
        ("{% for x in y %}", "Unexpected end"),
        ("{% unknown %}", "unknown tag"),
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages.x.y }}", "no attribute"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{{ messages[0].content | unheard_of }}", "unheard_of"),
        ("{{ unheard_of() }}", "undefined"),
        ("{% include 'x' %}", "loader"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ (1).to_bytes(1000000000, 'big') }}", "unsafe"),
        ("{{ '{:1000000000}'.format(1) }}", "unsafe"),
        ("{{ '%1000000000d' % 1 }}", "cannot format"),
        ("{{ strftime_now('%1000000000Y') }}", "width"),
        ("{{ messages | tojson(indent=1000000000) }}", "indent"),
        ("{{ 'a\nb' | indent(1000000000) }}", "indent"),
        ("x" * 2**21, "2097152 characters"),
        ("{{ " + "(" * 100_000 + " }}", ""),
        ("{% for x in [1] %}" * 40 + "{% endfor %}" * 40, ""),
    ],
)  # fmt: skip
def test_templates_that_fail_say_why(template: str, reason: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        rendered(template)
    assert reason in caught.value.given


LONG = "{% set ns = namespace(x='aaaaaaaa', l=[1], n=3) %}{% for i in range(60) %}BODY{% endfor %}{{ ns.x | length }}"
ENDLESS = {
    "one long loop": "{% for i in range(10000000) %}{% endfor %}",
    "a long loop that writes": "{% for i in range(10000000) %}x{% endfor %}",
    "nested loops": "{% for i in range(30000) %}{% for j in range(30000) %}{% endfor %}{% endfor %}",
    "loops over text": "{% set t = 'x' * 30000 %}{% for i in t %}{% for j in t %}{% endfor %}{% endfor %}",
    "loops over messages": "{% for a in messages %}" * 7 + "{% endfor %}" * 7,
    "much text in a loop": "{% set y %}{% for i in range(100000) %}" + "x" * 100_000 + "{% endfor %}{% endset %}",
    "multiplied text": "{{ 'x' * 10 ** 10 }}",
    "text multiplied from the right": "{{ 10000000000 * 'x' }}",
    "multiplied lists": "{{ ([1] * 10000000000) | length }}",
    "doubled text": LONG.replace("BODY", "{% set ns.x = ns.x + ns.x %}"),
    "joined text": LONG.replace("BODY", "{% set ns.x = ns.x ~ ns.x %}"),
    "text doubled in a block": LONG.replace("BODY", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "text doubled by replacing": LONG.replace("BODY", "{% set ns.x = ns.x.replace('a', 'aa') %}"),
    "text doubled by the filter": LONG.replace("BODY", "{% set ns.x = ns.x | replace('a', 'aa') %}"),
    "text squared": LONG.replace("BODY", "{% set ns.x = ns.x.replace('a', ns.x) %}"),
    "text doubled by joining": LONG.replace("BODY", "{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
    "joined copies": "{% set t = 'x' * 1000000 %}{{ ([t] * 100000) | join | length }}",
    "joined copies by the method": "{% set t = 'x' * 1000000 %}{{ ''.join([t] * 100000) | length }}",
    "joined by long text": "{% set t = 'x' * 1000000 %}{{ range(999) | join(t) | length }}",
    "joined by a method of long text": "{% set t = 'x' * 1000000 %}{{ t.join(range(999) | map('string')) | length }}",
    "joined copies from a map": "{% set t = 'x' * 1000000 %}{{ ([t] * 100000) | map('string') | join | length }}",
    "doubled lists": LONG.replace("BODY", "{% set ns.l = ns.l + ns.l %}"),
    "nested lists as text": LONG.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}",
    "nested lists as JSON": LONG.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l | tojson }}",
    "nested lists joined": LONG.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l ~ 'x' }}",
    "nested lists compared": LONG.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l == [ns.l, 1] }}",
    "nested lists as keys": LONG.replace("BODY", "{% set ns.l = (ns.l, ns.l) %}") + "{{ {ns.l: 1} | length }}",
    "a namespace as text": LONG.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns }}",
    "a view as text": LONG.replace("BODY", "{% set ns.l = [ns.l, ns.l] %}") + "{{ {'a': ns.l}.values() }}",
    "squared numbers": LONG.replace("BODY", "{% set ns.n = ns.n * ns.n %}"),
    "powers": "{{ 9 ** (9 ** 9) }}",
    "branching macros": "{% macro f(n) %}{{ n and f(n - 1) ~ f(n - 1) }}{% endmacro %}{{ f(40) }}",
    "endless macros": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "branching loops": "{% for x in [1, 2] recursive %}{{ loop.depth < 40 and loop([1, 2]) }}{% endfor %}",
    "searches": "{% set l = range(30000) | list %}{% for i in l %}{{ (0 - 1) in l }}{% endfor %}",
    "sorts": "{% set l = range(30000) | list %}{% for i in l %}{% if l | sort %}{% endif %}{% endfor %}",
    "slices": "{% set l = range(30000) | list %}{% for i in l %}{% if l[1:] %}{% endif %}{% endfor %}",
    "lengths of loops": "{% for i in range(9999) %}{% for j in range(9999) %}{{ loop.length }}{% break %}"
    "{% endfor %}{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_no_template_runs_for_long(name: str) -> None:
    started = time.process_time()
    with pytest.raises(ChatTemplateError, match=r"too much work|never ends|bits"):
        rendered(ENDLESS[name], user("hi") * 60)
    assert time.process_time() - started < 5  # measured: at most 0.5 s


def test_a_long_conversation_is_not_taken_for_an_endless_template() -> None:
    template = (
        "{# "
        + "x" * 10_000
        + " #}"
        + CHATML.replace("message.content", "message.content.strip() | trim | replace('a', 'b')")
    )
    messages = user("some words of a conversation " * 10) * 2000
    assert rendered(template, messages).count("<|im_start|>") == 2001
