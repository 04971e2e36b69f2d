"""Two policies play against each other for a zero sum: who names the higher number below the limit wins."""

import re

import astraflow as af

LIMIT = 100


@af.agent(env="questions")
async def play(task, policies):
    moves = {}
    for name in ("left", "right"):
        said = await policies[name].chat([af.user(f"Name a number below {LIMIT}. The higher one wins.")])
        moves[name] = move(said.text)
    if moves["left"] == moves["right"]:
        return {"left": 0.0, "right": 0.0}
    won = 1.0 if moves["left"] > moves["right"] else -1.0
    return {"left": won, "right": -won}


def move(text):
    """The first number in the text; -1 if there is none, or one that breaks the rule."""
    found = re.search(r"\d{1,6}", text)
    number = int(found.group()) if found else -1
    return number if number < LIMIT else -1
