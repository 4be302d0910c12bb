"""The sandbox of chat templates: what it gives, what it refuses, and that it ends."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace_wire.template import ChatTemplate, TemplateFailure

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "a" * 1000}] * 5
VALUES: dict[str, Any] = {"messages": MESSAGES, "add_generation_prompt": True, "bos_token": "<s>", "tools": None}

GOOD = {
    "blocks-are-trimmed": ("{% if true %}\n  x\n{% endif %}\n  y", "  x\n  y"),
    "loop-control": ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
    "generation-is-transparent": ("{% generation %}a{% endgeneration %}b", "ab"),
    "namespace": ("{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{{ ns.x }}", "2"),
    "set-block": ("{% set a %}x{% endset %}{{ a }}", "x"),
    "macro": ("{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m('x') ~ m(2) }}", "[x][2]"),
    "tojson-escapes-nothing": ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
    "tojson-indent": ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
    "tools-are-none": ("{% if tools is not none %}x{% endif %}", ""),
    "undefined-is-false": ("{% if nothing %}x{% else %}y{% endif %}", "y"),
    "filters": ("{{ ' aB ' | trim | upper }}{{ ['a', 'b'] | join('-') }}{{ 'aa' | replace('a', 'b') }}", "ABa-bbb"),
    "methods": ("{{ 'a,b'.split(',')[1] }}{{ ' x'.strip() }}{{ 'ab'.replace('a', 'c') }}", "bxcb"),
    "join-attribute": ("{{ messages[:2] | map(attribute='role') | join(' ') }}", "user user"),
}
BAD = {
    "nested-loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "wide-range": "{% for a in range(9999999) %}{% endfor %}",
    "multiplied": "{{ ('a' * 1000) * 1000000 }}",
    "doubled-by-tilde": "{% set ns = namespace(x='aa') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubled-by-plus": "{% set ns = namespace(x='aa') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "squared-by-replace": "{% set ns = namespace(x='aa') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "squared-by-filter": "{% set ns = namespace(x='aa') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x | replace('a', ns.x) %}{% endfor %}",
    "squared-by-join": "{% set ns = namespace(x='aa') %}{% for i in range(99) %}"
    "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}{% endfor %}",
    "squared-by-join-method": "{% set ns = namespace(x='aa') %}{% for i in range(99) %}"
    "{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    "many-large-values": "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}"
    "{% set ns.x = ns.x + ['a' * 8000000] %}{% endfor %}",
    "padded": "{{ 'a'.ljust(1000000000) }}",
    "centred": "{{ 'a' | center(1000000000) }}",
    "formatted": "{{ '{:>1000000000}'.format('a') }}",
    "percent": "{{ '%1000000000s' % 'a' }}",
    "endless-macro": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "exponential-macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "recursive-loop": "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "huge-number": "{{ 10 ** 100000 }}",
    "underscored": "{{ messages[0].__class__.__mro__ }}",
    "mutating": "{{ messages.append(1) }}",
    "bytes": "{{ 'abc'.encode('utf-16') }}",
    "include": "{% include 'a' %}",
    "undefined-attribute": "{{ x.y.z }}",
    "division": "{{ 1 / 0 }}",
    "syntax": "{% for %}",
    "break-outside": "{% break %}",
}


@pytest.mark.parametrize(("source", "expected"), GOOD.values(), ids=GOOD)
def test_renders(source: str, expected: str) -> None:
    assert ChatTemplate(source).render(VALUES) == expected


@pytest.mark.parametrize("source", BAD.values(), ids=BAD)
def test_refuses_and_ends(source: str) -> None:
    begun = time.process_time()
    with pytest.raises(TemplateFailure):
        ChatTemplate(source).render(VALUES)
    assert time.process_time() - begun < 10


def test_raise_exception_gives_the_template_s_own_words() -> None:
    with pytest.raises(TemplateFailure, match=r"^roles must alternate$"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(VALUES)


def test_a_rendering_starts_with_a_fresh_count() -> None:
    template = ChatTemplate("{% for i in range(40000) %}{% endfor %}x")
    assert [template.render(VALUES) for _ in range(4)] == ["x"] * 4
