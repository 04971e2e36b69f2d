"""A solver answers, a reviser sees question and answer and has the last word. Both learn, each from its own reward.

What the reviser can make of an answer depends on how often the solver is right, so its curve follows the solver's.
"""

import astraflow as af


@af.agent(env="sums")
async def solve_and_revise(task, policies):
    answer = await policies["solver"].chat(task.messages)
    first = await task.grade(answer)
    revised = await policies["reviser"].chat([af.user(f"{task.prompt}{answer.text}=")])
    return {"solver": first, "reviser": await task.grade(revised)}
