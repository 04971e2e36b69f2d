"""A policy that splits its task and calls itself, to a depth, side by side.

The environment's `max_calls` and `max_tokens` bound the whole tree, whatever the policy does.
"""

import asyncio

import astraflow as af

DEPTH, BREADTH = 2, 2


@af.agent(env="questions")
async def divide(task, policies):
    answer = await solve(policies["solver"], task.prompt, depth=0)
    return {"solver": float(await task.grade(answer))}


async def solve(policy, question, *, depth):
    """Answer a question, after its parts. Each sub-agent is a conversation of its own, whose parent is the asker's."""
    if depth == DEPTH:
        return await policy.chat([af.user(question)])
    plan = await policy.chat([af.user(f"{question}\nName up to {BREADTH} smaller questions, one a line.")])
    parts = [line for line in plan.text.splitlines() if line.strip()][:BREADTH]
    async with asyncio.TaskGroup() as group:
        solving = [group.create_task(solve(policy.spawn(), part, depth=depth + 1)) for part in parts]
    found = "\n".join(f"{part}: {each.result().text}" for part, each in zip(parts, solving, strict=True))
    return await policy.chat([af.user(f"{question}\nWhat is known:\n{found}\nAnswer now.")])
