from __future__ import annotations

import time
from typing import Any

import jinja2
import pytest

from trivium.models.template_sandbox import Budget, TemplateLimitError, TemplateSandbox, metered


def render(source: str, characters: int = 2_000_000, seconds: float = 5.0, **values: Any) -> str:
    with metered(Budget(characters, seconds)):
        return TemplateSandbox().load_source(source).render(values)


GROW = "{%% set ns = namespace(x='a') %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for x in [1] recursive %}{{ loop(range(99999)) if loop.depth < 4 }}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999)|list %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999)|select('in', [1] * 9999)|list %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{% set x = [0] * 10**9 %}",
        "{% set x = 2 ** (10 ** 9) %}",
        GROW % "ns.x + ns.x",
        GROW % "ns.x ~ ns.x",
        GROW % "ns.x.replace('a', 'aa')",
        GROW % "ns.x|replace('a', 'aa')",
        GROW % "(ns.x, ns.x)|join",
        GROW % "ns.x.join([ns.x, ns.x, ns.x])",
        GROW % "'%s%s' % (ns.x, ns.x)",
        GROW % "'%s%s'|format(ns.x, ns.x)",
        GROW % "'{0}{0}'.format(ns.x)",
        GROW % "[ns.x, ns.x]|string",
        GROW % "[ns.x, ns.x]|tojson",
        GROW % "ns.x|map('replace', 'a', 'aa')|join",
        "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set x %}{% for i in range(99999) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endset %}",
        "{{ 'a\\n'|indent(10**9) }}",
        "{{ 'a\\na'|indent('a' * 1500000) }}",
        "{{ 1.5|round(10**8, 'ceil') }}",
        "{{ [[1]] * 999|sum(start=[]) }}",
        "{{ [1]|tojson(indent=10**9) }}",
        "{{ [1]|tojson(separators=('a' * 100, ':')) }}",
    ],
)
def test_bombs(source: str) -> None:
    started = time.perf_counter()
    with pytest.raises(TemplateLimitError):
        render(source)
    assert time.perf_counter() - started < 30


DOUBLED = (  # lists that hold each other, 60 deep: 2^60 items for whoever follows them
    "{% set ns = namespace(x=1, y=1, t=1) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
    "{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ns.x == ns.y }}",
        "{{ 1 if ns.x < ns.y }}",
        "{{ ns.x in [ns.y] }}",
        "{{ {'a': ns.x} != {'a': ns.y} }}",
        "{{ {'a': ns.x}.items() == {'a': ns.y}.items() }}",
        "{{ ns.x is eq(ns.y) }}",
        "{{ [ns.x]|select('in', [ns.y])|list }}",
        "{{ [ns.x, ns.y]|sort }}",
        "{{ [ns.x, ns.y]|max }}",
        "{{ [ns.x].index(ns.y) }}",
        "{% set d = {ns.t: 1} %}",
        "{% set d = dict([[ns.t, 1]]) %}",
        "{{ {}[ns.t] }}",
        "{{ [1][ns.x].foo }}",
        "{{ {}.get(ns.t) }}",
        "{{ ns.x|upper }}",
        "{{ ns.x|trim|length }}",
        "{{ ns.x|e }}",
        "{{ ns.x is lower }}",
        "{{ [ns.x]|map('title')|join }}",
        "{{ ns.x|replace('a', 'b') }}",
        "{{ ns.x|format(1) }}",
        "{{ raise_exception(ns.x) }}",
        "{{ {'a': ns.x}.values() }}",
        "{{ 1|tojson(indent=ns.x) }}",
        "{{ ('a\x0b' * 100000)|indent(999) }}",
    ],
)
def test_bombs_of_lists_and_lines(source: str) -> None:
    with pytest.raises(TemplateLimitError):
        render(DOUBLED + source)


def test_namespaces_do_not_print_what_they_hold() -> None:
    assert render(DOUBLED + "{{ ns }}") == "<Namespace>"


def test_long_conversations_may_be_compared_and_counted() -> None:
    messages = [{"role": "user", "content": "x" * 1000} for _ in range(300)]
    source = (
        "{% for m in messages %}{% if m == messages[-1] and m.content != '' and loop.index == messages|length %}{{ m.role }}"
        "{% endif %}{% if tools is not none and messages is defined and 'y' not in m.content %}.{% endif %}{% endfor %}"
    )
    assert render(source, messages=messages, tools=[{"a": "b" * 1000}]) == "." * 299 + "user."


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ '{0.__class__.__mro__}'.format(1).x.y }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ range.__self__.x }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ messages[0].pop('a') }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ 'a'.translate({97: 'b'}) }}",
        "{{ (1).to_bytes(10**9, 'big') }}",
        "{{ 'a'.encode().hex() }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%(a)9999999999d' % {'a': 1} }}",
        "{{ '%(a%b)9999999999d' % {'a%b': 1} }}",
        "{{ '%(a()b)9999999999d' % {'a()b': 1} }}",
        "{{ '%(a)9999999999d'|format(a=1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
        "{{ strftime_now('%0999999999d') }}",
        "{{ strftime_now('a' * 1000) }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ lipsum() }}",
        "{% include 'x' %}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_forbidden(source: str) -> None:
    with pytest.raises((jinja2.TemplateError, OverflowError, TypeError)):
        render(source, messages=[{"a": 1}])


@pytest.mark.parametrize("name", ["attr", "center", "pprint", "urlize", "wordwrap", "xmlattr", "batch"])
def test_filters_that_templates_do_not_use(name: str) -> None:
    with pytest.raises(jinja2.TemplateAssertionError, match=f"No filter named '{name}'"):
        render("{{ 'a'|" + name + " }}")


def test_deadline() -> None:
    with pytest.raises(TemplateLimitError, match="takes longer"):
        render("{% for i in range(99999) %}{% endfor %}", characters=10**9, seconds=0.01)
    with pytest.raises(TemplateLimitError, match="takes longer"):
        render(DOUBLED + "{{ ns.x == ns.y }}", characters=10**12, seconds=0.1)


def test_budget_covers_compiling_and_rendering_of_one_thread_only() -> None:
    with pytest.raises(LookupError):
        TemplateSandbox().load_source("{{ 'a' ~ 'b' }}").render()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for x in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}", "1/3,2/3,3/3"),
        ("{% for x in [1, 2, 3] if x != 2 %}{{ x }}{% else %}none{% endfor %}", "13"),
        ("{% for x in [] %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% for x in missing %}{{ x }}{% endfor %}", ""),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% for x in [[1, [2]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", None),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{{ 'a' ~ 1 ~ missing ~ none }}", "a1None"),
        ("{{ 'é<'|tojson }} {{ {'b': [1, true, none]}|tojson }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}", None),
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ [1, {'a': 2}]|tojson(separators=(',', ':')) }}", '[1,{"a":2}]'),
        ("{{ '%s-%03d' % ('a', 7) }} {{ '%s'|format('b') }} {{ '{}-{x:>3}'.format(1, x=2) }}", "a-007 b 1-  2"),
        ("{{ [1, 2]|join(', ') }} {{ ['a', 'b'].__class__ is undefined }} {{ '-'.join(['a', 'b']) }}", "1, 2 True a-b"),
        ("{{ 'a\\nb'|indent(2) }} {{ 'aba'|replace('a', 'c') }} {{ 2.567|round(1) }} {{ [1, 2]|sum }}", "a\n  b cbc 2.6 3"),
        (
            "{{ messages|map(attribute='role')|list }} {{ messages|selectattr('role', 'equalto', 'b')|list|length }}",
            "['a', 'b'] 1",
        ),
        ("{{ dict(a=1) }} {{ messages[0].get('x', 5) }} {{ messages[0]|items|list }}", "{'a': 1} 5 [('role', 'a')]"),
        (
            "{% set ns = namespace(n=0, self=2) %}{% for i in [3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n + ns.self }}",
            "5",
        ),
        ("{% macro f(a, b=2) %}{{ a + b }}{% endmacro %}{{ f(1) }}{{ f(1, b=5) }}", "36"),
        ("{{ 2 ** 10 }} {{ 7 % 4 }} {{ [1] + [2] }} {{ 'ab' * 2 }}", "1024 3 [1, 2] abab"),
        ("{{ messages[::-1][0].role }} {{ ' a '.strip() }} {{ 'a b'.split(' ') }} {{ 'abc'[1:] }}", "b a ['a', 'b'] bc"),
        ("{% if 'x' is string and {} is mapping and [] is iterable and 1 is number %}ok{% endif %}", "ok"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
    ],
)
def test_what_templates_do(source: str, text: str | None) -> None:
    if text is None:
        text = {"loop": "12", "json": '"é<" {"b": [1, true, null]} {"a": 2, "b": 1}'}["loop" if "loop" in source else "json"]
    assert render(source, messages=[{"role": "a"}, {"role": "b"}]) == text


def test_date() -> None:
    assert render("{{ strftime_now('%d %B %Y') }}") == time.strftime("%d %B %Y")


def test_raise_exception() -> None:
    with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
