"""The import contracts cover the whole package: a new room can't be forgotten."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_has_its_place_in_the_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    package = ROOT / "astraflow"
    modules = {
        "astraflow." + path.stem
        for path in package.glob("[a-z]*")
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    for split in ("actors", "weights"):
        modules.remove(f"astraflow.{split}")
        modules |= {
            f"astraflow.{split}.{path.name}"
            for path in (package / split).glob("[a-z]*")
            if (path / "__init__.py").exists()
        }
    assert placed == modules
