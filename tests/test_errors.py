"""errors.py holds every error, and its page shows all of them."""

import ast
import re
from pathlib import Path

from astraflow import errors
from astraflow.errors import AstraflowError

PACKAGE = Path(__file__).parent.parent / "astraflow"
INSIDE_A_SERVER = PACKAGE / "engines/sglang/serverside"  # imports nothing of this package
RAISED = re.compile(r"(Error|Exception|Interrupt|Exit)$")


def test_no_other_module_has_a_public_error() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "errors.py" and not path.is_relative_to(INSIDE_A_SERVER)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if any(RAISED.search(ast.unparse(base)) for base in node.bases)
    ]
    assert found == [], "move it to astraflow/errors.py, or make it private"


def test_the_tree_shows_every_error_below_its_base() -> None:
    shown: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r" {4}([│├└─ ]*)(\w+Error)\b", line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            shown[found[2]] = path[depth - 1] if depth else ""
    defined = {
        name: "" if kind is AstraflowError else kind.__bases__[0].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    assert shown == defined
