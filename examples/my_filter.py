"""Data algorithms of one's own: name them in a run file as "my_filter:NoLongReplies" and "my_filter:Fading"."""


class NoLongReplies:
    """A filter: groups whose replies are long on average aren't trained on."""

    def __init__(self, *, most_tokens: int = 512) -> None:
        self.most_tokens = most_tokens

    def drops(self, group):
        turns = [turn for episode in group.episodes_G for each in episode.trajectories for turn in each.turns]
        return sum(turn.completion_tokens.shape[0] for turn in turns) > self.most_tokens * len(group.episodes_G)


class Fading:
    """A selector: the more often a task was tried, the less often it is."""

    def __init__(self) -> None:
        self.tries = {}

    def take(self, prompt):
        return prompt.draw < 1 / (1 + self.tries.get(prompt.index, 0))

    def observe(self, result):
        self.tries[result.index] = self.tries.get(result.index, 0) + 1

    def state(self):  # with these two it goes on after a restart as if nothing had happened
        return list(self.tries.items())

    def restore(self, state):
        self.tries = dict(state)
