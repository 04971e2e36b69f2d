"""A code writer and a test writer, in miniature: one writes what a word becomes, the other a check of it.

The test writer earns by checks that tell right from wrong, the code writer by passing the environment's own. What a
policy wrote is only compared as text here; run model-written code in a sandbox, never in the rollout process.
"""

import astraflow as af


@af.agent(env="questions")
async def code_and_tests(task, policies):
    code = await policies["coder"].chat([af.user(task.prompt)])
    test = await policies["tester"].chat([af.user(f"{task.prompt}\nWrite only what the answer must contain.")])
    right = bool(await task.grade(code))
    wanted = set(test.text.split())
    accepted = bool(wanted) and all(part in code.text for part in wanted)
    return {"coder": float(right), "tester": float(accepted == right)}
