"""The table of metrics is the only place that spells their names, and the page that is made of it is current."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow.messages import metric_names
from astraflow.messages.metric_names import (
    DATAFLOW_READY_GROUPS,
    DATAFLOW_SELECT,
    EVAL_PASS_AT,
    FAMILIES,
    GAUGE,
    TABLE,
    TRAIN_LOSS,
    known,
)
from astraflow.messages.metrics_page import SECTIONS, page

ROOT = Path(__file__).parent.parent
OWN = {"astraflow/messages/metric_names.py"}
CONSTANTS = {name for name in vars(metric_names) if name.isupper()} - {"TABLE", "FAMILIES"}
PREFIXES = tuple(family.pattern.partition("<")[0] for family in FAMILIES)
KINDS = re.compile(r"(train|eval|rollout|weights|policy)\.[\w%{}]*(\.|$)")
"""Kinds whose names nothing else uses: keys of the run file begin with policies, envs, sources …"""
MORE = re.compile(r"(dataflow|bus|trainer|recorder|node)\.")


def spelled(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of everything that spells the name of a metric, whole or in part."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if text in TABLE or KINDS.match(text) or text.startswith(PREFIXES):
                yield node.lineno, text
            case ast.JoinedStr(values=values):
                if any(_names_metric(v.value) for v in values if isinstance(v, ast.FormattedValue)):
                    yield node.lineno, ast.unparse(node)
                if isinstance(values[0], ast.Constant) and MORE.fullmatch(str(values[0].value)):
                    yield node.lineno, ast.unparse(node)
            case ast.BinOp(left=left, right=right, op=ast.Add() | ast.Mod()):
                if (_names_metric(left) or _names_metric(right)) and not isinstance(left, ast.Set):
                    yield node.lineno, ast.unparse(node)


def _names_metric(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id in CONSTANTS) or (
        isinstance(node, ast.Attribute) and node.attr in CONSTANTS
    )


def test_no_module_but_the_table_spells_a_metric() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "astraflow").rglob("*.py"))
        if str(path.relative_to(ROOT)) not in OWN
        for line, text in spelled(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == [], "import the name from messages/metric_names.py; a new one is a row there"


@pytest.mark.parametrize(
    "line",
    [
        'values["train.loss"] = 1.0',
        'gauge("policy.brand_new", 1)',
        'values[f"eval.pass_at_{k}"] = 1.0',
        'values["eval.pass_at_" + str(k)] = 1.0',
        'values[f"train.{name}"] = 1.0',
        'values["train." + name] = 1.0',
        'values[f"{TRAIN}.{name}"] = 1.0',
        'values[f"{kind}.{TRAIN_LOSS}"] = 1.0',
        "values[TRAIN + '.loss'] = 1.0",
        'gauge(f"dataflow.{name}", 1)',
        'gauge("dataflow.buffered_groups.solver", 1)',
        'gauge("dataflow.credit", 1)',
        'gauge(f"{names.DATAFLOW_BUFFERED_GROUPS}.{policy}", 1)',
        'x = "rollout.%s" % name',
    ],
)
def test_every_way_to_spell_one_is_seen(line: str) -> None:
    assert list(spelled(ast.parse(line)))


def test_every_row_has_a_kind_that_the_page_shows_a_unit_and_a_meaning() -> None:
    assert {row.kind for row in TABLE.values()} == set(SECTIONS)
    assert all(name == row.name and row.unit and row.meaning for name, row in TABLE.items())
    assert all(row.kind in (GAUGE, name.partition(".")[0]) for name, row in TABLE.items())


def test_every_row_is_written_by_somebody() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "astraflow").rglob("*.py")
        if path.name != "metric_names.py" and "view" not in path.parts and "cli" not in path.parts
    )
    rows = {
        name: value
        for name, value in vars(metric_names).items()
        if (isinstance(value, str) and value in TABLE) or isinstance(value, metric_names.MetricFamily)
    }
    assert len(rows) == len(TABLE)
    used = [name for name in rows if len(re.findall(rf"\b{name}\b", source)) < 2]  # imported, and written
    assert used == [], "nobody writes it"


def test_a_member_of_a_family_is_made_and_read_in_one_place() -> None:
    assert EVAL_PASS_AT.of(8) == "eval.pass_at_8"
    assert EVAL_PASS_AT.parts("eval.pass_at_8") == ("8",)
    assert EVAL_PASS_AT.parts("eval.pass_at_") is None
    assert DATAFLOW_SELECT.of("sums", "p_easy") == "dataflow.select.sums.p_easy"
    assert DATAFLOW_SELECT.parts("dataflow.select.sums.p_easy") == ("sums", "p_easy")
    assert DATAFLOW_READY_GROUPS.of("solver") == "dataflow.buffered_groups.solver"
    assert all(known(name) for name in (TRAIN_LOSS, "eval.pass_at_1", "dataflow.buffered_groups.a"))
    assert not any(known(name) for name in ("loss", "train.los", "eval.pass_at_", "train.loss.x", ""))


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/metrics.md").read_text(encoding="utf-8") == page(), "run `make docs`"
