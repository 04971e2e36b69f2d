"""Chat templates render as transformers renders them, and tell what is content through whatever they do to it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.errors import ConfigError, EnvError
from astraflow.models.chat_template import ChatTemplate
from astraflow.models.quoted import Quoted, joined, marks_of

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": ' a "quote" <b> & ü 🎉\n\ttab\n'},
    {"role": "assistant", "content": "<think>\nhm <s>\n</think>\n\n 4 "},
    {"role": "user", "content": "x</s>y, z"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "it's <é>", "parameters": {"b": 1, "a": None}}}]
THINKING = """{%- set ns = namespace(last=-1) -%}
{%- for m in messages[::-1] -%}
    {%- set index = messages|length - 1 - loop.index0 -%}
    {%- if ns.last < 0 and m.role == 'user' and not m.content.startswith('<tool_response>') -%}
        {%- set ns.last = index -%}
    {%- endif -%}
{%- endfor -%}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- set thoughts, said = '', m.content %}
        {%- if '</think>' in m.content %}
            {%- set said = m.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set thoughts = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + m.role + '\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + said }}
    {%- else %}
        {{- '<|im_start|>' ~ m.role ~ '\\n' ~ m['content'] }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""


def each(*parts: str) -> str:
    """A template that writes these parts for every message `m`."""
    return "{% for m in messages %}" + "".join(parts) + "{% endfor %}"


TEMPLATES = [
    *[
        each(f"[{left}generation{right} {{{{ m.content }}}} {left}endgeneration{right}]\n")
        for left in ("{% ", "{%- ", "{%", "{%-", "{%+ ")
        for right in (" %}", " -%}", "%}", "-%}", " +%}")
    ],
    each("{% if loop.index0 == 1 %}{% continue %}{% elif loop.last %}{%- break -%}{% endif %}{{ m.content }}"),
    "  {% if true %}\n  kept {# gone #}\n\t{% endif %}\nx\n\n",
    "{{ strftime_now('%Y') }}{{ bos_token }}{{ eos_token }}{{ unknown }}{{ add_generation_prompt }}",
    "{{ tools is none }}{{ tools is defined }}{{ documents is none }}"
    "{{ documents }}{% if tools %}{{ tools[0].function.name }}{% endif %}",
    "{{ messages | tojson }}{{ tools | tojson(indent=2) }}"
    "{{ messages | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}",
    each("{{ m.content | trim }}|{{ m['content'].strip() | upper }}|{{ (m.content ~ m.role)[1:4] }}"),
    each("{{ '%s=%s' % (m.role, m.content) }}{{ '<{}>'.format(m.content) }}{{ '%5s' | format(m.content) }}"),
    each(
        "{{ m.content | replace('e', '<s>') }}{{ 'e-e' | replace('e', m.content) }}",
        "{{ 'ab'.replace('b', m.content) }}",
    ),
    each(
        "{{ ['<s>', m.content] | join('</s>') }}{{ '+'.join([m.content, m.role]) }}",
        "{{ m.content.split() | join(' ') }}",
    ),
    "{{ messages | map(attribute='content') | join('</s>') }}{{ messages | join(';', attribute='content') }}",
    "{% macro say(m, end) %}{{ m.content }}{{ end }}{{ caller() if caller else '' }}{% endmacro %}"
    + each("{{ say(m, '</s>') }}{% call say(m, '!') %}({{ m.content }}){% endcall %}"),
    each(
        "{% set both %}{{ m.content }}</s>{% endset %}{{ both }}",
        "{{ both | length }}{% filter trim %} {{ m.content }} {% endfilter %}",
    ),
    each(
        "{% set a, b, c = m.content.partition(' ') %}{{ c ~ a }}{{ m.content.splitlines() | last }}",
        "{{ m.content * 2 }}{{ m.content[::-1] }}",
    ),
    each(
        "{{ m.content | indent(2) }}{{ m.content | title }}{{ m.content.center(40) }}",
        "{{ m.content | list | first }}{{ m.content | e }}",
    ),
    "{% set ns = namespace(all='') %}" + each("{% set ns.all = ns.all + m.content %}") + "{{ ns.all }}",
    "{{ ('<' | safe) + messages[1].content }}{{ messages[0] }}{{ messages[1] | string }}{{ messages[1] ~ 1 }}",
    "{{ messages[1].items() }}{{ messages[1].values() }}{{ messages[0] }}"
    "{{ messages[1].items() | list }}{{ dict(a=messages[1].content) | tojson }}",
    THINKING,
]


@pytest.fixture(scope="module")
def official():
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(source, messages, tools=None):
        options = {"chat_template": source, "tools": tools, "add_generation_prompt": True, **SPECIAL}
        return render_jinja_template([messages], **options)[0][0]

    return render


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_templates_render_as_in_transformers(official, source, tools):
    template = ChatTemplate(source, where="x", special=SPECIAL)
    expected = official(source, CHAT, tools)
    assert template.render(CHAT, tools or ()) == expected
    assert template.render(CHAT, tools or (), marked=True) == expected


def test_what_is_content_is_told_through_a_template_that_takes_thoughts_apart():
    marked = ChatTemplate(THINKING, where="x", special=SPECIAL).render(CHAT, (), marked=True)
    assert isinstance(marked, Quoted)
    own = "".join(
        letter if mark == "0" else "·" for letter, mark in zip(str(marked.plain), marks_of(marked), strict=True)
    )
    turn = "<|im_start|>{}\n"
    assert own == (
        turn.format("system")
        + "·" * 10
        + "<|im_end|>\n"
        + turn.format("user")
        + "·" * len(CHAT[1]["content"])
        + "<|im_end|>\n"
        + turn.format("assistant")
        + "<think>\n"
        + "·" * 6
        + "\n</think>\n\n"
        + "·" * 3
        + "<|im_end|>\n"
        + turn.format("user")
        + "·" * 9
        + "<|im_end|>\n"
        + turn.format("assistant")
    )


@pytest.mark.parametrize("source", [source for source in TEMPLATES if "length" not in source])
def test_no_letter_of_content_counts_as_the_templates_own(source):
    """A letter of its own stands for content: wherever it ends up, it is marked."""
    chat = [{"role": "user", "content": "Ж Ж\nЖ"}, {"role": "assistant", "content": "Ж<think>Ж"}]
    tools = [{"name": "Ж", "Ж": {"a": ["Ж"]}}]
    template = ChatTemplate(source.replace("tools[0].function.name", "tools"), where="x", special=SPECIAL)
    marked = template.render(chat, tools, marked=True)
    assert all(mark == "1" for letter, mark in zip(marked, marks_of(marked), strict=True) if letter == "Ж")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% set _ = messages.append(1) %}", "not safely callable|unsafe"),
        ("{% set _ = messages[0].update(a=1) %}", "not safely callable|unsafe"),
        ("{{ namespace(_a=1) }}", "_a"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages[7].content }}", "no element"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_what_a_template_refuses_is_an_env_error(source, message):
    template = ChatTemplate(source, where="x", special=SPECIAL)
    for marked in (False, True):
        with pytest.raises(EnvError, match=message):
            template.render(CHAT, (), marked=marked)


def test_a_template_that_hides_what_is_content_is_refused_rather_than_misread():
    template = ChatTemplate("{{ (messages[0].content | safe) + '<b>' }}", where="x", special=SPECIAL)
    assert template.render([{"role": "user", "content": "a"}], ()) == "a&lt;b&gt;"
    with pytest.raises(EnvError, match="can't be followed"):
        template.render([{"role": "user", "content": "<s>"}], (), marked=True)


def test_a_template_that_cant_be_compiled_is_a_config_error():
    with pytest.raises(ConfigError, match="the chat template of m can't be compiled"):
        ChatTemplate("{% generation %}", where="m", special=SPECIAL)


TEXT = st.text(st.sampled_from(list("ab <>/\n\tß")), max_size=12)


@given(TEXT, TEXT, st.integers(-3, 3), st.integers(-9, 9))
def test_a_quoted_text_does_what_a_string_does_and_keeps_a_mark_for_every_letter(text, other, count, at):
    """Letters are told apart by upper case, which only content has."""
    text = text.upper()
    marked = Quoted(text)

    def same(given, expected):
        assert given == expected
        if isinstance(expected, str):
            marks = marks_of(given)
            assert len(marks) == len(expected)
            assert all(mark == "1" for letter, mark in zip(expected, marks, strict=True) if letter in "ABS")
        else:
            assert len(given) == len(expected)
            for piece, plain in zip(given, expected, strict=True):
                same(piece, plain)

    same(other + marked + other, other + text + other)
    same(joined([other, marked]), other + text)
    same(marked[at:], text[at:])
    same(marked[::-1], text[::-1])
    same(marked * abs(count), text * abs(count))
    same(list(marked), list(text))
    for name in ("strip", "lstrip", "rstrip"):
        same(getattr(marked, name)(), getattr(text, name)())
        same(getattr(marked, name)(other), getattr(text, name)(other))
    for name in ("split", "rsplit"):
        same(getattr(marked, name)(None, count), getattr(text, name)(None, count))
        if other:
            same(getattr(marked, name)(other, count), getattr(text, name)(other, count))
    same(marked.splitlines(), text.splitlines())
    same(marked.splitlines(True), text.splitlines(True))
    if other:
        same(marked.partition(other), text.partition(other))
        same(marked.rpartition(other), text.rpartition(other))
    same(marked.replace(other, "<s>", count), text.replace(other, "<s>", count))
    same(marked.removeprefix(other), text.removeprefix(other))
    same(marked.removesuffix(other), text.removesuffix(other))
    same(marked.join([other, "x", marked]), text.join([other, "x", text]))
    assert hash(marked) == hash(text)
    assert type(marked.plain) is str
