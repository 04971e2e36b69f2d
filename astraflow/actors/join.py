"""`astraflow node --join`: another machine's part in a run that is already on the bus.

It reads the run's record, starts the roles that fit, and leaves when the run ends or when it is told to.
"""

import re
import secrets
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from astraflow.actors.live import live_view
from astraflow.actors.node import Connection, Stopper, joining_roles, plan, read_record, report_failure, say, supervise
from astraflow.actors.threads import usable_cores
from astraflow.bus import ApiError, Bus, Topology, topology_of
from astraflow.config import from_json
from astraflow.errors import ConfigError
from astraflow.messages import RunRecord

NOT_FOUND = 404


def node_name() -> str:
    """This machine's name with a random end: several nodes on one machine are different nodes."""
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")
    return f"{host[:24] or 'node'}-{secrets.token_hex(2)}"


async def fetch_record(connection: Connection, run: str) -> RunRecord:
    """The run's record from the bus. Raises ConfigError if there is no such run, BusError."""
    bare = Topology(run=run, region=connection.region, envs=(), policies=())
    async with Bus.connect(connection.options(), bare, producer="node") as bus:
        try:
            record = await read_record(bus)
        except ApiError as exc:
            if exc.code != NOT_FOUND:  # without streams there never was such a run
                raise
            record = None
    if record is None:
        raise ConfigError(f"there is no run {run!r} on {connection.url}; start it there with `astraflow up`")
    return record


async def join(
    connection: Connection, *, run: str, roles: Sequence[str], folder: Path, threads: int, console: Console
) -> int:
    """Take part until the run ends; the return value is the exit code.

    Args:
        roles: `--role` arguments, none = a policy process for each policy, and rollouts.
        folder: logs go to <folder>/<run>-<node>.
        threads: cores to use; 0 = all that this process may.
    Raises: ConfigError, BusError.
    """
    stopper = Stopper(console)
    with stopper.listening():
        record = await fetch_record(connection, run)
        if record.stop_requested:
            raise ConfigError(f"run {run!r} on {connection.url} has ended ({record.stop_requested}); nothing to join")
        config = from_json(record.config_json)
        node = node_name()
        home = folder / f"{run}-{node}"
        home.mkdir(parents=True, exist_ok=True)
        planned = plan(
            joining_roles(roles, config),
            config,
            node=node,
            connection=connection,
            folder=home,
            cores=usable_cores(threads),
        )
        async with Bus.connect(connection.options(), topology_of(config), producer=f"node-{node}") as bus:
            say(console, f"node {node} joins run {run} with {', '.join(p.spec.name for p in planned)}; logs in {home}")
            failure = await supervise(
                planned,
                bus=bus,
                config=config,
                console=console,
                stopper=stopper,
                view=partial(live_view, bus, console),
            )
        if failure:
            return report_failure(failure, console)
        say(console, f"node {node} left run {run}")
        return 130 if stopper.signals > 1 else 0
