"""Every package says in its `__init__` what is where."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "astraflow"
PACKAGES = [
    init.parent
    for init in sorted(PACKAGE.rglob("__init__.py"))
    if init.parent != PACKAGE and "serverside" not in init.parts  # a server imports that one
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(PACKAGE)))
def test_a_package_maps_its_modules(package: Path) -> None:
    page = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")), clean=False) or ""
    listed = {name for line in re.findall(r"^(?: {4})?(\w+(?:, \w+)*)  +\S", page, re.M) for name in line.split(", ")}
    named = set(re.findall(r"`(\w+)(?:/|\.py)?`", page))
    there = {
        path.stem for path in package.iterdir() if (path.suffix == ".py" or path.is_dir()) and path.stem[:2] != "__"
    }
    assert there - listed - named == set(), "a line for each of these: `    name  what is there`"
    assert listed - there == set(), "these are gone"
