"""Episodes by their place in the EPISODES log, kept as long as something refers to them.

It reads no log: after a restore the places are known and the episodes are handed in. Invariant: what is held has been
put or will be filled; what nobody holds is forgotten.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from astraflow.errors import CursorError
from astraflow.messages import Episode


class HeldEpisodes:
    """Episodes with a count of who needs them."""

    def __init__(self) -> None:
        self._holders: Counter[int] = Counter()
        self._episodes: dict[int, Episode] = {}

    def put(self, sequence: int, episode: Episode) -> None:
        """Keep an episode, held once."""
        self._episodes[sequence] = episode
        self._holders[sequence] += 1

    def hold(self, sequences: Iterable[int]) -> None:
        """One more holder needs these episodes."""
        self._holders.update(sequences)

    def release(self, sequences: Iterable[int]) -> None:
        """One holder less needs these episodes."""
        for sequence in sequences:
            self._holders[sequence] -= 1
            if self._holders[sequence] <= 0:
                del self._holders[sequence]
                self._episodes.pop(sequence, None)

    def __getitem__(self, sequence: int) -> Episode:
        return self._episodes[sequence]

    def references(self) -> list[int]:
        """Every place that is held, sorted."""
        return sorted(self._holders)

    def fill(self, episodes: Mapping[int, Episode]) -> None:
        """Hand in what the log has at `references()`. Raises CursorError if one of them isn't there any more."""
        missing = [sequence for sequence in self._holders if sequence not in episodes]
        if missing:
            raise CursorError(
                f"EPISODES has no message {min(missing)} (and {len(missing) - 1} others) that dataflow's snapshot "
                f"refers to; it was purged too far. Restart afresh, or restore the stream"
            )
        self._episodes.update({sequence: episodes[sequence] for sequence in self._holders})
