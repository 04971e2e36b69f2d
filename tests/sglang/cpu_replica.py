"""A replica on our CPU engine of a policy that the run file serves by SGLang: `python -m tests.sglang.cpu_replica …`.

It takes the flags of `python -m astraflow.actors`.
"""

import asyncio
import sys

import msgspec

from astraflow.actors.__main__ import parse
from astraflow.actors.base.acting import Identity, act
from astraflow.actors.base.connection import from_flags
from astraflow.actors.base.context import ActorContext
from astraflow.actors.policy.actor import run
from astraflow.config import EngineSection


async def serve(ctx: ActorContext) -> None:
    """As the actor does, with another engine."""
    engine = EngineSection(kind="cpu", slots=4, dtype="fp32")
    policy = msgspec.structs.replace(ctx.policy_section, engine=engine)
    ctx.config = msgspec.structs.replace(ctx.config, policies={ctx.policy: policy})
    await run(ctx)


async def main() -> None:
    args = parse(sys.argv[1:])
    who = Identity(
        run=args.run,
        region="local",
        role="policy",
        name=args.name,
        node=args.node,
        folder=args.folder,
        policy=args.policy,
    )
    await act(from_flags(args, {}).options(), who, serve)


if __name__ == "__main__":
    asyncio.run(main())
