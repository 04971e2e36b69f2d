"""The run's record, as those who don't belong to the run yet read it: now, or when it is there.

It writes nothing (`entering.py`).
"""

import asyncio
from collections.abc import Callable, Mapping

from astraflow.actors.base.connection import Connection
from astraflow.actors.base.run_record import other_region, read_record
from astraflow.bus import NatsBus, Topology
from astraflow.errors import BusError, ConfigError
from astraflow.messages import RunRecord
from astraflow.messages.roles import Role
from astraflow.named import did_you_mean

_NAMES_WITHIN_S = 2.0
LOOK_EVERY_S = 0.5  # a run that isn't there can't be watched


def bare_topology(connection: Connection, run: str) -> Topology:
    """Enough of a run's names to read its record."""
    return Topology(run=run, region=connection.region, envs=(), policies=())


async def fetch_record(connection: Connection, run: str, role: Role = Role.OBSERVER) -> RunRecord:
    """The run's record from the bus. Raises ConfigError if there is no such run, BusError."""
    async with NatsBus.connect(connection.options(role), bare_topology(connection, run), producer="node") as bus:
        record = await read_record(bus)
        if record is None:
            raise ConfigError(
                f"there is no run {run!r} on {connection.url}{other_region(bus)}{await _meant(bus, run)}; start it "
                "there with `astraflow up` or `astraflow submit`"
            )
    return record


async def open_run(connection: Connection, run: str, report: Callable[[str], None]) -> RunRecord:
    """The record of a run that goes on, as soon as there is one. `run` "" = the only one that does.

    Says in a sentence what it waits for. Raises: ConfigError if `run` is "" and several are open; BusError.
    """
    async with NatsBus.connect(connection.options(), bare_topology(connection, run or "any"), producer="node") as bus:
        said = ""
        while True:
            record, why = _choose(await _known(bus, run), run, connection.url)
            if record is not None:
                return record
            if why != said:
                report(why + other_region(bus) + ("" if not run else await _meant(bus, run)))
                said = why
            await asyncio.sleep(LOOK_EVERY_S)


async def _meant(bus: NatsBus, run: str) -> str:
    """`; did you mean 'multi'?`, if the server has such a run and lets us see it."""
    try:
        async with asyncio.timeout(_NAMES_WITHIN_S):
            names = await bus.runs()
    except (BusError, TimeoutError):
        return ""
    return did_you_mean(run, [name for name in names if name != run])


async def _known(bus: NatsBus, run: str) -> Mapping[str, RunRecord]:
    if not run:
        return await bus.runs()
    record = await read_record(bus)
    return {run: record} if record is not None else {}


def _choose(known: Mapping[str, RunRecord], run: str, url: str) -> tuple[RunRecord | None, str]:
    """The run to join, or why there is none yet. Raises ConfigError for several."""
    going_on = [record for record in known.values() if not record.stop_requested]
    if len(going_on) > 1:
        names = ", ".join(record.name for record in going_on)
        raise ConfigError(f"several runs are open on {url}: {names}; say with --run which one this node is for")
    if going_on:
        return going_on[0], ""
    if run in known:
        return None, f"run {run} on {url} has ended ({known[run].stop_requested}); waiting until it is submitted again"
    return None, f"waiting until {f'run {run}' if run else 'a run'} is submitted to {url}"
