"""An actor and a verifier: the solver answers, the verifier doubts, and the solver may answer once more.

Both are trained: the solver for being right in the end, the verifier for knowing whether it is.
"""

import astraflow as af


@af.agent(env="questions")
async def solve_and_verify(task, policies):
    history = [af.user(task.prompt)]
    answer = await policies["solver"].chat(history)
    question = f"{task.prompt}\nProposed answer: {answer.text}\nIs it right? Say yes or no."
    verdict = await policies["verifier"].chat([af.user(question)])
    right = bool(await task.grade(answer))
    judged_well = float(verdict.says("yes") == right)
    if not verdict.says("yes"):
        history += [af.assistant(answer.text), af.user("Somebody doubts it. Answer again.")]
        right = bool(await task.grade(await policies["solver"].chat(history)))
    return {"solver": float(right), "verifier": judged_well}
