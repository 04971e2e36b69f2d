"""No name of an internal event reaches a terminal bare."""

import ast
import logging
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow.cli.logged import SENTENCES, say_warnings

PACKAGE = Path(__file__).parents[2] / "astraflow"
LOUD = {"warning", "error", "exception", "critical"}


def logged() -> Iterator[tuple[str, set[str]]]:
    """Names under which something is logged that isn't a sentence, and its fields."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOUD):
                continue
            if not (node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)):
                continue
            fields = {
                key.value
                for word in node.keywords
                if word.arg == "extra" and isinstance(word.value, ast.Dict)
                for key in word.value.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
            if " " not in node.args[0].value:
                yield node.args[0].value, fields


def test_every_name_has_a_sentence_of_the_fields_that_it_brings() -> None:
    found = list(logged())
    assert {name for name, _ in found} == set(SENTENCES)
    for name, fields in found:
        wanted = {field for _, field, _, _ in string.Formatter().parse(SENTENCES[name]) if field}
        assert wanted <= fields, name


@pytest.fixture
def package_log() -> Iterator[None]:
    log = logging.getLogger("astraflow")
    before = (list(log.handlers), log.propagate)
    yield
    log.handlers, log.propagate = before


@pytest.mark.usefixtures("package_log")
def test_a_warning_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    say_warnings()
    log = logging.getLogger("astraflow.bus.deadletters")
    log.warning("bus.dead_letter", extra={"stream": "AF_x", "sequence": 7, "why": "no magic"})
    log.warning("rows left out", extra={"why": "they are empty"})
    log.info("bus.quiet")
    log.error("process-failed", extra={"text": "told by the view", "fields": {}})  # as `Bus.event` logs
    assert capsys.readouterr().err.splitlines() == [
        "astraflow: message 7 of AF_x can't be read and is set aside: no magic",
        "astraflow: rows left out: they are empty",
    ]
