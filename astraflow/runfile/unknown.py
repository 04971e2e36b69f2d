"""What stands where a run file's value is wrong, so that the rest can still be checked: nobody may look at it.

A check that would depend on it ends silently, because what it would say might not be true; the others go on.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from astraflow.config import DataflowSection, RunConfig, RunSection
from astraflow.errors import ConfigError


class _LookedAtUnknownError(Exception):
    """A check needs a value that isn't known."""


class _Unknown:
    """Raises _LookedAtUnknownError whatever is done with it, but for `is`."""

    def _look(self, *_: object) -> NoReturn:
        raise _LookedAtUnknownError

    __getattr__ = __call__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = _look
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _look
    __str__ = __repr__ = __format__ = __fspath__ = __int__ = __float__ = __index__ = _look
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _look


UNKNOWN: Any = _Unknown()


def settled(checks: Iterable[Iterator[ConfigError]]) -> Iterator[ConfigError]:
    """The mistakes that the checks find, each as far as it comes without an unknown value."""
    with suppress(_LookedAtUnknownError):  # a whole table is unknown
        for check in checks:
            with suppress(_LookedAtUnknownError):
                yield from check


def forget(config: RunConfig, table: str, name: str, key: str) -> RunConfig:
    """The config with one key of [<table>.<name>] unknown."""
    sections = getattr(config, table)
    changed = msgspec.structs.replace(sections[name], **{key: UNKNOWN})
    return msgspec.structs.replace(config, **{table: sections | {name: changed}})


def holds_unknown(tree: Any) -> bool:
    """Whether anything in a TOML tree is unknown."""
    if isinstance(tree, dict | list):
        return any(map(holds_unknown, tree.values() if isinstance(tree, dict) else tree))
    return tree is UNKNOWN


def known_part(config: RunConfig) -> RunConfig | None:
    """The environments that are known, and what else is known of their tasks; None if nothing is."""
    if any(table is UNKNOWN for table in (config.policies, config.envs, config.sources, config.eval)):
        return None
    envs = _known(config.envs)
    return RunConfig(
        run=RunSection(name="check"),
        policies=_known(config.policies),
        envs=envs,
        sources={name: source for name, source in _known(config.sources).items() if source.env in envs},
        eval={name: held_out for name, held_out in _known(config.eval).items() if held_out.env in envs},
        dataflow=config.dataflow if _is_known(config.dataflow) else DataflowSection(),
    )


def _known(sections: dict[str, Any]) -> dict[str, Any]:
    return {name: section for name, section in sections.items() if _is_known(section)}


def _is_known(value: Any) -> bool:
    if value is UNKNOWN:
        return False
    if isinstance(value, msgspec.Struct):
        return all(_is_known(getattr(value, name)) for name in value.__struct_fields__)
    return True
