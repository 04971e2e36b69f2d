"""Every key of the run file: its default, that it can be set, and that it is documented."""

import tomllib
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from astraflow.config import RunConfig
from astraflow.runfile import load, resolved
from astraflow.runfile.decode import Where, decode
from astraflow.runfile.docs import page
from astraflow.runfile.overrides import apply
from astraflow.runfile.schema import ANY_NAME, Key, bare, keys
from tests.runfile.runfiles import TOY, load_light

ROOT = Path(__file__).parent.parent.parent


def test_a_small_file_gets_every_default(file: Path) -> None:
    config = load(file)
    assert config.policies["solver"].trainer is not None
    assert config.policies["solver"].trainer.batch_groups == 8
    assert config.bus.ack_wait_s == 30.0


def test_the_resolved_file_reads_back_equal(file: Path) -> None:
    config = load_light(file, "envs.game.args={ seed = 3, words = ['a', \"b'\"], deep = { x = 1.5 } }")
    again = file.with_name("resolved.toml")
    again.write_text(resolved(config))
    assert load_light(again) == config


@pytest.mark.parametrize("example", sorted((ROOT / "examples").rglob("*.toml")), ids=lambda path: path.stem)
def test_examples_are_valid(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    load(example)


def other_value(key: Key, current: Any) -> str:
    """A valid value that differs from the current one, as one would type it."""
    kind = bare(key.annotation)
    special = {
        ("run", "name"): "other",
        ("policies", ANY_NAME, "model"): "tiny-add",
        ("envs", ANY_NAME, "kind"): "tiny",
        ("envs", ANY_NAME, "args"): "{ task = 'add' }",
        ("envs", ANY_NAME, "roles"): "{ critic = 'solver' }",
        ("policies", ANY_NAME, "shown_tokens"): "['<verdict>']",
        ("policies", ANY_NAME, "trainer", "filters"): "['truncated']",
        ("policies", ANY_NAME, "trainer", "loss", "args"): "{ scale = 2 }",
        ("sources", ANY_NAME, "env"): "other-env",
        ("eval", ANY_NAME, "env"): "other-env",
    }
    if key.path in special:
        return special[key.path]
    if get_origin(kind) is dict:
        return "{ some = 1 }"
    if kind is bool:
        return str(not current).lower()
    if kind is int:
        return str(current + 1)
    if kind is float:
        return "0.5" if current != 0.5 else "0.25"
    if kind is str:
        return "elsewhere"
    return str(next(choice for choice in get_args(kind) if choice != current))


@pytest.mark.parametrize("key", list(keys()), ids=lambda key: ".".join(key.path))
def test_every_key_can_be_set(key: Key) -> None:
    names = {"policies": "solver", "envs": "game", "sources": "game", "eval": "held-out"}
    path = [names[key.path[0]] if part == ANY_NAME else part for part in key.path]
    tree = tomllib.loads(TOY)

    def value(config: RunConfig) -> Any:
        found: Any = msgspec.to_builtins(config)
        for part in path:
            if found is None:  # a table that needn't be there
                return key.default
            found = found[part]
        return found

    before = value(decode(tree, Where())[0])
    apply(tree, [f"{'.'.join(path)}={other_value(key, before)}"])
    config, mistakes = decode(tree, Where())
    assert (value(config) != before, mistakes) == (True, [])


def test_every_key_has_a_description() -> None:
    assert [".".join(key.path) for key in keys() if not key.description] == []


def test_the_reference_page_is_current() -> None:
    assert (ROOT / "docs/run-file.md").read_text(encoding="utf-8") == page(), "run `make docs`"
