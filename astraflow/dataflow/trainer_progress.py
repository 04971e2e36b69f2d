"""What is known of one policy's trainer: how far it is, and which step each of its versions is from.

It knows no groups. Invariant: news of an older lease epoch, or older news of the same one, change nothing; a newer
epoch may go back.
"""

import msgspec

from astraflow.dataflow.staleness import VersionMap
from astraflow.messages import Progress


class TrainerProgress(msgspec.Struct):
    """What snapshots keep; append fields only."""

    consumed: int = 0  # number of the last batch that was finished, trained or skipped
    step: int = 0
    version: int = 0
    epoch: int = -1  # of the trainer's lease; -1 = never heard of
    finished: bool = False
    versions: list[tuple[int, int]] = []  # (version, step)


class TrainerView:
    """The trainer, as dataflow sees it."""

    def __init__(self, *, steps: int, state: TrainerProgress | None = None) -> None:
        """`steps`: optimizer steps that the trainer is to do. `state` None = the run begins."""
        self._state = state or TrainerProgress()
        self._steps = steps
        self.versions = VersionMap(self._state.versions)
        self.current = state is None  # False: what is known is as old as the snapshot
        self.last_is_out = False  # the last batch was emitted: sources have ended before the steps

    def state(self) -> TrainerProgress:
        """A copy for the snapshot."""
        return msgspec.structs.replace(self._state, versions=self.versions.points())

    @property
    def consumed(self) -> int:
        return self._state.consumed

    @property
    def step(self) -> int:
        return self._state.step

    @property
    def version(self) -> int:
        return self._state.version

    @property
    def finished(self) -> bool:
        """It says so, and that still fits: a finished run may have been given more steps."""
        return self._state.finished and (self.remaining_steps == 0 or self.last_is_out)

    @property
    def remaining_steps(self) -> int:
        return max(0, self._steps - self._state.step)

    def learn(self, news: Progress) -> None:
        """Take in what the trainer tells."""
        state = self._state
        if (news.epoch, news.consumed) < (state.epoch, state.consumed):
            return
        state.consumed, state.step, state.epoch = news.consumed, news.step, news.epoch
        state.version, state.finished = news.version, news.finished
        self.versions.learn_all(news.recent)
        self.current = True

    def train_step(self, number: int) -> int:
        """The step at which batch `number` will be trained, the first being 0, if none before it is skipped."""
        return self._state.step + number - self._state.consumed - 1

    def wants(self, number: int, *, prefetch: int) -> bool:
        """Batch `number` is at most `prefetch` ahead of the one that is needed now, and has a step left for it."""
        return number <= self._state.consumed + 1 + prefetch and self.train_step(number) < self._steps
