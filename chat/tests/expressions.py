#!/usr/bin/env python3
"""Write `expressions.jsonl`: small expressions and templates of Jinja with their results in transformers.

    chat/tests/expressions.py          needs transformers and jinja2

Each filter, test, method and operator with many values, and each kind of statement. A line is [SOURCE, TEXT], or [SOURCE, null]
where transformers refuses it. Results that have an address in memory are left out.
"""
import json
import re
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

VALUES = [
    "'text'", "'a b'", "''", "'  x\\ty\\n'", "'12'", "'-7'", "'1.5e3'", "'Grüße <b>&\"x\"</b> it\\'s'", "'ǆ ΑΣ İ ß'", "'a,b;c\\nd'",
    "0", "5", "-3", "2.5", "-0.0", "1e22", "1e-7", "true", "false", "none", "missing",
    "[]", "[1]", "['b', 'A', 'c']", "[[2, 'x'], [1, 'y']]", "[{'k': 1, 'n': 'b'}, {'k': 1, 'n': 'A'}]", "(1, 'x')",
    "{}", "{'b': 1, 'a': [none, true, 1.0]}", "range(3)",
]
FILTERS = [
    "abs", "attr('k')", "batch(2)|list", "batch(2, 'z')|list", "capitalize", "center(9)", "count", "default('d')", "default('d', true)", "d('e', boolean=true)",
    "dictsort", "dictsort(by='value')", "dictsort(reverse=true)", "escape", "e", "filesizeformat", "filesizeformat(true)", "first", "float", "float(1.5)",
    "forceescape", "format(1)", "format('a', 2)", "groupby('k')|list", "groupby('n')", "indent", "indent(2, true)", "indent(width='> ', first=true, blank=true)",
    "int", "int(7)", "int(0, 16)", "items|list", "join", "join(', ')", "join('-', attribute='k')", "last", "length", "list", "lower", "map('upper')|list",
    "map(attribute='k')|list", "map(attribute='n', default='z')|join(',')", "max", "min", "pprint", "reject('odd')|list", "rejectattr('k')|list", "replace('a', 'o')",
    "replace('x', 'yy', 1)", "reverse|list", "reverse", "round", "round(1)", "round(1, 'floor')", "round(method='ceil')", "safe", "select|list", "select('string')|list",
    "selectattr('k', 'equalto', 1)|list", "selectattr('k')|list", "slice(2)|list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "sort(attribute='n')", "string",
    "striptags", "sum", "sum(attribute='k')", "title", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "trim", "trim('x')", "truncate", "truncate(3, true, '')",
    "truncate(length=5, end='…')", "unique|list", "unique(attribute='k')|list", "upper", "urlencode", "urlize", "wordcount", "wordwrap(3)", "xmlattr",
]
TESTS = [
    "boolean", "callable", "defined", "divisibleby 2", "divisibleby(3)", "eq 5", "equalto 'text'", "escaped", "even", "false", "filter", "float", "ge 1", "gt 1",
    "greaterthan 'a'", "in [5, 'text']", "in 'text'", "integer", "iterable", "le 1", "lt 1", "lessthan 'b'", "lower", "mapping", "ne 5", "none", "number", "odd",
    "sameas true", "sequence", "string", "test", "true", "undefined", "upper", "not none", "not defined", "not string",
]
METHODS = [
    "capitalize()", "casefold()", "center(8, '*')", "count('a')", "encode()", "endswith('t')", "endswith(('t', 'b'))", "expandtabs(4)", "find('x')", "format(1, a=2)",
    "index('t')", "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()", "isidentifier()", "islower()", "isnumeric()", "isprintable()", "isspace()",
    "istitle()", "isupper()", "join(['a', 'b'])", "ljust(7)", "lower()", "lstrip()", "lstrip('t')", "partition(' ')", "removeprefix('te')", "removesuffix('xt')",
    "replace('t', 'T')", "replace('t', 'T', 1)", "rfind('t')", "rindex('x')", "rjust(7, '0')", "rpartition(' ')", "rsplit(',', 1)", "rsplit()", "rstrip()", "split()",
    "split(',')", "split(' ', 1)", "splitlines()", "splitlines(true)", "startswith('t')", "startswith(('a', 't'))", "strip()", "strip('tx')", "swapcase()", "title()",
    "upper()", "zfill(6)", "items()", "items()|list", "keys()", "keys()|list", "values()", "values()|list", "get('a')", "get('z')", "get('z', 3)", "copy()", "index(1)",
    "count(1)", "is_integer()", "bit_length()", "k", "b", "a", "append", "missing_one", "missing_one.two",
]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
RIGHT = ["'a'", "'text'", "1", "2.5", "none", "missing", "[1]", "{}", "true"]
PLACES = ["[0]", "[-1]", "[1:]", "[:-1]", "[::-1]", "[1:3]", "['a']", "['k']", "[99]", "[none]", "[:2] is string"]
UNARY = ["not V", "-V", "+V", "V if V else 'no'", "V is defined and V", "'%s' % V", "'%r' % V", "'%d' % V", "'%5.1f|' % V", "'%s-%s' % (V, 1)", "'{}'.format(V)",
         "'{:>6}'.format(V)", "V|tojson|length", "{'x': V}", "[V, V]", "(V,)", "{V: 1}", "namespace(x=V).x", "dict(x=V)", "[V]|string", "V ~ V", "'a' in V", "1 in V", "V == V"]
OTHERS = [
    "[1] + [1, 2, 3][1:]", "[1, 2, 3][1:] * 2", "[1, 2][1:] == [2]", "[messages[0]] + messages[1:]", "messages[1:] is sequence", "(1, 2)[1:] + (4,)", "'\\U0001F600'", "+1 + +2",
    "range(5)|list", "range(2, 8, 3)|list", "range(3)|length", "range(3)[1]", "range(3)|last", "range(0)|list", "range(3, 0, -1)|list", "lipsum is defined", "cycler('a', 'b').next()",
    "joiner(', ')()", "dict(a=1, b=2)", "dict(a=1).items()|list", "1 < 2 < 3", "3 > 2 > 2", "1 == 1.0", "true == 1", "'1' == 1", "1 < 2 == true", "not 1 == 2", "2 ** 3 ** 2", "-2 ** 2",
    "7 // -2", "-7 % 3", "7.5 % 2", "1 / 2", "4 / 2", "10 // 3.0", "0.1 + 0.2", "1e16", "123456789012345678901234567890", "2 ** 100", "1_000", "0x1f", "0b11", "1.0e-5", "1e400 - 1e400",
    "'a' 'b'", "'a' * 3", "3 * 'ab'", "[1] * 2", "(1, 2) + (3,)", "[1] + [2]", "'a' + 'b'", "'a' ~ 1 ~ none ~ true", "'x' if false", "('x' if false) is defined", "[1, 2, 3][1:]", "'abc'[::-1]", "'abc'[-2:]",
    "'%05.2f' % 3.14159", "'%x %X %o' % (255, 255, 8)", "'%e' % 12345.678", "'%g' % 0.00001", "'%+d' % 5", "'%-5s|' % 'a'", "'%5s|' % 'a'", "'%%'", "'%c' % 65", "'%(a)s' % {'a': 1}", "'%s' % none",
    "'{0}-{1}'.format('a', 'b')", "'{a}'.format(a=1)", "'{:.2f}'.format(3.14159)", "'{:,}'.format(1234567)", "'{:05d}'.format(42)", "'{!r}'.format('x')", "'{:<5}|'.format('a')", "'{:^5}|'.format('a')", "'{{}}'.format()",
    "[3, 1, 2]|sort", "['b', 'A', 'c']|sort", "{'b': 1, 'a': 2}|dictsort", "{'b': 1, 'a': 2}|tojson", "{'b': {'z': 1, 'a': 2}}", "{'a': 'é'}|tojson", "{'x': 1.0, 'y': 1e22, 'z': 1e-7}|tojson",
    "[1, 'a', none, true, 1.5]|join('|')", "[[1, 2], [3]]|sum(start=[])", "[1, 2]|sum(start=10)", "'a\\nb'|indent", "'a\\n\\nb'|indent(4)", "'hello world foo'|truncate(11)", "'hello world foo'|wordwrap(5)",
    "'abc'|list", "{'a': 1}|list", "{'a': 1}|items|list", "{'a': 1}|length", "'ab'|first", "[]|first", "[]|last is defined", "[]|max", "''|first", "[1, 1, 2]|unique|list", "['a', 'A']|unique|list",
    "[{'a': {'b': 1}}]|map(attribute='a.b')|list", "[1, 2, 3]|select('gt', 1)|list", "[1, none]|reject('none')|list", "[{'a': 1}, {}]|map(attribute='a', default=0)|list", "[{'a': 1}, {}]|map(attribute='a')|list",
    "[{'a': 2}, {'a': 1}]|sort(attribute='a')|map(attribute='a')|list", "[{'a': 1}, {'a': 1}]|groupby('a')|length", "'a-b_c'|replace('-', '')", "'<b>'|e", "'<b>'|safe", "('<b>'|safe) ~ '<i>'", "'a'|upper|lower|title",
    "1|string + 'a'", "'12'|int + 1", "'abc'|int", "'abc'|int(-1)", "'1.9'|int", "1.9|int", "'0x1A'|int(base=16)", "'1e3'|float", "none|default('x')", "none|default('x', true)", "missing|default('x')", "missing.a|default('x')",
    "missing is undefined", "{'a': none}.a is none", "{'a': 1}.b is defined", "{'a': 1}.get('b')", "{'a': 1}.get('b', 2)", "{'a': 1}['b'] is defined", "{'a': 1}.items()", "{'a': 1}.keys()", "{'a': 1}.values()", "{1: 'a'}[1]", "{'a': 1} == {'a': 1.0}",
    "[1, 2] == [1, 2]", "(1, 2) == [1, 2]", "'a' < 'b'", "[1] < [2]", "'B' < 'a'", "none == none", "none is none", "true is true", "1 is true", "1 is sameas 1", "'a' is in ['a']", "1 is not in [2]", "5 is divisibleby 5", "5 is odd and 4 is even",
    "'ABC' is upper", "'abc' is lower", "[1] is sequence", "'a' is sequence", "{} is mapping", "{} is sequence", "1.0 is float", "1 is integer", "true is integer", "true is number", "range is callable", "1.0 is integer", "loop is defined",
]

# Whole templates. They get two messages.
TEMPLATES = r"""
{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=1, a=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}
{% macro m() %}{{ varargs|length }}{{ kwargs|length }}{% endmacro %}{{ m() }}
{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, z=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m.name }}{{ m.arguments }}
{% macro m(a) %}[{{ caller() }}]{{ a }}{% endmacro %}{% call m(1) %}x{% endcall %}
{% macro m() %}{% for i in [1, 2] %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) m() %}<{{ i }}>{% endcall %}
{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}
{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}
{% set x = 5 %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}
{% macro m() %} a {% endmacro %}{{ m()|trim }}|{{ m() ~ 'b' }}|{{ m() + 'c' }}|{{ m()|length }}
{% macro m() %}<b>{% endmacro %}{{ m()|e }}|{{ m() is string }}|{{ m()|tojson }}
{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% endfor %}
{% for i in 'abc' %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('x', 'y') }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}
{% for i in [] %}a{% else %}none{% endfor %}
{% for i in [1, 2, 3, 4] if i is even %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %}
{% for i in [1, 2, 3] if i > 5 %}a{% else %}none{% endfor %}
{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}={{ v }};{% endfor %}
{% for k, v in {'b': 1, 'a': 2}|items %}{{ k }}={{ v }};{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}
{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}
{% for k in {'a': 1} %}{{ k }}{% endfor %}
{% for c in 'häß' %}{{ c }},{% endfor %}
{% for i in range(10) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in range(5) %}{% if i == 3 %}{% continue %}{% endif %}{{ i }}{% endfor %}
{% for i in range(3) %}{% for j in range(2) %}{{ loop.index }}{{ i }}{% endfor %}{{ loop.index }} {% endfor %}
{% for i in range(2) %}{% set outer = loop %}{% for j in range(2) %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}
{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}]}] recursive %}{{ n.v }}({{ loop(n.c) }}){% endfor %}
{% for i in missing %}a{% else %}none{% endfor %}
{% for i in none %}a{% endfor %}
{% for i in 5 %}a{% endfor %}
{% for i in [3, 1]|sort|reverse %}{{ i }}{{ loop.last }}{% endfor %}
{% for i in ['a']|map('upper') %}{{ i }}{{ loop.length }}{% endfor %}
{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}
{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}
{% set ns = namespace() %}{% set ns.a = [1] %}{{ ns.a }}{{ ns.b is defined }}
{% set ns = namespace({'a': 1}) %}{{ ns.a }}
{% set ns = namespace(d={}) %}{% set ns.d = dict(ns.d, a=1) %}{{ ns.d }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a, b = [3, 4] %}{{ a }}{{ b }}
{% set x %} a {{ 1 }} b {% endset %}[{{ x }}]{{ x|length }}{{ x is string }}
{% set x | upper %}abc{% endset %}{{ x }}
{% set x | trim | replace('a', 'b') %} aa {% endset %}[{{ x }}]
{% set x = [] %}{{ x.append(1) }}
{% set x = [1] %}{% set _ = x.append(2) %}{{ x }}
{% set x = {} %}{% set _ = x.update({'a': 1}) %}{{ x }}
{% set x = {'a': 1} %}{% set _ = x.pop('a') %}{{ x }}
{% set x = [1, 2] %}{{ x.pop() }}
{% set x = {'a': 1} %}{{ x.setdefault('b', 2) }}
{% set x = [3, 1] %}{{ x.sort() }}
{% set x = [1] %}{{ x.insert(0, 2) }}
{% set x = [1] %}{{ x + [2] }}{{ x }}
{% if missing %}a{% elif none %}b{% elif [] %}c{% elif 0 %}d{% elif '' %}e{% else %}f{% endif %}
{% if not missing and missing is not defined %}ok{% endif %}
{% if messages and messages[0].role == 'user' %}{{ messages[0]['content'] }}{% endif %}
{% if messages[0]['missing'] is defined and messages[0].missing is not none %}a{% else %}b{% endif %}
{% if 'tool_calls' in messages[1] and messages[1]['tool_calls'] is not none %}a{% else %}b{% endif %}
{{ messages[-1].content }}{{ messages|length }}{{ messages[1:]|length }}{{ messages[0].keys()|list }}
{{ messages[5] is defined }}{{ messages[0].nope is defined }}{{ messages[0].nope.nope is defined }}
{{ messages[0].nope.nope }}
{{ messages|map(attribute='role')|list }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}
{{ messages|selectattr('role', '==', 'user')|map(attribute='content')|join(',') }}{{ messages|rejectattr('role', 'in', ['user'])|list|length }}
{{ (messages|first).content }}{{ (messages|last)['role'] }}{{ messages|tojson }}
{{ messages[0]|tojson(indent=4) }}
{{ messages[0]|items|list }}{{ messages[0].items()|list }}{{ messages[0]|dictsort }}
{{ messages[0].get('content', '')|trim }}{{ messages[0].get('x', {}).get('y', 'z') }}
{{ tools is none }}{{ tools is defined }}{{ documents is none }}{{ add_generation_prompt }}{{ tools|default('x') }}{{ tools|default('x', true) }}
{{ messages[0].content.split('i')[0] }}{{ messages[0].content.startswith('H') }}{{ messages[0].content[0] }}{{ messages[0].content[-1:] }}
{%- if true -%} a {%- endif -%} b
{% if true %} a {% endif %} b
a {%- if true %} b {% endif -%} c
a {%+ if true %} b {%+ endif %} c
  {% if true %}x{% endif %}  y
{{- ' a ' -}} b {{ ' c ' }}
{# comment #}a{#- b -#} c {# {{ x }} #}
{% raw %}{{ a }}{% if %}{% endraw %}
{%- raw -%} {{ a }} {%- endraw -%} b
{{ '{{ a }}' }}{{ "{% if %}" }}
{{ 'a
b	c\d'e' }}{{ "a"b" }}{{ 'éA' }}
{{ "it's" }}{{ 'say "hi"' }}{{ ['it's', "a
b"] }}
{% filter upper %}abc {{ 'x' }}{% endfilter %}
{% filter replace('a', 'b')|upper %}aaa{% endfilter %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% with %}{% set x = 3 %}{{ x }}{% endwith %}{{ x is defined }}
{% generation %}a{{ 1 }}{% endgeneration %}
{% autoescape true %}{{ '<b>' }}{{ '<i>'|safe }}{% endautoescape %}{{ '<u>' }}
{% block a %}x{% endblock %}
{% include 'x' %}
{% import 'x' as y %}
{% extends 'x' %}
{% do [].append(1) %}
{{ raise_exception('no') }}
{% if false %}{{ raise_exception('no') }}{% endif %}ok
{{ strftime_now('%Y') is string }}
{{ self is defined }}{{ loop is defined }}{{ caller is defined }}
{{ 1 if true }}{{ 1 if false }}{{ 1 if false else 2 if false else 3 }}
{{ 'a' if messages|length > 1 and not messages[0].x else 'b' }}
{{ ('a' ~ 'b')|upper ~ 'c' }}{{ 'a' ~ 'b'|upper }}{{ 1 + 2 ~ 3 }}{{ 2 * 3 ~ 4 }}
{{ not true or true }}{{ not (true or true) }}{{ true and false or true }}{{ 1 < 2 and 2 < 3 }}
{{ 'a' in 'abc' and 'z' not in 'abc' }}{{ not 'a' in 'abc' }}{{ 'a' not in ['b'] }}
{{ -1 * 2 }}{{ -(1 + 2) }}{{ 2 - -1 }}{{ 3 - 1 - 1 }}{{ 8 / 2 / 2 }}{{ 2 ** 2 ** 0 }}
{{ [1, 2, 3][::2] }}{{ [1, 2, 3][-2:] }}{{ 'abcdef'[1:-1:2] }}{{ (1, 2, 3)[1:] }}{{ 'abc'[5:] }}{{ [1][:0] }}
{{ {'a': {'b': [1, {'c': 2}]}}.a.b[1].c }}{{ {'a-b': 1}['a-b'] }}{{ {'items': 1}.items }}
{{ {'items': 1}['items'] }}{{ {'get': 2}.get('get') }}{{ {'keys': 3}['keys'] }}
{{ {}.a is defined }}{{ {'a': none}.a is none }}{{ {'a': none}.a|default('x') }}{{ {'a': none}.a or 'x' }}
{{ [1, 2]|first }}{{ []|first is defined }}{{ 'abc'|last }}{{ {'a': 1}|first }}
{{ 'a,b'.split(',')|join('+') }}{{ 'a b  c'.split() }}{{ 'a b'.split(' ', 1)[1] }}{{ ' x '.strip() }}{{ 'x'.join(['a', 'b']) }}
{{ '%s-%d' % ('a', 3) }}{{ '%s' % 'a' }}{{ '%.2f' % 1.005 }}{{ '%03d' % 7 }}{{ '{}-{}'.format(1, 2) }}{{ '{:.1f}'.format(2.25) }}
{{ 1.0 }}{{ 1e3 }}{{ 0.1 + 0.2 }}{{ 1 / 3 }}{{ 10 // 3 }}{{ 10 % 3 }}{{ 2.5|round }}{{ 3.5|round|int }}{{ 1.234|round(2) }}
{{ 1|string + '1' }}{{ '3'|int + 1 }}{{ '1.5'|float * 2 }}{{ true|int }}{{ 'x'|int(5) }}{{ 12345|string|length }}
{{ true }}{{ none }}{{ [true, none, 1.0, 'a'] }}{{ {'a': true, 'b': none} }}{{ (1,) }}{{ () }}
{{ {'a': true, 'b': none, 'c': 1.0, 'd': 'é"
', 'e': [1, (2, 3)]}|tojson }}
{{ {'a': [], 'b': {}, 'c': [1, {'x': []}]}|tojson(indent=2) }}
{{ [1, 2]|tojson(indent=none) }}{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}{{ [1, 2]|tojson(separators=(',', ':')) }}{{ 'é'|tojson(ensure_ascii=false) }}
{{ 'a'|tojson ~ 1|tojson ~ none|tojson ~ true|tojson }}{{ '</script>'|tojson }}{{ "it's"|tojson }}
{{ missing ~ 'a' }}{{ missing|length }}{{ missing|upper }}{{ missing|list }}{{ missing|join }}{{ missing|first is defined }}
{{ missing + 'a' }}
{{ missing.a }}
{{ missing|tojson }}
{{ missing == none }}{{ missing is none }}{{ missing or 'x' }}{{ not missing }}{{ missing in [1] }}
{{ none ~ 'a' }}{{ none|string }}{{ none|length }}
{{ none|upper }}{{ none|trim }}{{ none|default('a') }}{{ none == false }}{{ none or 'b' }}
{{ none + 'a' }}
{{ none.a is defined }}{{ none.a }}
{{ none['a'] }}
{{ 5.a is defined }}
{{ 'a'.b is defined }}{{ 'a'.b }}
{{ 'a'.nope() }}
{{ {'a': 1}.nope() }}
{{ [1].nope() }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ [1] + 'a' }}
{{ 'a' * 'b' }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 'a' < 1 }}
{{ [1, 'a']|sort }}
{{ [1, 'a']|max }}
{{ [1, none]|sum }}
{{ {'a': 1} + {'b': 2} }}
{{ [1, 2].0 }}{{ [1, 2][0] }}{{ 'ab'.0 }}
{{ 'a'|nofilter }}
{{ 'a' is notest }}
{{ nofunction() }}
{{ 'x' | default }}{{ '' | default('a', true) }}{{ 0 | default(5, boolean=true) }}
{{ 'abc'|replace('b', '') }}{{ 'aaa'|replace('a', 'b', 2) }}{{ 'a
b'|replace('
', ' ') }}{{ 5|replace(5, 6) }}
{{ 'a
b
'|indent(2) }}|{{ 'a

b'|indent(2, blank=true) }}|{{ 'a
b'|indent(2, first=true) }}|{{ 'a'|indent('>>', true) }}
{{ ' a '|trim }}{{ '--a-'|trim('-') }}{{ ' a '.rstrip() }}|{{ 'xxaxx'.strip('x') }}{{ 'abab'.rstrip('b') }}{{ 'abc'.lstrip('ab') }}
{{ 'hello world'|title }}{{ 'HELLO wORLD'|capitalize }}{{ "it's a dog-day"|title }}{{ "it's a dog-day".title() }}{{ 'ÉTÉ'|lower }}
{{ 'hello world'|wordcount }}{{ 'abc'|center(7) }}|{{ 'abc'.center(7, '*') }}{{ 'abc'.ljust(5) }}|{{ 'abc'.rjust(5) }}{{ '5'.zfill(3) }}
{{ ['a', 'b']|join(', ') }}{{ [1, 2]|join }}{{ [[1, 2]]|join }}{{ [none, true]|join('-') }}{{ 'abc'|join('.') }}
{{ [3, 1, 2]|sort }}{{ ['b', 'A']|sort }}{{ ['b', 'A']|sort(case_sensitive=true) }}{{ [3, 1]|sort(reverse=true) }}{{ [{'a': 2}, {'a': 1}]|sort(attribute='a') }}
{{ [1, 2, 1]|unique|list }}{{ ['a', 'A']|unique|list }}{{ [1, 2, 3]|sum }}{{ [{'a': 1}, {'a': 2}]|sum(attribute='a') }}{{ [1, 2]|max }}{{ ['b', 'a']|min }}
{{ [1, 2, 3, 4, 5]|batch(2)|list }}{{ [1, 2, 3]|slice(2)|list }}{{ range(4)|list }}{{ range(1, 8, 3)|list }}{{ range(3)|length }}{{ 2 in range(3) }}
{{ [1, 2, 3]|reverse|list }}{{ 'abc'|reverse }}{{ [0, 1, '']|select|list }}{{ [0, 1]|reject|list }}{{ [1, 2, 3]|select('odd')|list }}
{% for g in [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}, {'a': 0, 'b': 4}]|groupby('a') %}{{ g.grouper }}:{{ g.list|length }}:{{ g[0] }} {% endfor %}
{% for k, l in [{'a': 'y'}, {'a': 'X'}]|groupby('a') %}{{ k }}{{ l }}{% endfor %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}
{% set j = joiner(', ') %}{% for i in [1, 2] %}{{ j() }}{{ i }}{% endfor %}
{{ dict(a=1, b=2) }}{{ dict([('a', 1)]) }}{{ dict({'a': 1}, b=2) }}{{ dict(a=1).a }}{{ dict() }}
{{ [x for x in [1]] }}
{{ lambda x: x }}
{{ {**{'a': 1}} }}
{{ f'a' }}
{{ 'a'.upper().lower().title() }}{{ 'abc'.replace('a', 'b').upper() }}{{ ('a' + 'b').upper() }}{{ 'a'.upper()|lower }}
{{ 'abc'.find('c') }}{{ 'abc'.index('b') }}{{ 'abc'.count('b') }}{{ 'abc'.rfind('z') }}{{ 'abc'.endswith('bc') }}{{ 'abc'.isalpha() }}{{ '12'.isdigit() }}
{{ 'a=b'.partition('=') }}{{ 'a.b.c'.rpartition('.')[2] }}{{ 'a.b.c'.rsplit('.', 1) }}{{ 'a
b'.splitlines() }}{{ 'aXb'.swapcase() }}{{ 'abc'.removeprefix('a') }}
{{ '<think>a</think>b'.split('</think>')[-1].lstrip('
') }}{{ '<think>a</think>b'.split('</think>')[0].rstrip('
').split('<think>')[-1].lstrip('
') }}
{{ messages[0].content is string }}{{ messages[0] is mapping }}{{ messages is iterable and messages is not string and messages is not mapping }}{{ messages is sequence }}
{{ 1 is number and 1.5 is number }}{{ true is boolean }}{{ 1 is integer }}{{ 1.0 is float }}{{ none is none }}{{ 'a' is sameas 'a' }}{{ [] is sameas [] }}
{{ 5 is divisibleby 5 }}{{ 4 is even }}{{ 3 is odd }}{{ 'A' is upper }}{{ 1 is eq 1 }}{{ 1 is ne 2 }}{{ 2 is gt 1 }}{{ 'upper' is filter }}{{ 'odd' is test }}
{{ namespace(a=1).a }}{{ namespace(a=1).b is defined }}{{ namespace }}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '
' + message.content | trim + '<|im_end|>' + '
' }}{%- endfor %}
{%- for m in messages %}{% if loop.first and m.role != 'system' %}SYS{% endif %}{{ m['role'] ~ ': ' ~ m['content'] }}{% if not loop.last %}|{% endif %}{%- endfor %}
{% set loop_messages = messages[1:] if messages[0]['role'] == 'user' else messages %}{{ loop_messages|length }}{{ (loop_messages[0]['role'] == 'assistant') != (1 % 2 == 0) }}
""".strip().splitlines()


def expressions():
    for value in VALUES:
        for name in FILTERS:
            yield f"{value}|{name}"
        for name in TESTS:
            yield f"{value} is {name}"
        for name in METHODS:
            yield f"({value}).{name}"
        for place in PLACES:
            yield f"({value}){place}"
        for operator in BINARY:
            for right in RIGHT:
                yield f"{value} {operator} {right}"
        for form in UNARY:
            yield form.replace("V", value)
    yield from OTHERS
    yield from TEMPLATES


def main():
    lines, addresses = [], 0
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello "}]
    for text in dict.fromkeys(expressions()):
        source = text if any(mark in text for mark in ("{{", "{%", "{#")) else "{{ " + text + " }}"
        try:
            template = _compile_jinja_template(source)
            result = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=False)
        except Exception:
            result = None
        if result is not None and (re.search(r"0x[0-9a-f]{8}", result) or "Undefined, missing" in result):
            addresses += 1
            continue
        if result is not None and len(result) > 5000:
            continue
        lines.append(json.dumps([text, result], ensure_ascii=False))
    path = Path(__file__).with_suffix(".jsonl")
    path.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} expressions, {addresses} left out, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
