"""`astraflow submit`: puts a run onto a server that is there already, for nodes to take up. It starts no actor.

What it stores is for every machine: how this one reaches the server is left out. Invariant: the config of a run that is
open never changes, because its actors have read it; one that has ended is continued as `up` continues it.
"""

from enum import StrEnum

import msgspec
from rich.console import Console

from astraflow.actors.base.connection import Connection
from astraflow.actors.base.run_record import read_record
from astraflow.bus import NatsBus, topology_of
from astraflow.config import RunConfig, from_json
from astraflow.errors import ConfigError
from astraflow.messages import RunRecord
from astraflow.node.entering import enter_run
from astraflow.node.record import bare_topology
from astraflow.node.run_changes import changed_keys


class _Submitted(StrEnum):
    """What became of it."""

    NEW = "new"
    OPEN = "open"  # it was there, with the same config, and goes on
    REOPENED = "reopened"  # it had been stopped, or has more steps to do now
    FINISHED = "finished"  # nothing is left to do


async def submit(config: RunConfig, connection: Connection, console: Console) -> tuple[_Submitted, RunRecord]:
    """Enter the run. Raises ConfigError if it is open with another config, or can't be continued with this one."""
    config = _for_every_machine(config, connection.url)
    options = connection.to_enter(config.run.name)
    async with NatsBus.connect(options, bare_topology(connection, config.run.name), producer="submit") as bus:
        old = await read_record(bus)
    if old is not None and not old.stop_requested:
        _refuse_changes(_for_every_machine(from_json(old.config_json), connection.url), config)
        return _Submitted.OPEN, old
    async with NatsBus.connect(options, topology_of(config), producer="submit") as bus:
        if old is None:
            await bus.ensure()
        entered = await enter_run(bus, config, console)
        record = await read_record(bus)
    assert record is not None, "it was entered"
    if not entered:
        return _Submitted.FINISHED, record
    return _Submitted.NEW if old is None else _Submitted.REOPENED, record


def _for_every_machine(config: RunConfig, url: str) -> RunConfig:
    """Without the files with which this machine is let in."""
    bus = msgspec.structs.replace(
        config.bus, url=url, token_file="", credentials_file="", credentials_dir="", ca_file=""
    )
    return msgspec.structs.replace(config, bus=bus)


def _refuse_changes(old: RunConfig, new: RunConfig) -> None:
    """Raises ConfigError, with what differs, if the configs aren't equal."""
    changes = [f"{key}: {was!r} → {now!r}" for key, (was, now) in changed_keys(old, new).items()]
    if changes:
        raise ConfigError(
            f"run {old.run.name!r} is open on this server with another config ({'; '.join(changes)}); end it first "
            "with `astraflow stop`, or choose another run.name"
        )
