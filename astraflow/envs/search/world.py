"""A world that nobody can know by heart: people, companies and cities, each with a passage, and questions of hops.

Everything follows from its size and seed, so that dataflow, rollouts and evaluations agree without a file. Questions
are all chains of relations that begin at a person, each once, in a seeded order. Pure.
"""

import random
from dataclasses import dataclass
from functools import cached_property

from astraflow.envs.search.corpus import Passage
from astraflow.errors import ConfigError

_RELATIONS = {  # of a kind of thing: relation -> the kind that it leads to, as a passage and as a question say it
    "person": {
        "birthplace": ("city", "{x} was born in {y}.", "the city where {x} was born"),
        "employer": ("company", "{x} works for {y}.", "the company that {x} works for"),
        "spouse": ("person", "{x} is married to {y}.", "the person that {x} is married to"),
        "teacher": ("person", "{x} learned the trade from {y}.", "the person that {x} learned the trade from"),
    },
    "company": {
        "seat": ("city", "{x} has its seat in {y}.", "the city where {x} has its seat"),
        "founder": ("person", "{x} was founded by {y}.", "the founder of {x}"),
    },
    "city": {
        "mayor": ("person", "The mayor of {x} is {y}.", "the mayor of {x}"),
        "river": ("river", "{x} lies on the river {y}.", "the river on which {x} lies"),
    },
    "river": {},
}
_STARTS = ("b", "br", "d", "f", "g", "h", "k", "kr", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z")
_MIDDLES = ("a", "e", "i", "o", "u", "ai", "ou")
_ENDS = ("l", "m", "n", "r", "s", "th", "ck", "nd", "")
_MOST_HOPS, _MOST_PEOPLE = 4, 5000


@dataclass(frozen=True)
class WorldQuestion:
    """A question, its answer, and the passages that lead there, in order."""

    question: str
    answer: str
    path: tuple[str, ...]


class World:
    """Args: people, of whom there are half as many companies and a third as many cities; hops of a question, at most.

    Raises: ConfigError for numbers out of range.
    """

    def __init__(self, *, people: int, hops: int = 2, seed: int = 0) -> None:
        if not 6 <= people <= _MOST_PEOPLE or not 1 <= hops <= _MOST_HOPS:
            raise ConfigError(
                f"people = {people} and hops = {hops}, expected 6 to {_MOST_PEOPLE} and 1 to {_MOST_HOPS}"
            )
        rng = random.Random(f"world {seed} {people}")
        names = _names(rng, people * 2)
        self._things = {
            "person": [f"{one} {names[people + number]}" for number, one in enumerate(names[:people])],
            "company": [f"{each} Works" for each in _names(rng, people // 2)],
            "city": [f"{each}ton" for each in _names(rng, people // 3)],
            "river": [f"{each}a" for each in _names(rng, people // 6)],
        }
        self._kinds = {name: kind for kind, names in self._things.items() for name in names}
        self._facts = {
            name: {
                relation: rng.choice([y for y in self._things[to] if y != name]) for relation, (to, *_) in out.items()
            }
            for kind, out in _RELATIONS.items()
            for name in self._things[kind]
            if out
        }
        self._hops = hops
        self._seed = seed

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """One of everything that there is something to say of."""
        return tuple(
            Passage(
                f"{name}\n"
                + " ".join(_RELATIONS[self._kinds[name]][key][1].format(x=name, y=y) for key, y in facts.items()),
                "world/" + name.lower().replace(" ", "_"),
            )
            for name, facts in self._facts.items()
        )

    @property
    def size(self) -> int:
        """Number of questions."""
        return len(self._chains)

    def question(self, index: int) -> WorldQuestion:
        """Raises IndexError beyond `size`."""
        person, chain = self._chains[index]
        asked, here, path = person, person, [person]
        for relation in chain:
            asked = _RELATIONS[self._kinds[here]][relation][2].format(x=asked)
            here = self._facts[here][relation]
            path.append(here)
        return WorldQuestion(f"What is the name of {asked}?", here, tuple(path[:-1]))

    @cached_property
    def _chains(self) -> list[tuple[str, tuple[str, ...]]]:
        found = [(person, chain) for person in self._things["person"] for chain in _chains("person", self._hops)]
        random.Random(f"questions {self._seed}").shuffle(found)
        return found


def _chains(kind: str, hops: int) -> list[tuple[str, ...]]:
    """All chains of one relation or more that begin at this kind of thing."""
    if hops == 0:
        return []
    return [
        (relation, *rest) for relation, (to, *_) in _RELATIONS[kind].items() for rest in [(), *_chains(to, hops - 1)]
    ]


def _names(rng: random.Random, count: int) -> list[str]:
    """Names, all different."""
    found: dict[str, None] = {}
    while len(found) < max(count, 2):
        parts = [rng.choice(_STARTS) + rng.choice(_MIDDLES) for _ in range(rng.choice((1, 2, 2)))]
        found["".join((*parts, rng.choice(_STARTS), rng.choice(_MIDDLES), rng.choice(_ENDS))).capitalize()] = None
    return list(found)
