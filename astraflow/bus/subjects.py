"""Subjects and patterns: `*` stands for one token, `>` at the end for one or more. Pure.

Invariant: `SubjectTree.matching` finds what `matches` says of each pattern alone, however many there are, in time that
grows with the subject's length only.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


def matches(pattern: str, subject: str) -> bool:
    """Whether `subject`, which has no wildcards, is one of the pattern's."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


class _Node(Generic[T]):
    """What begins with the same tokens."""

    __slots__ = ("below", "here", "rest")

    def __init__(self) -> None:
        self.below: dict[str, _Node[T]] = {}
        self.here: dict[T, None] = {}  # whose pattern ends here; ordered sets
        self.rest: dict[T, None] = {}  # whose pattern ends with `>` behind this


class SubjectTree(Generic[T]):
    """Things by pattern, found by subject, in the order in which they were added where patterns are equal."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, thing: T) -> None:
        node = self._root
        tokens = pattern.split(".")
        for token in tokens[: -1 if tokens[-1] == ">" else None]:
            node = node.below.setdefault(token, _Node())
        (node.rest if tokens[-1] == ">" else node.here)[thing] = None

    def discard(self, pattern: str, thing: T) -> None:
        """Nothing happens if it isn't there."""
        tokens = pattern.split(".")
        path = [self._root]
        for token in tokens[: -1 if tokens[-1] == ">" else None]:
            if token not in path[-1].below:
                return
            path.append(path[-1].below[token])
        (path[-1].rest if tokens[-1] == ">" else path[-1].here).pop(thing, None)
        for above, token, node in reversed(list(zip(path, tokens, path[1:], strict=False))):
            if node.below or node.here or node.rest:
                return
            del above.below[token]

    def matching(self, subject: str) -> list[T]:
        """Everything whose pattern matches; what was added under several that do is found once."""
        found: dict[T, None] = {}
        nodes = [self._root]
        for token in subject.split("."):
            deeper = []
            for node in nodes:
                found |= node.rest
                deeper += [node.below[key] for key in (token, "*") if key in node.below]
            nodes = deeper
        for node in nodes:
            found |= node.here
        return list(found)
