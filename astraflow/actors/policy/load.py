"""How a policy replica gets its first weights. It serves nothing."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

from astraflow.actors.base.context import ActorContext
from astraflow.actors.policy.agreement import check_agreement
from astraflow.actors.policy.updates import next_full, refused
from astraflow.engines.base import PolicyEngine
from astraflow.engines.factory import build_engine
from astraflow.errors import WeightsError
from astraflow.messages import Head, MemberState
from astraflow.messages.metric_names import POLICY_WANTS_FULL
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.follower import WeightFollower, follow_heads


async def load(ctx: ActorContext, weights: WeightFollower) -> tuple[PolicyEngine, Head]:
    """An engine that serves the newest head that can be read: versions may be purged meanwhile, or damaged."""
    ctx.waits_for(f"the first weights of {ctx.policy}")
    async with aclosing(follow_heads(ctx.bus, ctx.policy)) as heads:
        async for head in heads:
            ctx.set_state(MemberState.CATCHING_UP)
            ctx.waits_for("")
            try:
                files = await weights.files(head)
                head = (await weights.advance(head)).head
            except WeightsError as exc:
                ctx.gauge(POLICY_WANTS_FULL, head.full_manifest_sequence)
                await refused(ctx, head, f"{exc}; the next version is waited for; {next_full(head)}")
                ctx.waits_for(f"weights of {ctx.policy} after version {head.version}, which can't be read")
                continue
            ctx.gauges.pop(POLICY_WANTS_FULL, None)
            assert weights.shadow is not None
            tensors = weights.shadow.tensors
            engine = await _started(ctx, files, tensors, head)
            try:
                await check_agreement(ctx, engine, head, await weights.probe(head), files, tensors)
            except BaseException:
                await engine.stop()
                raise
            weights.behind.clear()
            return engine, head
    raise AssertionError("heads are followed for ever")


async def _started(
    ctx: ActorContext, files: dict[str, bytes], tensors: Mapping[str, HostTensor], head: Head
) -> PolicyEngine:
    engine = await asyncio.to_thread(build_engine, ctx.policy_section.engine, files, tensors, head.version, ctx.threads)
    try:
        await engine.start()
    except BaseException:
        await engine.stop()
        raise
    return engine
