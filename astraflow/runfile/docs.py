"""The reference page of the run file, made from the schema: `python -m astraflow.runfile.docs docs/run-file.md`."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from astraflow.config import LossSection, RunConfig
from astraflow.learners.losses.presets import PRESETS
from astraflow.runfile.schema import ANY_NAME, Key, keys, named_section, section
from astraflow.runfile.toml import value_text

_INTRO = """# The run file

One TOML file describes a run: `astraflow up run.toml` starts it, `astraflow check run.toml` checks it and prints it
with every default filled in. Any key can be changed for one start with `--set KEY=VALUE`, as often as needed:

    astraflow up examples/tiny.toml --set run.name=tiny2 --set policies.solver.trainer.learning_rate=1e-4

The value is TOML; plain words need no quotes. Unknown keys are refused, with the nearest known one. Names (of runs,
policies, environments, sources, eval sets) are 1 to 32 of `a-z`, `0-9` and `-`. Relative paths start where the command
is run. Every number has its unit in its name or its description. Complete files are in `examples/`.

This page is made from `astraflow/config/` by `make docs`.
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [_INTRO]
    for path, kind in _tables(RunConfig, ()):
        rows = [k for k in keys(kind) if len(k.path) == 1]
        if not rows:
            continue
        title, _, meaning = (inspect.getdoc(kind) or "").partition(": ")
        parts.append(f"## [{'.'.join(path)}]\n\n{meaning[:1].upper()}{meaning[1:]}\n" if title else "")
        parts.append("| key | type | default | meaning |\n|---|---|---|---|")
        parts += [_row(row) for row in rows]
        parts.append("")
        parts += _presets() if kind is LossSection else []
    return "\n".join(parts).rstrip() + "\n"


def _presets() -> list[str]:
    """What each preset of a loss fills in."""
    lines = ["| preset | source | `trainer` | `trainer.loss` |", "|---|---|---|---|"]
    for name, preset in PRESETS.items():
        arxiv = preset.source.removeprefix("arXiv:")
        source = f"[{preset.source}](https://arxiv.org/abs/{arxiv})"
        tables = (
            ", ".join(f"`{key} = {value_text(value)}`" for key, value in table.items())
            for table in (preset.trainer, preset.loss)
        )
        lines.append(f"| `{name}` | {source} | {' | '.join(tables)} |")
    return [*lines, ""]


def _tables(
    kind: type[msgspec.Struct], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], type[msgspec.Struct]]]:
    if path:
        yield path, kind
    for field in msgspec.structs.fields(kind):
        if inner := section(field.type):
            yield from _tables(inner, (*path, field.name))
        elif inner := named_section(field.type):
            yield from _tables(inner, (*path, field.name, ANY_NAME))


def _row(key: Key) -> str:
    default = "required" if key.required else f"`{value_text(key.default)}`"
    return f"| `{key.path[0]}` | {_cell(key.type_name)} | {default} | {_cell(key.description)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page to the path in argv[1]."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
