"""How `up` enters a run on the bus: as its only `up`, under the run's first record, with the policies that have work.

It starts no process. Invariant: the run keeps its incarnation, whatever is changed or continued.
"""

import asyncio
import uuid
from contextlib import aclosing

import msgspec
from rich.console import Console

from astraflow import clock
from astraflow.bus import Bus, wiring
from astraflow.config import RunConfig, from_json, to_json
from astraflow.errors import ConfigError, MessageError, UnreadableValueError
from astraflow.messages import FINISHED, Member, MemberState, Progress, RunRecord, is_goal
from astraflow.messages.ids import parse_task_id
from astraflow.node.node import say
from astraflow.node.run_changes import check_changes
from astraflow.runfile.checks import trainable


async def refuse_a_twin(bus: Bus, config: RunConfig, console: Console, *, node: str) -> None:
    """Raises ConfigError if another `up` of this run is at work on this server; a dead one's record expires."""
    entry = await bus.kv.get(wiring.MEMBER.key(f"node-{node}"))
    if entry is None or not isinstance(entry.message, Member) or entry.message.state is MemberState.GONE:
        return
    expires_s = config.bus.member_ttl_s
    say(console, f"an `up` of this run was here within the last {expires_s} s; waiting to see whether it is alive")
    try:
        async with asyncio.timeout(expires_s), aclosing(bus.kv.watch(entry.key)) as updates:
            async for update in updates:
                if update.revision > entry.revision and isinstance(update.message, Member):
                    if update.message.state is MemberState.GONE:
                        return
                    break
    except TimeoutError:
        return
    raise ConfigError(
        f"run {config.run.name!r} is already up on this server (process {entry.message.pid} on some machine); "
        "join it with `astraflow node --join`, stop it with `astraflow stop`, or choose another run.name"
    )


async def enter_run(bus: Bus, config: RunConfig, console: Console) -> bool:
    """Create or update the run's record; False if the run has ended and nothing is left to do. Raises ConfigError."""
    try:
        entry = await bus.kv.get(wiring.RUN.key())
        revision, why = (entry.revision, "") if entry is not None else (0, "it is gone")
    except UnreadableValueError as exc:
        entry, revision, why = None, exc.revision, str(exc)
    if entry is None or not isinstance(entry.message, RunRecord):
        incarnation = await _incarnation_of_log(bus)
        if incarnation:
            say(console, f"the run's record is lost ({why}); made anew from its log of decisions", style="yellow")
        record = RunRecord(
            name=config.run.name,
            incarnation=incarnation or uuid.uuid4().hex,
            config_json=to_json(config),
            created_at=clock.wall(),
        )
        await bus.kv.put(wiring.RUN.key(), record, expected_revision=revision)
        return True
    old = entry.message
    for change in check_changes(from_json(old.config_json), config):
        say(console, f"changed since the run began: {change}")
    if old.stop_requested == FINISHED and not await _extend(bus, config):
        return False
    if is_goal(old.stop_requested) and from_json(old.config_json).run.stop_when == config.run.stop_when:
        say(console, f"{old.stop_requested}; go on with another goal, or none: --set run.stop_when=")
        return False
    record = msgspec.structs.replace(old, config_json=to_json(config), stop_requested="")
    if record != old:
        await bus.kv.put(wiring.RUN.key(), record, expected_revision=entry.revision)
    return True


async def _incarnation_of_log(bus: Bus) -> str:
    """Of a run whose record is lost: every group's id begins with it. "" if nothing was ever decided."""
    topology = bus.topology
    try:
        last = await bus.logs.last(topology.decisions, topology.decision())
    except MessageError:
        return ""
    found = parse_task_id(f"{last.message.group_id}/0") if last is not None else None
    return found[0] if found is not None else ""


async def _extend(bus: Bus, config: RunConfig) -> bool:
    """Reopen the policies that have steps left to do; whether there are any."""
    reopened = False
    for name, trainer in trainable(config).items():
        entry = await bus.kv.get(wiring.PROGRESS.key(name))
        if entry is None or not isinstance(entry.message, Progress) or entry.message.step >= trainer.steps:
            continue
        progress = msgspec.structs.replace(entry.message, finished=False)
        await bus.kv.put(entry.key, progress, expected_revision=entry.revision)
        reopened = True
    return reopened
