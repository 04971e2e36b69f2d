"""Every policy's tokenizer, from the files that travel with its weights: a rollout node needs no model folder."""

import asyncio
import tempfile
from contextlib import aclosing
from pathlib import Path

from astraflow.actors.base.context import ActorContext
from astraflow.errors import WeightsError
from astraflow.models.folder import write_files
from astraflow.models.tokenizer import ChatTokenizer, load_tokenizer
from astraflow.weights.transfer.follower import WeightFollower, follow_heads


async def fetch_tokenizers(ctx: ActorContext) -> dict[str, ChatTokenizer]:
    """By policy; waits for heads that are not there yet."""
    return {policy: await _fetch(ctx, policy) for policy in ctx.config.policies}


async def _fetch(ctx: ActorContext, policy: str) -> ChatTokenizer:
    follower = WeightFollower(ctx.bus, policy)
    async with aclosing(follow_heads(ctx.bus, policy)) as heads:
        while True:
            try:
                files = await follower.files(await anext(heads))
            except WeightsError as exc:  # purged while we read: the next head has them
                ctx.last_error = str(exc)
            else:
                return await asyncio.to_thread(_load, files, ctx.config.policies[policy].shown_tokens)


def _load(files: dict[str, bytes], shown: tuple[str, ...]) -> ChatTokenizer:
    with tempfile.TemporaryDirectory(prefix="astraflow-tokenizer-") as folder:
        write_files(Path(folder), files)
        return load_tokenizer(Path(folder), shown=shown)
