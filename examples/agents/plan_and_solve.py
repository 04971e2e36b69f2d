"""One policy in two roles: it writes a plan, then follows it. Each role is compared with the same role in its group.

In the run file: `roles = { planner = "solver", doer = "solver" }`.
"""

import astraflow as af


@af.agent(env="questions")
async def plan_and_solve(task, policies):
    plan = await policies["planner"].chat([af.user(f"{task.prompt}\nWrite a plan of one line. Don't answer yet.")])
    answer = await policies["doer"].chat([af.user(f"{task.prompt}\nFollow this plan: {plan.text}")])
    right = float(await task.grade(answer))
    brief = 1.0 if len(plan.tokens) < 64 else 0.5
    return {"planner": right * brief, "doer": right}
