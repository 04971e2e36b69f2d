"""Every event that the code tells and every reason that it counts has an entry in docs/troubleshooting.md, and no
entry is of one that is gone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from astraflow.actors.recorder.summary import FAILED
from astraflow.actors.rollout.recording import Fork
from astraflow.dataflow.filters import FILTERS
from astraflow.dataflow.ledger import Fate
from astraflow.messages import CONTROL_EVENT, FINISHED, PROCESS_FAILED, STOPPED, ControlKind, Reason, goal

ROOT = Path(__file__).parents[1]
LEVELS = {"info", "warning", "error"}
NAMED = {"CONTROL_EVENT": CONTROL_EVENT, "PROCESS_FAILED": PROCESS_FAILED}


def calls() -> Iterator[tuple[Path, ast.Call]]:
    for path in sorted((ROOT / "astraflow").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield path, node


def named(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def constants(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def told() -> tuple[set[str], set[str], set[str]]:
    """Events, reasons of skipped steps, reasons of refusals: as they stand in the code."""
    events, skipped, refused = set(), set(), set()
    for path, call in calls():
        where = f"{path.relative_to(ROOT)} line {call.lineno}"
        if named(call) == "event" and len(call.args) >= 3:
            name = call.args[1]
            if isinstance(name, ast.Constant):
                events.add(name.value)
            elif isinstance(name, ast.Name) and name.id in NAMED:
                events.add(NAMED[name.id])
            else:
                of_a_problem = isinstance(name, ast.Attribute) and name.attr == "kind"
                passed_on = path.parts[-2:] in (("bus", "bus.py"), ("memory", "bus.py"), ("bus", "telling.py"))
                assert of_a_problem or passed_on, f"{where}: write the event's name out, so that it can be looked up"
        if named(call) == "Problem":
            assert isinstance(call.args[0], ast.Constant), f"{where}: write the event's name out"
            events.add(call.args[0].value)
        if named(call) == "refused" and isinstance(call.func, ast.Name) and call.args:
            refused |= constants(call.args[0]) if isinstance(call.args[0], ast.Constant) else set()
        if named(call) == "_skip":
            skipped |= constants(call.args[0])
        skipped |= {
            word.value.value
            for word in call.keywords
            if word.arg == "skip_reason" and isinstance(word.value, ast.Constant) and word.value.value
        }
    return events, skipped, refused


def entries() -> dict[str, list[list[str]]]:
    """Section → the cells of its rows."""
    found: dict[str, list[list[str]]] = {}
    for part in (ROOT / "docs/troubleshooting.md").read_text().split("\n## ")[1:]:
        rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
        found[part.splitlines()[0]] = [[cell.strip() for cell in row] for row in rows]
    return found


def words(section: str) -> set[str]:
    return {word for row in entries()[section] for word in re.findall(r"`([^`]+)`", row[0])}


def test_every_event_has_an_entry() -> None:
    events, _, _ = told()
    assert len(events) > 25
    assert words("Events") == events


def test_every_reason_has_an_entry() -> None:
    _, skipped, refused = told()
    assert words("Reasons of episodes and tasks") == {*Reason, *Fate, *FILTERS}
    assert words("Reasons of skipped steps") == skipped - {*Fate}
    assert words("Reasons of forks") == {*Fork}
    assert words("Refusals") == refused | {*ControlKind}
    assert words("Why a run stopped") == {FINISHED, STOPPED, "drain", FAILED, goal("").strip(": ")}


def test_every_entry_says_what_it_means_and_an_event_what_to_do() -> None:
    for section, rows in entries().items():
        for row in rows:
            assert row[1], row
            assert len(row) == 3, row
            assert row[2] or section != "Events", row
