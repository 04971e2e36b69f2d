"""How training and evaluation share the slots of a pool.

It pulls nothing. Evaluation has all free slots while every training queue is empty, else up to its share of the pool;
training has what is left. So evaluation always moves on, and training never stands still for it. Nothing is preempted:
what evaluation took while training had nothing goes back as its episodes end.
"""


class Sharing:
    """Counts of one pool. Invariant: evaluation gets no further slot above its share while a training task may wait."""

    def __init__(self, size: int, eval_share: float) -> None:
        """`eval_share` 0: evaluation only while training has nothing to do."""
        self._size = size
        self._reserved = max(1, round(size * eval_share)) if eval_share else 0
        self._training_queues = 0
        self._empty_queues = 0
        self.taken = 0  # slots that are taken or spoken for
        self.evaluating = 0  # of which by evaluation

    def room(self, *, evaluation: bool) -> int:
        """Slots that a queue of this kind may take now."""
        free = max(0, self._size - self.taken)
        if not evaluation or self._empty_queues == self._training_queues:
            return free
        return max(0, min(free, self._reserved - self.evaluating))

    def take(self, slots: int, *, evaluation: bool) -> None:
        """Slots are taken; a negative number gives them back."""
        self.taken += slots
        self.evaluating += slots * evaluation

    def add_training_queue(self) -> None:
        """One more queue of training tasks, of which nothing is known yet."""
        self._training_queues += 1

    def training_queue_is(self, *, empty: bool) -> None:
        """A training queue was found empty; or has a task again after it had been found so."""
        self._empty_queues += 1 if empty else -1
