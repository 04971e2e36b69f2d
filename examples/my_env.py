"""An environment of your own. In the run file: `kind = "my_env:SpellEnv"`, with this file in the working directory."""

from astraflow.envs import ChatMessage, Grade, SingleTurnEnv

WORDS = ("actor", "stream", "message", "policy", "reward", "trainer")


class SpellEnv(SingleTurnEnv):
    size = len(WORDS)

    def task(self, index):
        return {"word": WORDS[index]}

    def prompt(self, payload):
        return [ChatMessage("user", f"Spell the word {payload['word']} backwards.")]

    def grade(self, payload, reply):
        right = float(reply.text.strip() == payload["word"][::-1])
        return Grade(reward=right, correct=right)
