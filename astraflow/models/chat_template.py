"""A model's chat template, in the dialect of Jinja that transformers defines.

Immutable sandbox, trimmed blocks, `{% generation %}` and loop controls, `raise_exception`, `strftime_now`, `tojson`
without HTML escapes; `tools` and `documents` are none where there are none. It reads no folder and knows no tokens.
Invariant: rendered text is UTF-8 encodable; given `Quoted` contents, it is the text of the same plain ones, with every
character marked as content or as the template's own.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from astraflow import clock
from astraflow.errors import ConfigError, EnvError
from astraflow.models.quoted import Quoted, has_content, joined, joined_by, plain, quoted, written

# Filters that make other text of theirs; what they make of content is content from end to end.
_OPAQUE = (
    "center e escape filesizeformat forceescape format indent pprint safe striptags title tojson truncate urlencode "
    "urlize wordwrap xmlattr"
)

_REFUSALS = (
    jinja2.exceptions.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str, *, where: str, special: Mapping[str, str]) -> None:
        """Args: where: whose it is, for errors; special: `bos_token` and so on. Raises: ConfigError."""
        self._where, self._special = where, dict(special)
        try:
            self._template = _Environment().from_string(source)
            tree = self._template.environment.parse(source)
        except jinja2.exceptions.TemplateError as exc:
            raise ConfigError(f"the chat template of {where} can't be compiled: {exc}") from exc
        except RecursionError as exc:
            raise ConfigError(f"the chat template of {where} can't be compiled: it is nested too deeply") from exc
        written_there = [node.data for node in tree.find_all(nodes.TemplateData)]
        constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
        self.literals = "\0".join([*written_there, *constants])
        """What the template writes of its own, its pieces parted by NUL."""

    def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]], *, marked: bool = False
    ) -> str:
        """The conversation as text, ready for a reply.

        Args:
            marked: give a Quoted that tells what is content: of messages and of tools, but not their roles. Contents
                that are Quoted keep their own marks.
        Raises: EnvError if the template refuses the messages, or hides from us what is content.
        """
        text = self._render(plain(messages), tools)
        if not marked:
            return text
        contents = [{**message, "content": quoted(message["content"])} for message in messages]
        found = self._render(contents, quoted(tools))
        if found != text:
            raise EnvError(
                f"the chat template of {self._where} writes a message that spells control tokens in a way that can't "
                "be followed; leave them out of the message"
            )
        return written(found)

    def _render(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> str:
        values = {"messages": list(messages), "tools": list(tools) or None, "documents": None}
        try:
            return _encodable(self._template.render(**self._special, **values, add_generation_prompt=True))
        except _REFUSALS as exc:
            raise EnvError(f"the chat template of {self._where} refuses these messages: {exc}") from exc


def _encodable(text: str) -> str:
    """`text` with lone surrogates, which a template's escapes can make, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return joined("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
    return text


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model learns from; here it is its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Names(Namespace):
    """A template's `namespace()`, which can't hold names of Python's own."""

    def __init__(*args: Any, **names: Any) -> None:
        self, *rest = args
        Namespace.__init__(self, *rest, **names)
        for name in dict(*rest, **names):
            _check_name(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}")


class _Generator(CodeGenerator):
    """Jinja's, but `a ~ b` keeps marks: jinja joins with functions of its own that know none."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.write("environment.finalize(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    """Where templates run. Whatever makes one string of others keeps, or sets, the marks of content."""

    code_generator_class = _Generator
    concat = staticmethod(joined)
    intercepted_binops = frozenset({"%", "+"})

    def __init__(self) -> None:
        extensions = [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_text_of)
        self.filters["tojson"] = _to_json
        self.filters |= {name: _opaque(self.filters[name]) for name in _OPAQUE.split()}
        self.filters |= {name: _marking(self.filters[name]) for name in ("replace", "join")} | {"string": _text_of}
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": _Names}

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:
        """A call in a template. Macros join their pieces with marks; other functions that get content give content."""
        if isinstance(obj, Macro) or not (has_content(_owner(obj)) or has_content(args) or has_content(named)):
            return super().call(context, obj, *args, **named)
        if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str) and obj.__name__ in ("join", "replace"):
            obj = getattr(written(obj.__self__), obj.__name__)
        result = super().call(context, obj, *args, **named)
        return Quoted(result) if isinstance(result, str) and not isinstance(result, Quoted) else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`+` and `%`. Text that must not be escaped comes of a class of jinja's that would lose the marks."""
        given = (plain(left), plain(right)) if operator == "%" else (left, right)
        result = super().call_binop(context, operator, *given)
        lost = isinstance(result, str) and not isinstance(result, Quoted) and has_content([left, right])
        return Quoted(result) if lost else result


def _text_of(value: Any) -> str:
    """What a template writes of a value; a list or an object that holds content is content from end to end."""
    if isinstance(value, str):
        return value
    return Quoted(str(value)) if has_content(value) else str(value)


def _owner(method: Any) -> Any:
    return getattr(method, "__self__", None)


def _opaque(act: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(act)
    def acting(*args: Any, **named: Any) -> Any:
        if not (has_content(args) or has_content(named)):
            return act(*args, **named)
        result = act(*plain(args), **plain(named))
        return Quoted(result) if isinstance(result, str) else result

    return acting


def _marking(act: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that calls a method of its string: that string has marks if an argument has."""

    @functools.wraps(act)
    def acting(*args: Any, **named: Any) -> Any:
        if act.__name__ == "do_join":
            return _join(act, *args, **named)
        if has_content(args) or has_content(named):
            args = tuple(written(value) if isinstance(value, str) else value for value in args)
        return act(*args, **named)

    return acting


def _join(act: Callable[..., Any], context: Any, value: Any, d: str = "", attribute: str | int | None = None) -> Any:
    items = list(value)
    if not has_content(items) and attribute is None:
        return act(context, items, d)
    if attribute is not None:
        items = list(map(jinja2.filters.make_attrgetter(context.environment, attribute), items))
    return joined_by(str(d), [_text_of(item) for item in items]) if has_content(items) else act(context, items, d)


def _refuse(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _now(form: str) -> str:
    return datetime.fromtimestamp(clock.wall()).strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Iterable[str] | None = None,
    sort_keys: bool = False,
) -> str:
    pair = None if separators is None else tuple(separators)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)  # type: ignore[arg-type]
