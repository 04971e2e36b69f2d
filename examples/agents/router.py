"""A small model that may hand a question to a large one, which costs something.

The small policy learns when to ask: it earns the answer's worth less the price.
"""

import astraflow as af

PRICE = 0.3


@af.agent(env="questions")
async def route(task, policies):
    first = await policies["small"].chat([af.user(f"{task.prompt}\nIf it is too hard for you, say: help")])
    if not first.says("help"):
        return {"small": float(await task.grade(first))}
    answer = await policies["large"].chat([af.user(task.prompt)])
    right = float(await task.grade(answer))
    return {"small": right - PRICE, "large": right}
