"""`astraflow up`: a server, if none is given, and one node with every role, until the run has ended.

Order: lock the folder → check for changes → models → server → streams → run record → actors. Invariants: the run keeps
its incarnation over restarts; exit code 0 only if the run has finished or reached
its goal, so that `up … && next` is right.
"""

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from astraflow import clock
from astraflow.actors.base.connection import Connection
from astraflow.actors.base.exits import EXIT_ENDED_EARLY
from astraflow.actors.base.members import left
from astraflow.actors.base.run_record import read_record
from astraflow.actors.recorder.summary import Summary, read_summary, render_summary
from astraflow.bus import Bus, EmbeddedServer, HubDoor, NatsBus, topology_of
from astraflow.config import NodeSection, RunConfig
from astraflow.dataflow.tasks import trained_by
from astraflow.errors import ConfigError
from astraflow.messages import FINISHED, is_goal
from astraflow.messages.roles import Role
from astraflow.node.entering import enter_run, refuse_a_twin
from astraflow.node.node import UP_NODE, node_context, report_failure, say, supervise
from astraflow.node.orders import forget_orders
from astraflow.node.preemption import Preemption
from astraflow.node.prepare import prepare_models
from astraflow.node.processes import NodeProcesses, roles_of
from astraflow.node.runfolder import LockedFolder, Owner, RunFolder, check_space, disk_errors
from astraflow.node.server import embedded_server
from astraflow.node.stopper import Stopper
from astraflow.node.threads import usable_cores
from astraflow.paths import user_path, user_path_text
from astraflow.ports import host_for_others, host_port
from astraflow.runfile import resolved
from astraflow.runfile.checks import FULLS_IN_WEIGHTS, model_bytes, trainable
from astraflow.view.live import live_view

_STATE_PER_WEIGHT = 6  # a checkpoint's fp32 master and two AdamW moments, for each bf16 byte of the model


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """Flags of `up`.

    Attributes:
        command: how it was called, for whoever finds the folder locked.
        fresh: move the old run away and begin anew.
        listen: host and port for the embedded server; None = loopback and any free port.
        door: where leaf servers of other regions may join the embedded server; None = nowhere.
        token: for an external server, if the run file names no file with one.
    """

    command: str
    fresh: bool = False
    listen: tuple[str, int] | None = None
    door: HubDoor | None = None
    token: str = ""


async def up(config: RunConfig, options: UpOptions, console: Console) -> int:
    """Start or continue a run and stay until it ends; the return value is the exit code.

    Raises: ConfigError (folder in use, changes that can't be, disk, models), BusError (server, credentials, port).
    """
    if config.bus.url and options.listen:
        raise ConfigError("--listen is for the embedded server, but bus.url names an external one; use one of them")
    if config.bus.url and options.door:
        raise ConfigError("--leaf-listen is for the embedded server; the one at bus.url has settings of its own")
    if config.bus.url and options.fresh:
        raise ConfigError("--fresh would leave this run's streams on the external server; choose another run.name")
    folder = RunFolder(user_path(config.run.folder) / config.run.name)
    owner = Owner(
        pid=os.getpid(), command=options.command, run=config.run.name, started_at=clock.wall(), region=config.bus.region
    )
    stopper = Stopper(partial(say, console))
    with stopper.listening(), disk_errors(folder.path), folder.lock(owner) as locked:
        if options.fresh and (old := locked.move_away()):
            say(console, f"the old run is now in {old}")
        await _prepare(config, folder, console)
        folder.config_file.write_text(resolved(config), encoding="utf-8")
        async with _server(config, folder, options, console) as connection:
            locked.write(_reachable(owner, connection))
            options_in = connection.to_enter(config.run.name)
            async with NatsBus.connect(options_in, topology_of(config), producer=f"node-{UP_NODE}") as bus:
                await bus.ensure()
                if config.bus.url:  # else the lock on the folder has seen to it
                    await refuse_a_twin(bus, config, console, node=UP_NODE)
                if not await enter_run(bus, config, console):
                    record = await read_record(bus)
                    finished = record is not None and record.stop_requested == FINISHED
                    _show_end(folder, config, console, hint=finished)
                    return 0
                _greet(config, options, connection, folder, console)
                return await _run(bus, config, connection, locked, console, stopper)


async def _run(
    bus: Bus, config: RunConfig, connection: Connection, locked: LockedFolder, console: Console, stopper: Stopper
) -> int:
    folder = locked.folder
    processes = NodeProcesses(
        config=config,
        node=UP_NODE,
        connection=connection,
        folder=folder.path,
        cores=usable_cores(config.node.threads),
    )
    processes.plan(roles_of(config))
    await forget_orders(bus, [UP_NODE, *processes.planned])
    record = await read_record(bus)
    assert record is not None, "it was entered"
    failure = await supervise(
        processes,
        ctx=node_context(bus, record, node=UP_NODE, folder=folder.path),
        options=connection.options(Role.ADMIN),
        console=console,
        stopper=stopper,
        view=partial(live_view, bus, console),
        preemption=_preemption_of(config.node),
        grace_s=config.node.grace_s,
    )
    if failure:
        return report_failure(failure, console)
    if stopper.signals > 1:
        return 130
    record = await read_record(bus)
    if record is not None and record.stop_requested:
        await _until_others_left(bus, config, console)
    why = record.stop_requested if record is not None else ""
    _show_end(folder, config, console, hint=why == FINISHED)
    if is_goal(why):
        say(console, f"its results are in {folder.path}; go on with another goal, or none: --set run.stop_when=")
    elif why != FINISHED:
        say(console, "stopped; the same command continues this run")
        return EXIT_ENDED_EARLY
    return 0


def _preemption_of(section: NodeSection) -> Preemption:
    """Where the run file says that notices come from."""
    return Preemption(
        file=user_path_text(section.preempt_file),
        command=section.preempt_command,
        command_every_s=section.preempt_every_s,
        cloud=section.preempt,
    )


async def _until_others_left(bus: Bus, config: RunConfig, console: Console) -> None:
    """The run has ended: other nodes may still need the server to hear of it and to say goodbye."""
    try:
        async with asyncio.timeout(config.node.grace_s):
            await left(bus, lambda member: member.node != UP_NODE and member.role != Role.REGION)
    except TimeoutError:
        say(console, f"other nodes are still there after {config.node.grace_s:g} s; see their logs", style="yellow")


async def _prepare(config: RunConfig, folder: RunFolder, console: Console) -> None:
    """Make the models, and see that the disk has room for their versions. Raises ConfigError."""
    names = sorted({policy.model for policy in config.policies.values()})
    started = clock.monotonic()
    with console.status(f"preparing {', '.join(names)}"):
        folders = await prepare_models(names, cores=usable_cores(config.node.threads))
    if (took := clock.monotonic() - started) > 5:
        say(console, f"prepared {', '.join(names)} in {took:.0f} s; next time it is there at once")
    if not folder.nats.exists():  # what a run needs is there already when it is continued
        check_space(folder.path, needed_bytes(config, folders), purpose="a new run of this size")
    else:
        check_space(folder.path, 0, purpose="going on")


def needed_bytes(config: RunConfig, folders: dict[str, Path]) -> int:
    """Disk that a run takes at least: versions in WEIGHTS, and the checkpoints kept plus the one being written."""
    total = 0
    for policy in config.policies.values():
        size = model_bytes(str(folders[policy.model]))
        total += FULLS_IN_WEIGHTS * size
        if policy.weights.full_transport == "http" and not policy.weights.folder:  # served from the run folder
            total += FULLS_IN_WEIGHTS * size
        if policy.trainer:
            total += (policy.trainer.keep_checkpoints + 1) * _STATE_PER_WEIGHT * size
    return total


@asynccontextmanager
async def _server(
    config: RunConfig, folder: RunFolder, options: UpOptions, console: Console
) -> AsyncIterator[Connection]:
    """The connection to the run's server; the embedded one lives as long as this context. Raises BusError."""
    bus = config.bus
    if bus.url:
        has_key = bus.credentials_file or bus.credentials_dir
        yield Connection.of(bus, url=bus.url, token="" if has_key else options.token)
        return
    host, port = options.listen or ("127.0.0.1", 0)
    async with embedded_server(
        EmbeddedServer(folder.nats, host=host, port=port, leaf=options.door),
        max_restarts=config.node.max_restarts,
        report=lambda text: say(console, text, style="yellow"),
    ) as server:
        yield Connection(url=server.url, region=bus.region, token_file=server.token_file)


def _reachable(owner: Owner, connection: Connection) -> Owner:
    known = connection.absolute()
    return msgspec.structs.replace(
        owner,
        url=known.url,
        token_file=str(known.token_file) if known.token_file else "",
        credentials_file=known.credentials_file,
        credentials_dir=known.credentials_dir,
        ca_file=known.ca_file,
    )


def _greet(config: RunConfig, options: UpOptions, connection: Connection, folder: RunFolder, console: Console) -> None:
    say(console, f"run {config.run.name} in {folder.path} on {connection.url}")
    if options.listen:
        say(console, f"to join from another machine, copy {connection.token_file} there and run:")
        say(console, f"  {join_command(config.run.name, options.listen, connection)}", style="bold")
    if options.door:
        say(console, f"to join another region, copy {connection.token_file} there and run (with its own name):")
        say(console, f"  {leaf_command(config.run.name, options.door, connection)}", style="bold")


def join_command(run: str, listen: tuple[str, int], connection: Connection) -> str:
    """The command line that makes another machine join; a wildcard address becomes this machine's name."""
    host = host_for_others(listen[0])
    port = connection.url.rsplit(":", 1)[1]
    token = ["--token-file", str(connection.token_file)] if connection.token_file else []
    region = ["--region", connection.region] if connection.region != "local" else []
    return shlex.join(
        ["astraflow", "node", "--join", f"nats://{host_port(host, int(port))}", "--run", run, *token, *region]
    )


def leaf_command(run: str, door: HubDoor, connection: Connection) -> str:
    """The command line that starts another region's leaf server."""
    token = ["--token-file", str(connection.token_file)] if connection.token_file else []
    url = f"nats://{host_port(host_for_others(door.host), door.port)}"
    return shlex.join(["astraflow", "bus", "--leaf", url, "--region", "REGION", "--run", run, *token])


def _ways_on(config: RunConfig, summary: Summary | None) -> Iterator[str]:
    """Flags with which there is more to do: more steps; where the tasks have ended, more of them in a fresh run."""
    for name, trainer in trainable(config).items():
        policy = summary.policies.get(name) if summary else None
        if policy is None or not policy.data_ended:
            yield f"--set policies.{name}.trainer.steps={trainer.steps * 2}"
            continue
        for source, section in config.sources.items():
            if section.epochs and name in trained_by(config, section.env):
                yield f"--fresh --set sources.{source}.epochs={section.epochs * 2}"


def _show_end(folder: RunFolder, config: RunConfig, console: Console, *, hint: bool) -> None:
    if (summary := read_summary(folder.summary_file)) is not None:
        say(console, render_summary(summary))
    if not hint:
        return
    say(console, f"this run has finished; its results are in {folder.path}")
    for flags in dict.fromkeys(_ways_on(config, summary)):
        say(console, f"  go on:        {flags}")
    say(console, "  start afresh: --fresh")
