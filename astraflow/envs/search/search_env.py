"""Questions that are answered by searching, in turns.

A reply ends with one action: `<search>query</search>` finds passages, `<access>address</access>` opens one,
`<answer>…</answer>` ends the episode. What is found is a message of the environment's, so it is never trained; only the
policy's own text is scored. A search that fails is an episode with reason `env`, not a wrong answer.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from astraflow.envs.arguments import choice, import_extra
from astraflow.envs.base import ChatMessage, Outcome, PolicyHandle
from astraflow.envs.presets import source
from astraflow.envs.question_files import find_sources
from astraflow.envs.questions import Question, Reading, read_questions
from astraflow.envs.search.client import LocalRetriever, RemoteRetriever, Retriever
from astraflow.envs.search.corpus import read_corpus
from astraflow.envs.search.index import Index, corpus_name
from astraflow.envs.search.scoring import exact_match, f1
from astraflow.envs.search.turns import REMINDER, Act, Turn, information, read_turn
from astraflow.envs.search.world import World
from astraflow.envs.templates import Template
from astraflow.errors import ConfigError, EnvError
from astraflow.messages import Reason, Task

_TEMPLATE = (
    "Answer the question. You can search as often as you need: think, then write one query as <search>query</search> "
    "and stop; what is found comes back between <information> and </information>. When you know the answer, write it "
    "as <answer>answer</answer>, in a few words.\n\nQuestion: {question}"
)


class SearchEnv:
    """One question per task. Reward: the answer's score, times 0 where a turn isn't written as it should be.

    Questions are those of files, or of a made-up world; passages come from a server, files, or that world.

    Args:
        people: of a made-up world (docs/search.md); 0 = questions from `path`.
        hops: relations that a question of that world follows, at most.
        seed: of that world.
        path, question_key, answer_key, bad_rows: files of questions, as in environment `math`.
        retriever: address of a server, as `astraflow retrieve` prints it.
        corpus: files of passages instead, each process makes an index of its own at its first search.
        index: a folder for that index, which processes of a machine and later starts share; "" = in memory.
        topk: passages per search.
        passage_chars: of a passage, at most.
        page_chars: of a page that is opened, at most.
        turns: replies of the policy, at most.
        score: "f1" | "em" (exact match).
        format: "required": an answer after a badly written turn is worth nothing; "free".
        retrieve_s: seconds for a search.
        template: the first message; `{question}` is filled in.
        policy: the policy that answers; "" = the only one of the run.

    Raises:
        ConfigError: questions or passages come from nowhere or from two places, a package is missing, or a number is
            out of range; at first use, whatever is wrong in the files.
    """

    def __init__(
        self,
        *,
        people: int = 0,
        hops: int = 2,
        seed: int = 0,
        path: str | list[str] = "",
        question_key: str = "question",
        answer_key: str = "answer",
        bad_rows: str = "refuse",
        retriever: str = "",
        corpus: str | list[str] = "",
        index: str = "",
        topk: int = 3,
        passage_chars: int = 2000,
        page_chars: int = 20_000,
        turns: int = 6,
        score: str = "f1",
        format: str = "required",
        retrieve_s: float = 60.0,
        template: str = _TEMPLATE,
        policy: str = "",
    ) -> None:
        if min(topk, passage_chars, page_chars, turns) < 1 or retrieve_s <= 0:
            raise ConfigError("topk, passage_chars, page_chars and turns must be at least 1, retrieve_s more than 0")
        if bool(people) == bool(path):
            raise ConfigError(
                "questions come from args.path (files) or args.people (a made-up world); give one of them"
            )
        if bool(retriever) + bool(corpus) > 1 or not (retriever or corpus or people):
            raise ConfigError("passages come from args.retriever (an address) or args.corpus (files); give one of them")
        if retriever and not retriever.startswith(("http://", "https://")):
            raise ConfigError(f"retriever is {retriever!r}, expected an address like http://127.0.0.1:8000")
        if not retriever:
            import_extra("tantivy", extra="search")
        self._world = World(people=people, hops=hops, seed=seed) if people else None
        self._source = source(path=path, question_key=question_key, answer_key=answer_key) if path else None
        skip = choice("bad_rows", bad_rows, ("refuse", "skip")) == "skip"
        self._reading = Reading(question_key=question_key, answer_key=answer_key, skip_bad=skip)
        self._retriever: Retriever = (
            RemoteRetriever(retriever, within_s=retrieve_s)
            if retriever
            else LocalRetriever(lambda: self._made_index(corpus, index))
        )
        self._topk, self._passage_chars, self._page_chars, self._turns = topk, passage_chars, page_chars, turns
        self._score = exact_match if choice("score", score, ("f1", "em")) == "em" else f1
        self._strict = choice("format", format, ("required", "free")) == "required"
        self._template = Template(template, ("question",))
        self._policy = policy

    @property
    def size(self) -> int | None:
        """Number of questions."""
        return self._world.size if self._world else len(self._questions)

    def task(self, index: int) -> dict[str, Any]:
        """{"index", "question", "answers"}. Raises EnvError beyond `size`."""
        if not 0 <= index < (self.size or 0):
            raise EnvError(f"task index is {index}, there are {self.size} questions")
        if self._world:
            asked = self._world.question(index)
            return {"index": index, "question": asked.question, "answers": [asked.answer]}
        found = self._questions[index]
        return {"index": index, "question": found.question, "answers": list(found.answers)}

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """Play the turns. Raises EnvError if a search fails, BudgetError if the policy has spent its tokens."""
        name = self._policy_name(policies)
        messages = [ChatMessage("user", self._template.fill({"question": task.payload["question"]}))]
        prompt = messages[0].content
        answers = [str(each) for each in task.payload["answers"]]
        turns: list[Turn] = []
        while len(turns) < self._turns:
            reply = await policies[name].chat(messages, sampling=task.sampling)
            if reply.finish_reason == "abort":
                return Outcome(rewards={}, reason=Reason.CANCELLED, error="generation was aborted", prompt=prompt)
            turns.append(turn := read_turn(reply.text))
            if turn.act is Act.ANSWER or policies[name].cut_off:
                break
            messages += [ChatMessage("assistant", reply.text), ChatMessage("user", await self._answered(turn))]
        return self._outcome(name, turns, answers, prompt=prompt, cut_off=policies[name].cut_off)

    async def close(self) -> None:
        """Close connections. Idempotent."""
        await self._retriever.close()

    async def _answered(self, turn: Turn) -> str:
        """What the policy gets back."""
        if turn.act is Act.SEARCH:
            return information(await self._retriever.search(turn.what, self._topk), most_chars=self._passage_chars)
        if turn.act is Act.ACCESS:
            page = await self._retriever.access(turn.what)
            return information([page] if page else [], most_chars=self._page_chars)
        return REMINDER

    def _outcome(self, name: str, turns: Sequence[Turn], answers: list[str], *, prompt: str, cut_off: bool) -> Outcome:
        said = turns[-1].what if turns[-1].act is Act.ANSWER else ""
        well_formed = float(all(turn.well_formed for turn in turns))
        score = self._score(said, answers) if said else 0.0
        exact = exact_match(said, answers) if said else 0.0
        searches = sum(turn.act is not Act.NOTHING for turn in turns) - (turns[-1].act is Act.ANSWER)
        return Outcome(
            rewards={name: score * (well_formed if self._strict else 1.0)},
            correct=exact,
            parts={"answer": score, "format": well_formed},
            reason=Reason.TRUNCATED if cut_off and not said else Reason.OK,
            prompt=prompt,
            answer=" or ".join(answers),
            metrics={"searches": float(searches)},
        )

    def _policy_name(self, policies: Mapping[str, PolicyHandle]) -> str:
        if self._policy in policies:
            return self._policy
        if not self._policy and len(policies) == 1:
            return next(iter(policies))
        raise EnvError(f"SearchEnv has policy = {self._policy!r}, the run has {sorted(policies)}; set args.policy")

    def _made_index(self, corpus: str | list[str], folder: str) -> Index:
        if not corpus and self._world:
            return Index(self._world.passages)
        files = find_sources(source(path=corpus))
        return Index(
            read_corpus(corpus), folder=Path(folder).expanduser() if folder else None, corpus=corpus_name(files)
        )

    @cached_property
    def _questions(self) -> tuple[Question, ...]:
        assert self._source is not None
        return read_questions(find_sources(self._source), self._reading)
