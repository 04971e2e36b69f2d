"""Any task of reasoning-gym: procedurally generated questions with a verifiable answer.

It scores by the dataset's own scorer only where that can't be tricked or hijacked (see the tables below). Payloads are
indices; every process generates the same question from an index. Invariant: a question is in training or held out,
never both, whatever the indices, once `holdout` > 0.

Source: https://github.com/open-thought/reasoning-gym, 0.1.25, with which its defects were measured.
"""

import dataclasses
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from astraflow.envs.answers import AnswerMode, extract_answer, same_answer
from astraflow.envs.arguments import choice, import_extra
from astraflow.envs.base import ChatMessage, Reply
from astraflow.envs.single_turn import Grade, SingleTurnEnv
from astraflow.envs.templates import Template, without_placeholders
from astraflow.errors import ConfigError, EnvError
from astraflow.holdout import HELD_OUT_FIRST, is_held_out
from astraflow.messages import Reason
from astraflow.messages.ids import LEVEL_STRIDE
from astraflow.named import nearest

_SCORERS = ("exact", "dataset", "solved")
_EVAL = "its scorer runs eval() on what the policy wrote"
_SYMPY = "its scorer runs sympy's parse_expr, which is eval(), on what the policy wrote"
# Datasets whose own scorer must not see a reply.
UNSAFE_SCORERS = {
    "binary_matrix": _EVAL,
    "n_queens": _EVAL,
    "spiral_matrix": _EVAL,
    "string_insertion": _EVAL,
    "countdown": _SYMPY,
    "intermediate_integration": _SYMPY,
    "polynomial_multiplication": _SYMPY,
    "puzzle24": _SYMPY,
    "simple_integration": _SYMPY,
    "coin_flip": "its scorer computes Fraction(reply), which hangs on 1e999999999",
    "complex_arithmetic": "its scorer gives 1.0 to nan",
    "game_of_life_halting": "its scorer gives 1.0 to any text",
}
REFUSED = {
    "composite": "give each dataset an environment and a source, and mix them by weight",
    "codeio": "about one answer in twenty differs between processes, so a group would be judged by several",
}
# Questions that depend on the order of sets of strings: equal in all processes only with PYTHONHASHSEED=0.
HASH_ORDERED = frozenset(
    {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
# Datasets that draw from the global random state; it is seeded by the index while they generate.
_GLOBAL_RANDOM = frozenset({"list_functions"})
# Datasets that can't generate any entry but have a list of `size` of them.
_LISTED = frozenset({"acre", "gsm_symbolic", "list_functions", "word_ladder"})
_LIST_SIZE = 10_000
_ENTRIES = 2**31  # of the others; some seed numpy with seed + entry, which must stay below 2**32
_STEP = 1_000_003  # between the candidates of one index
_CANDIDATES = 2_000
_generating = threading.Lock()  # datasets keep caches, and a few use global random state


class ReasoningGymEnv(SingleTurnEnv):
    """One question of one dataset per task.

    reward = score + end_bonus · (the policy stopped by itself).

    Args:
        dataset: its name, e.g. "chain_sum".
        knobs: the dataset's own settings, e.g. {min_terms = 2}. Not `seed` or `size`.
        seed: of the questions. Seed s, index i is the question of seed 0, index s + i, so neighbouring seeds overlap.
        system: system prompt; "" = none.
        template: the user's message; `{question}` and the entry's metadata, e.g. `{expression}`, are filled in. Other
            braces stay; `{{word}}` gives `{word}`.
        answer: "last-number" | "tag" (<answer>…</answer>) | "last-line" | "full": where the reply holds its answer.
        scorer: "exact": 1 if it equals the dataset's answer as a number or text, else 0 · "dataset": the dataset's own
            score, 0..1, which for some datasets gives partial credit for junk · "solved": 1 if that score is 1, else 0.
        end_bonus: extra reward for ending within the token budget.
        holdout: share of the questions, chosen by a hash of their text, that only indices from `holdout_first` meet.
        holdout_first: index of the first held-out task.
        levels: of reasoning-gym's own curriculum of the dataset, for a source with select = "levels"; `knobs` hold at
            all of them. 1 = none, just the knobs.
        policy: the policy that answers; "" = the only one of the run.

    Raises:
        ConfigError: an unknown dataset, knob or choice; values that the dataset refuses; a scorer that isn't safe.
    """

    def __init__(
        self,
        *,
        dataset: str,
        knobs: Mapping[str, Any] | None = None,
        seed: int = 0,
        system: str = "",
        template: str = "{question}",
        answer: str = "tag",
        scorer: str = "exact",
        end_bonus: float = 0.0,
        holdout: float = 0.0,
        holdout_first: int = HELD_OUT_FIRST,
        levels: int = 1,
        policy: str = "",
    ) -> None:
        super().__init__(policy=policy)
        self._name = dataset
        self._mode = AnswerMode(choice("answer", answer, [mode.value for mode in AnswerMode]))
        self._scorer = choice("scorer", scorer, _SCORERS)
        self._end_bonus = end_bonus
        self._holdout = holdout
        self._holdout_first = holdout_first
        if not 0 <= holdout < 1:
            raise ConfigError(f"holdout is {holdout}, expected at least 0 and less than 1")
        if levels < 1:
            raise ConfigError(f"levels is {levels}, expected at least 1")
        self.levels = levels
        at_levels = [_knobs_at(dataset, level) for level in range(levels)] if levels > 1 else [{}]
        self._datasets = [_create(dataset, at_level | dict(knobs or {}), seed) for at_level in at_levels]
        self._seed = seed
        self._entries = _LIST_SIZE if dataset in _LISTED else _ENTRIES
        self._entry = lru_cache(maxsize=1024)(self._generate)
        self._refuse_unsafe()
        entry = self._entry(0)
        fields = {"question", *entry["metadata"]}
        self._template = Template(template, fields)
        self._system = without_placeholders(system, fields, key="system")

    def task(self, index: int) -> dict[str, Any]:
        """{"index", "entry"}: which of the dataset's entries it is. Raises EnvError if its share holds no question."""
        if index < 0:
            raise EnvError(f"task index is {index}, expected at least 0")
        level, local = divmod(index, LEVEL_STRIDE)
        if level >= self.levels:
            raise EnvError(f"task index {index} is of level {level}, but there are {self.levels}")
        at_level = {"level": level} if level else {}
        if self._holdout == 0:
            return {"index": index, "entry": local % self._entries} | at_level
        wanted = local >= self._holdout_first
        for candidate in range(local, local + _CANDIDATES * _STEP, _STEP):
            entry = candidate % self._entries
            if is_held_out(self._entry(entry, level)["question"], self._holdout) is wanted:
                return {"index": index, "entry": entry} | at_level
        share = "held-out" if wanted else "training"
        raise EnvError(f"{self._name} has no {share} question in {_CANDIDATES} draws; change holdout ({self._holdout})")

    def prompt(self, payload: Mapping[str, Any]) -> Sequence[ChatMessage]:
        """The system prompt, if any, and the filled-in template."""
        entry = self._entry_of(payload)
        try:
            content = self._template.fill({**entry["metadata"], "question": entry["question"]})
        except KeyError as exc:
            raise EnvError(f"entry {payload['entry']} of {self._name} has no {exc} for the template") from exc
        system = [ChatMessage("system", self._system)] if self._system else []
        return [*system, ChatMessage("user", content)]

    def expected(self, payload: Mapping[str, Any]) -> str:
        """The dataset's answer; "" where it has none."""
        return self._entry_of(payload)["answer"] or ""

    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        """Score the extracted answer; no answer is 0 with reason `policy`. Raises EnvError if the scorer is broken."""
        entry = self._entry_of(payload)
        given = extract_answer(reply.text, self._mode)
        bonus = self._end_bonus * reply.ended
        score = None if given is None else self._score(given, entry, payload.get("level", 0))
        return Grade(
            reward=(score or 0.0) + bonus,
            correct=float(score is not None and score >= 1),
            parts={"answer": score or 0.0, "end": bonus},
            reason=Reason.POLICY if score is None else Reason.OK,
        )

    def _score(self, given: str, entry: Mapping[str, Any], level: int) -> float | None:
        """0..1; None if the scorer raises for this answer but not for the expected one."""
        if self._scorer == "exact":
            if entry["answer"] is None:
                raise EnvError(f"{self._name} has no expected answer to compare with; set scorer = 'dataset'")
            return float(same_answer(given, entry["answer"]))
        try:
            score = float(self._datasets[level].score_answer(given, entry))
        except Exception:  # noqa: BLE001 - third-party scorers raise anything; whose fault it is, is checked
            self._check_scorer(entry, level)
            return None
        if not 0 <= score <= 1:
            raise EnvError(f"{self._name} scored {score}, expected 0..1")
        return float(score == 1) if self._scorer == "solved" else score

    def _check_scorer(self, entry: Mapping[str, Any], level: int) -> None:
        """Some scorers raise for text that they can't parse (prime_factorization). They must take the right answer."""
        try:
            self._datasets[level].score_answer(entry["answer"], entry)
        except Exception as exc:
            raise EnvError(f"the scorer of {self._name} fails even for the expected answer: {exc!r}") from exc

    def _entry_of(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        return self._entry(payload["entry"], payload.get("level", 0))

    def _generate(self, entry: int, level: int = 0) -> dict[str, Any]:
        with _seeded(self._name, self._seed + entry):
            found: dict[str, Any] = self._datasets[level][entry]
            return found

    def _refuse_unsafe(self) -> None:
        if self._scorer != "exact" and self._name in UNSAFE_SCORERS:
            raise ConfigError(
                f"scorer = {self._scorer!r} is refused for {self._name}: {UNSAFE_SCORERS[self._name]}; "
                "set scorer = 'exact' or use another dataset"
            )
        if self._name in HASH_ORDERED and sys.flags.hash_randomization:
            raise ConfigError(
                f"{self._name} generates other questions in every process unless PYTHONHASHSEED=0 is set before start"
            )
        if self._scorer == "exact" and self._entry(0)["answer"] is None:
            raise ConfigError(f"{self._name} has no expected answers; set scorer = 'dataset' or 'solved'")


def _knobs_at(name: str, level: int) -> dict[str, Any]:
    """What reasoning-gym's curriculum of the dataset sets at a level; above its highest, that one's."""
    factory = import_extra("reasoning_gym.factory")
    if not factory.has_curriculum(name):
        raise ConfigError(f"reasoning-gym has no curriculum of {name!r}, so levels must be 1")
    curriculum = factory.create_curriculum(name)
    curriculum.set_global_level(level)
    knobs = dataclasses.asdict(curriculum.generate_configuration())
    return {key: value for key, value in knobs.items() if key not in ("seed", "size")}


def _create(name: str, knobs: dict[str, Any], seed: int) -> Any:
    factory = import_extra("reasoning_gym.factory")
    if name in REFUSED:
        raise ConfigError(f"{name} isn't offered: {REFUSED[name]}")
    if name not in factory.DATASETS:
        raise ConfigError(f"reasoning-gym has no dataset {name!r}{nearest(name, factory.DATASETS)}")
    known = set(factory.DATASETS[name][1].__dataclass_fields__) - {"seed", "size"}
    for knob in knobs:
        if knob not in known:
            raise ConfigError(f"{name} has no knob {knob!r}{nearest(knob, known)}")
    size = {"size": _LIST_SIZE} if name in _LISTED else {}
    try:
        with _seeded(name, seed):
            return factory.create_dataset(name, seed=seed, **size, **knobs)
    except Exception as exc:  # validation of knobs is by assert, in a few datasets by whatever happens
        raise ConfigError(f"{name} refuses knobs = {knobs}: {exc!r}") from exc


@contextmanager
def _seeded(name: str, seed: int) -> Iterator[None]:
    """One generation at a time; for datasets that draw from the global random state, with that state seeded."""
    with _generating:
        if name not in _GLOBAL_RANDOM:
            yield
            return
        state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
