"""A region's keeper: one process beside the leaf server that joins a run's region to its home over one thin link.

    hub ── KV, WEIGHTS ──▶ mirrors (JetStream's own)            tasks ──▶ queue of the region (`bringer`)
    hub ◀── EPISODES, METRICS, EVENTS ── outboxes (`uplink`)    member records ──▶ hub (`presence`)

It holds nothing that can't be lost: killed and started again, it finds all in the leaf's store and the hub's. Actors of
the region know nothing of it. Invariant: the region's streams belong to the run's present incarnation.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

from astraflow.actors.region.bringer import TaskBringer
from astraflow.actors.region.members import RegionMembers
from astraflow.actors.region.mirrors import trim_weights
from astraflow.actors.region.presence import Presence
from astraflow.actors.region.uplink import Uplink
from astraflow.bus import HUB_DOMAIN, Bus, BusOptions, Delivery, Kind, NatsBus, Topology, topology_of, wiring
from astraflow.bus.runs import find_homes, forget_region
from astraflow.concurrency import innermost
from astraflow.config import RunConfig, from_json
from astraflow.errors import ApiError, BusError, ConfigError
from astraflow.messages import Episode, Event, Metrics, RunRecord

LOOK_EVERY_S = 5.0
AGAIN_S = 2.0
ANSWER_WITHIN_S = 30.0
_Report = Callable[[str], None]

_log = logging.getLogger(__name__)


async def keep_region(
    leaf: BusOptions, *, region: str, runs: Sequence[str], report: _Report, ready: Callable[[str], None]
) -> None:
    """Serve the runs, or every run that the hub has, for ever; `ready` is told a run's name when nodes may join it."""
    hub = replace(leaf, domain=HUB_DOMAIN)
    serving: set[str] = set()
    async with asyncio.TaskGroup() as group:
        while True:
            for run, home in (await find_homes(hub)).items():
                if run not in serving and (not runs or run in runs):
                    serving.add(run)
                    group.create_task(_keep_run(leaf, hub, run, home, region=region, report=report, ready=ready))
            await asyncio.sleep(LOOK_EVERY_S)


async def _keep_run(
    leaf: BusOptions,
    hub: BusOptions,
    run: str,
    home: str,
    *,
    region: str,
    report: _Report,
    ready: Callable[[str], None],
) -> None:
    """One run, through changes of its record and whatever fails meanwhile."""
    if home == region:
        report(f"run {run} is at home in region {region} itself; start this leaf with another --region")
        return
    told = False
    while True:
        try:
            record = await _record(hub, Topology(run=run, region=home, envs=(), policies=()))
            here = topology_of(from_json(record.config_json), region=region)
            await _forget_another(leaf, here, record)
            async with AsyncExitStack() as stack:
                local = await stack.enter_async_context(NatsBus.connect(leaf, here, producer=f"region-{region}"))
                far = await stack.enter_async_context(
                    NatsBus.connect(hub, here.there(), producer=f"region-{region}-up")
                )
                await local.ensure()
                if not told:
                    told = True
                    ready(run)
                await _serve(local, far, from_json(record.config_json), record, report)
        except* (BusError, ConfigError) as group:
            report(f"run {run}: {innermost(group)}; trying again")
        await asyncio.sleep(AGAIN_S)


async def _record(hub: BusOptions, bare: Topology) -> RunRecord:
    """The run's record, when the hub has it."""
    async with (
        NatsBus.connect(hub, bare, producer="region-record") as bus,
        aclosing(bus.kv.watch(wiring.RUN.key())) as updates,
    ):
        async for update in updates:
            if isinstance(update.message, RunRecord):
                return update.message
    raise AssertionError("a watch has no end")


async def _forget_another(leaf: BusOptions, here: Topology, record: RunRecord) -> None:
    """A run of this name that was here before, and was started afresh meanwhile, leaves nothing behind."""
    async with NatsBus.connect(leaf, here, producer="region-before") as bus:
        try:
            entry = await bus.kv.get(wiring.RUN.key())
        except ApiError:  # there is no such stream
            return
    if entry is not None and isinstance(entry.message, RunRecord) and entry.message.incarnation != record.incarnation:
        await forget_region(leaf, run=here.run, region=here.region)


async def _serve(here: Bus, hub: Bus, config: RunConfig, record: RunRecord, report: _Report) -> None:
    """Until the run's record says something else."""
    ttl_s = config.bus.member_ttl_s
    members = RegionMembers(here, ttl_s=ttl_s)
    bringer = TaskBringer(here, hub, members)
    presence = Presence(hub, here.topology.region, members, ttl_s=ttl_s, tasks=lambda: bringer.taken, report=report)
    jobs = [
        members.follow(),
        presence.run(),
        bringer.give_back(),
        *(bringer.bring(env, evaluation=evaluation) for env in config.envs for evaluation in (False, True)),
        *(_forward(here, hub, kind, bringer) for kind in (Kind.EPISODES, Kind.METRICS, Kind.EVENTS)),
        *(trim_weights(here, hub, policy) for policy in config.policies),
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        await _changed(hub, record)
        for task in tasks:
            task.cancel()


async def _changed(hub: Bus, record: RunRecord) -> None:
    async with aclosing(hub.kv.watch(wiring.RUN.key())) as updates:
        async for update in updates:
            now = update.message
            if isinstance(now, RunRecord) and (now.incarnation, now.config_json) != (
                record.incarnation,
                record.config_json,
            ):
                return


async def _forward(here: Bus, hub: Bus, kind: Kind, bringer: TaskBringer) -> None:
    """One outbox, for ever."""
    (row,) = (row for row in here.topology.rows if row.kind is kind)

    async def store(delivery: Delivery) -> None:
        message = delivery.message
        await hub.relay(_subject_at_home(hub.topology, message), delivery.envelope)
        if isinstance(message, Episode):
            bringer.settle(message)

    async with here.queues.open(row.stream, here.topology.uplink_consumer(kind)) as queue:
        await Uplink(queue, store).run()


def _subject_at_home(names: Topology, message: Episode | Metrics | Event) -> str:
    match message:
        case Episode():
            return names.episode(message.env)
        case Metrics():
            return names.metric(message.kind)
        case Event():
            return names.event(message.level)
