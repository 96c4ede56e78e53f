"""Templates that were written to hang a server: each ends soon, in little memory, whatever Python does underneath.

Every one is rendered in a process of its own, which the system ends where nothing in Python could.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's limits")

_SECONDS = 3  # of one template; measured: at most 1
_MEGABYTES = 150  # beyond what the process has; measured: at most 50
_PROGRAM = f"""
import json, os, resource, sys
from draftgraph.errors import ChatTemplateError
from draftgraph.models.chat import render_chat

def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

def outcome(template):
    messages = [{{"role": "user", "content": "some words"}}] * 60
    try:
        render_chat(template, messages, bos="<s>", eos="</s>", control_literals=["<s>"])
        return "text"
    except ChatTemplateError as error:
        return f"{{error}}"[:200]
    except BaseException as error:
        return f"untyped {{error!r}}"[:200]

outcome("{{{{ 1 }}}}")
found = {{}}
for name, template in json.load(sys.stdin).items():
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
        resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
        before = megabytes()
        end = outcome(template)
        used = megabytes() - before
        os.write(writer, f"untyped {{used}} MB".encode() if used > {_MEGABYTES} else end.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        end = file.read().decode()
    found[name] = end or f"untyped end {{os.waitpid(child, 0)[1]}}"
print(json.dumps(found))
"""
_LONG = "{% set t = 'a' * 3000000 %}{% set u = 'ab' ~ 'a' * 2000000 %}"
_DEEP = "{% set ns = namespace(l=[1] * 20000) %}{% for i in range(200) %}{% set ns.l = [ns.l] %}{% endfor %}"
# Whole numbers whose hashes are all 0.
_COLLIDING = "range(2 ** 61 - 1, (2 ** 61 - 1) * 60000, 2 ** 61 - 1)"
_HUGE = "(('f' * 800000) | int(0, 16))"

HOSTILE = {
    # Whole numbers.
    "a division of huge numbers": f"{{{{ {_HUGE} // (('f' * 400000) | int(0, 16)) }}}}",
    "a remainder of huge numbers": f"{{{{ {_HUGE} % (('f' * 400000) | int(0, 16)) }}}}",
    "a huge number as text": f"{{{{ {_HUGE} }}}}",
    "a huge number as JSON": f"{{{{ [{_HUGE}] | tojson }}}}",
    "a huge number in base 36": "{{ ('z' * 4000) | int(0, 36) // 7 }}",
    "a huge decimal number": "{{ ('9' * 4000000) | int }}",
    "a huge number in a test": f"{{{{ {_HUGE} is divisibleby 7 }}}}",
    "a huge number compared": f"{{{{ {_HUGE} == 1.5 }}}}",
    "a huge hexadecimal literal": "{{ 0x" + "f" * 100_000 + " // 0x" + "e" * 30_000 + " }}",
    "a huge binary literal": "{{ 0b1" + "01" * 60_000 + " }}",
    "a huge octal literal": "{{ -0o7" + "1" * 100_000 + " }}",
    "a number squared by its own product": "{% set ns = namespace(n=3) %}" + "{% set ns.n = ns.n * ns.n %}" * 64,
    "a chain of products": "{{ " + " * ".join(["7777777777777777"] * 900) + " }}",
    "differences of negative numbers": "{{ (0 - 2 ** 4000) * (2 ** 4000 - 1) }}",
    "a power of a negative number": "{{ (0 - 3) ** 100000 }}",
    "text multiplied by a huge number": "{{ 'x' * 2 ** 4000 }}",
    "a range of huge numbers": "{% for i in range(2 ** 4000) %}{% endfor %}",
    "a huge number as a float": "{{ ('9' * 6000000) | float }}{{ ('0.' ~ '5' * 6000000) | float }}",
    # Tables of values with equal hashes.
    "unique numbers with equal hashes": f"{{{{ {_COLLIDING} | unique | list | length }}}}",
    "a table made by a class method": "{{ {}.fromkeys(" + _COLLIDING + ") | length }}",
    "a table of characters": "{{ ''.maketrans({" + ", ".join(f"{i}: 1" for i in range(999)) + "}) | length }}",
    "literal keys with equal hashes": "{{ {" + ", ".join(f"{i * (2**61 - 1)}: 1" for i in range(1, 4500)) + "} }}",
    "pairs as keys": "{{ {" + ", ".join(f"({i}, {i}): 1" for i in range(5000)) + "} | length }}",
    "a difference of views": "{{ {}.keys() - range(1000000000) }}",
    "a view beside a range": "{{ {}.keys().isdisjoint(range(1000000000)) }}",
    # Texts that are compared with each other, character by character.
    "a search from the right": _LONG + "{{ t.rfind(u) }}",
    "an index from the right": _LONG + "{{ t.rindex(u) }}",
    "a split from the right": _LONG + "{{ t.rsplit(u) | length }}",
    "a split from the right by name": _LONG + "{{ t.rsplit(sep=u) | length }}",
    "a partition from the right": _LONG + "{{ t.rpartition(u) | length }}",
    "a search": _LONG + "{{ t.find(u) }}{{ t.count(u) }}{{ u in t }}",
    "many searches": "{% set t = 'a' * 29999 %}{% set u = 'a' * 49 ~ 'b' ~ 'a' * 49 %}"
    "{% for i in range(9999) %}{{ t.count(u) }}{% endfor %}",
    "stripped characters": "{% set t = 'a' * 3000000 %}{{ t.strip('b' * 3000000 ~ 'a') | length }}",
    "characters stripped from the left": "{% set t = 'a' * 3000000 %}{{ t.lstrip('b' * 3000000 ~ 'a') | length }}",
    "characters stripped by the filter": "{% set t = 'a' * 3000000 %}{{ t | trim('b' * 3000000 ~ 'a') | length }}",
    "comments stripped": "{{ (('<!-- -->' * 1000000) | safe).striptags() | length }}",
    "text unescaped": "{{ (('&amp;' * 1000000) | safe).unescape() | length }}",
    "many beginnings": "{% set u = ('a' * 100000,) * 100000 %}{{ 'a'.startswith(u) }}",
    # Texts cut into pieces, and sequences made of nothing.
    "text cut at spaces": "{% set t = 'ſſ ' * 2200000 %}{{ t.split() | length }}",
    "text cut at characters": "{% set t = 'ſſ ' * 2200000 %}{{ t.split(' ') | length }}",
    "text cut into lines": "{% set t = 'ſſ\\r' * 2200000 %}{{ t.splitlines() | length }}",
    "indented lines that end otherwise": "{% set t = 'ſ\\r' * 3000000 %}{{ t | indent(64) | length }}",
    "indented empty lines": "{% set t = '\\r' * 6000000 %}{{ t | indent(64, blank=true) | length }}",
    "a title": "{% set t = 'a-' * 3000000 %}{{ t | title | length }}{{ t.title() | length }}",
    "a list of characters": "{% set t = 'ſ' * 6000000 %}{{ t | list | length }}",
    "sorted characters": "{% set t = 'ſa' * 3000000 %}{{ t | sort | length }}",
    "joined characters": "{% set t = 'ſ' * 6000000 %}{{ t | join | length }}",
    "characters joined by a method": "{% set t = 'ſ' * 6000000 %}{{ ''.join(t) | length }}",
    "the largest character": "{% set t = 'ſ' * 6000000 %}{{ t | max }}",
    "mapped characters": "{% set t = 'ſ' * 6000000 %}{{ t | map('upper') | list | length }}",
    "spread characters": "{% set t = 'ſ' * 6000000 %}{{ dict(*t) }}",
    "a spread range": "{{ dict(*range(20000000)) }}",
    "a spread range in a filter": "{{ 'x' | join(*range(20000000)) }}",
    "a spread range in a test": "{{ 'x' is sameas(*range(20000000)) }}",
    "a count in a range": "{{ range(1000000000).count('a') }}",
    "an index in a range": "{{ range(1000000000).index('a') }}",
    "counts in a tuple": "{% set u = (('a' * 1000000,) * 100,) * 100 %}{% for i in range(9999) %}"
    "{{ u.count((('a' * 999999 ~ 'b',),)) }}{% endfor %}",
    # Work that is multiplied.
    "paths of attributes": "{% set ns = namespace() %}{% set ns.l = [namespace(a=1)] * 5000 %}"
    "{% set p = ('a.' * 20000) ~ 'a' %}{{ ns.l | map(attribute=p, default={}) | list | length }}",
    "attributes to sort by": "{% set l = [{'a': 1}] * 5000 %}{{ l | sort(attribute='a,' * 20000 ~ 'a') | length }}",
    "a chain of lazy filters": (
        "{% set l = range(1, 90000) | list %}" + "{% set l = l | select %}" * 900 + "{{ l | list | length }}"
    ),
    "JSON with deep indents": _DEEP + "{{ ns.l | tojson(indent=64) | length }}",
    "JSON of deep lists": "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
    "{{ ns.l | tojson }}",
    "text of deep lists": "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
    "{{ ns.l }}",
    "an object in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "an error about an object in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ raise_exception(ns) }}",
    "a block that calls itself": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "blocks that call themselves twice": "{% set ns = namespace(n=0) %}{% block a %}" + "x" * 30_000 +
    "{% set ns.n = ns.n + 1 %}{% if ns.n < 40 %}{{ self.a() ~ self.a() }}{% endif %}"
    "{% set ns.n = ns.n - 1 %}{% endblock %}",
    "a macro that calls its caller": "{% macro f(n) %}{{ caller(n) ~ caller(n) }}{% endmacro %}"
    "{% macro g(n) %}{% call(m) f(n) %}{{ m and g(m - 1) }}{% endcall %}{% endmacro %}{{ g(40) }}",
    "text escaped again and again": "{% set ns = namespace(t='&' * 2000000) %}{% for i in range(30) %}"
    "{% set ns.t = (ns.t | e).replace('', '') %}{% endfor %}{{ ns.t | length }}",
    "text escaped as it is added": "{% set ns = namespace(t='&' * 2000000) %}{% for i in range(30) %}"
    "{% set ns.t = (('' | safe) + ns.t).replace('', '') %}{% endfor %}{{ ns.t | length }}",
    "many time formats": "{{ strftime_now('%c' * 4000000) | length }}",
    "a time format of nothing": "{{ strftime_now(' ' * 4000000 ~ '%Z') | length }}",
    "an operator as an option": "{% autoescape (9 ** 9 // 3) - 9 ** 99999999 %}{% endautoescape %}",
    # Syntax.
    "a long chain of sums": "{{ 1" + " + 1" * 30_000 + " }}",
    "a long chain of attributes": "{{ a" + ".b" * 60_000 + " }}",
    "a long chain of choices": "{% if a %}" + "{% elif a %}" * 10_000 + "{% endif %}",
    "deep lists": "{{ " + "[" * 60_000 + " }}",
    "many loops in each other": "{% for i in [1] %}" * 7000,
    "many denials": "{{ " + "not " * 30_000 + "1 }}",
    "many numbers": "{{ [" + "1, " * 40_000 + "] | length }}",
    "an unending comment": "{#" * 60_000,
    "much white space": "{% if 1" + " " * 120_000 + "%}",
    "many lines": "{{ 1 }}" + "\n" * 120_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=json.dumps(HOSTILE), capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_soon_with_a_typed_error_or_a_text(name: str, outcomes: dict[str, str]) -> None:
    assert not outcomes[name].startswith("untyped"), outcomes[name]


def test_the_limit_itself_is_seen_to_work() -> None:
    slow = {"slow": "{{ ('x' * 100) | length }}"}
    program = _PROGRAM.replace("end = outcome(template)", "end = outcome(template) or 1\n        while True: pass")
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(slow), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["slow"].startswith("untyped end")
