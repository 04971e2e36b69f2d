"""docs/wiring.md, made from the wiring: `python -m astraflow.bus.docs docs/wiring.md`."""

import sys
from collections.abc import Iterable
from pathlib import Path

from astraflow.bus.names import ANY, Names
from astraflow.bus.rights import Rights, rights_of
from astraflow.bus.wiring import (
    EVERYBODY,
    FAMILIES,
    CoreSubject,
    KeyFamily,
    Limits,
    Row,
    core_subjects,
    home_rows,
)
from astraflow.messages.roles import Role

HEAD = """\
# Wiring

Everything that travels on the bus. Made from `astraflow/bus/wiring.py` by `make docs`; change it there.

Subjects stand behind `af.<run>.`, streams behind `AF_<run>_<region>_`; `*` is one token: an environment, a policy, an
actor, a digest. A message that is too big for one is stored as parts. In a region away from home the KV bucket and the
weights are mirrors; episodes, metrics and events go to the hub through outboxes. A server that stands alone keeps one
copy of a stream; a cluster keeps three (or `bus.replicas`), and all of them in files.
"""


def page() -> str:
    """The whole page."""
    names = Names(run="run", region="region")
    rows = home_rows(names, Limits(), (ANY,), (ANY,))
    lines = [HEAD, "## Streams", ""]
    lines += _table(
        ("stream", "subjects", "holds", "writers", "readers", "goes when", "purged by", "store", "full"),
        (_stream(row, names) for row in rows),
    )
    lines += ["## KV keys", "", "Of the stream `KV`: the newest value of each key.", ""]
    lines += _table(("keys", "holds", "writers", "a key goes"), (_family(family) for family in FAMILIES))
    lines += ["## Subjects that aren't stored", ""]
    lines += _table(
        ("subject", "carries", "sent by", "heard by"), (_core(core, names) for core in core_subjects(names))
    )
    lines += [
        "## Rights of the keys on a secured server",
        "",
        "What a key may publish to and hear, for run `run` in region `region`. `admin` may do everything in its run;",
        "`recorder` and `node` use the key of `observer`.",
        "",
    ]
    for role in Role.with_a_key():
        rights = rights_of(role, names, key="<key>")
        if rights is not None:
            lines += _rights(role, rights)
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)] + [""]


def _stream(row: Row, names: Names) -> tuple[str, ...]:
    bound = "publishers wait" if row.push_back else "the oldest go"
    return (
        f"`{row.stream.removeprefix(f'{names.bucket}_').replace(names.kv, 'KV')}`",
        _code(_short(pattern, names) for pattern in (*row.subjects, *row.parts)),
        ", ".join(kind.__name__ for kind in row.messages) or row.content,
        _roles(row.writers) or "see KV keys",
        _roles(row.readers) or "one at a time",
        row.released,
        _roles(row.purgers),
        f"{'work queue' if row.queue else 'log'}, {_storage(row)}",
        bound + (f", `{row.bound_key}`" if row.bound_key else ""),
    )


def _storage(row: Row) -> str:
    return ("memory" if row.memory else "file") + (f", ×{row.replicas}" if row.replicas else "")


def _family(family: KeyFamily) -> tuple[str, ...]:
    key = ".".join((family.name, *(f"<{token}>" for token in family.tokens)))
    holds = family.message.__name__ if family.message is not None else "nothing"
    return (f"`{key}`", holds, _roles(family.writers), family.expires)


def _core(core: CoreSubject, names: Names) -> tuple[str, ...]:
    kinds = ", ".join(kind.__name__ for kind in core.messages)
    return (f"`{_short(core.pattern, names)}`", kinds, _roles(core.writers), _roles(core.readers))


def _rights(role: Role, rights: Rights) -> list[str]:
    publish, subscribe = _code(rights.publish), _code(rights.subscribe)
    return [f"**{role}** publishes to {publish}; hears {subscribe}.", ""]


def _short(pattern: str, names: Names) -> str:
    return pattern.removeprefix(f"{names.root}.")


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _roles(roles: tuple[Role, ...]) -> str:
    return "all" if roles == EVERYBODY else ", ".join(roles)


def main() -> None:
    """Write the page to the path in argv[1]."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
