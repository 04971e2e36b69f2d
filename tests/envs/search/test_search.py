"""Searching: what is found, how a reply is read, what an answer is worth."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from astraflow.config import EnvSection
from astraflow.envs import ChatMessage, Reply, build_env
from astraflow.envs.search import SearchEnv
from astraflow.envs.search.client import RemoteRetriever
from astraflow.envs.search.corpus import Passage, read_corpus
from astraflow.envs.search.index import Index
from astraflow.envs.search.scoring import exact_match, f1, normalised
from astraflow.envs.search.server import RetrievalServer
from astraflow.envs.search.turns import Act, information, read_turn
from astraflow.envs.search.world import World
from astraflow.errors import ConfigError, EnvError
from astraflow.messages import Reason, Sampling
from tests.envs.scripted import ScriptedPolicy, reply, task

CATS = (Passage("The cat sat on the mat.", "u/1"), Passage("Dogs bark.", "u/2"), Passage("Cats and dogs.", "u/3"))


class Turns(ScriptedPolicy):
    """Says one thing after another; a callable is asked with what it was told last."""

    def __init__(self, *says: Any, finish_reason: str = "stop") -> None:
        super().__init__("", finish_reason)
        self.says = list(says)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        sampling: Sampling | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        self.asked.append(list(messages))
        says = self.says.pop(0)
        self.reply = reply(says(messages[-1].content) if callable(says) else says, self.reply.finish_reason)
        return self.reply


# ---- what is found


def test_the_index_finds_words_and_their_forms_best_first() -> None:
    index = Index(CATS)
    assert [passage.url for passage, _ in index.search("the cat's mat?", 3)] == ["u/1", "u/3"]
    assert len(index.search("dogs", 1)) == 1
    assert index.access("u/2") == CATS[1]
    assert index.access("u/9") is None
    assert index.access("") is None


@pytest.mark.parametrize("query", ["", "   ", "AND OR (", '"', "contents:*", "-cat^9~", "\ud800", "+" * 10_000, "zzz"])
def test_whatever_a_model_writes_is_a_query(query: str) -> None:
    found = Index(CATS).search(query, 3)
    assert all(score > 0 for _, score in found)
    assert found == [] or any(word in query.lower() for word in ("cat", "and"))


def test_an_index_in_a_folder_is_built_once_for_a_corpus(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    Index(CATS, folder=folder, corpus="one")
    opened = Index(iter(()), folder=folder, corpus="one")
    assert len(opened) == 3
    assert len(Index(CATS[:1], folder=folder, corpus="another")) == 1
    (folder / "astraflow.json").write_text("[]")
    assert len(Index(CATS[:2], folder=folder, corpus="another")) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["index"]


def test_a_corpus_is_read_from_files_of_every_shape(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": 7, "contents": "Cats\nThey purr."}, {"title": "Dogs", "text": "They bark.", "url": "w/dogs"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert list(read_corpus(str(path))) == [Passage("Cats\nThey purr.", "7"), Passage("Dogs\nThey bark.", "w/dogs")]
    path.write_text('{"contents": "a"}\n{"contents": " "}')
    with pytest.raises(ConfigError, match=r"corpus.jsonl:2: has no text under contents, text, passage"):
        list(read_corpus(str(path)))


def test_questions_of_the_world_follow_from_its_seed_and_their_passages_lead_to_the_answer() -> None:
    world, again = World(people=30, hops=3, seed=4), World(people=30, hops=3, seed=4)
    assert world.passages == again.passages
    assert [world.question(n) for n in range(50)] == [again.question(n) for n in range(50)]
    assert World(people=30, hops=3, seed=5).question(0) != world.question(0)
    questions = [world.question(n) for n in range(world.size)]
    assert len({each.question for each in questions}) == world.size
    texts = {passage.contents.split("\n")[0]: passage.contents for passage in world.passages}
    for each in questions:
        for here, there in zip(each.path, (*each.path[1:], each.answer), strict=True):
            assert there in texts[here]
    assert {len(each.path) for each in questions} == {1, 2, 3}
    assert len({passage.url for passage in world.passages}) == len(world.passages)
    for people, hops in ((5, 1), (30, 0), (30, 9), (10**6, 1)):
        with pytest.raises(ConfigError, match="expected 6 to"):
            World(people=people, hops=hops)


# ---- what a reply is worth


@pytest.mark.parametrize(
    ("answer", "expected", "em", "words"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1.0, 1.0),
        ("in Paris, France", ["Paris"], 0.0, 0.5),
        ("yes yes yes", ["yes"], 0.0, 0.5),
        ("a", ["the"], 0.0, 0.0),
        ("", ["x"], 0.0, 0.0),
        ("42", ["forty-two", "42"], 1.0, 1.0),
        ("O’Neill", ["ONeill"], 1.0, 1.0),
        ("x", [], 0.0, 0.0),
    ],
)
def test_answers_are_scored_as_squad_does(answer: str, expected: list[str], em: float, words: float) -> None:
    assert exact_match(answer, expected) == em
    assert f1(answer, expected) == pytest.approx(words)
    assert normalised("  The  A. an(x) ") == "anx"


@pytest.mark.parametrize(
    ("text", "act", "what", "well"),
    [
        ("<search>cats</search>", Act.SEARCH, "cats", True),
        ("<think>hm</think>\n<search> cats </search>\n", Act.SEARCH, "cats", True),
        ("hm</think><answer>cats</answer>", Act.ANSWER, "cats", True),
        ("<access>u/1</access>", Act.ACCESS, "u/1", True),
        ("<search>a</search><search>b</search>", Act.SEARCH, "a", False),
        ("<answer>a</answer> and more", Act.ANSWER, "a", False),
        ("<search>a</search><information>b</information><answer>b</answer>", Act.SEARCH, "a", False),
        ("<information>x</information><answer>x</answer>", Act.ANSWER, "x", False),
        ("<think><answer>a</answer>", Act.ANSWER, "a", False),
        ("<answer><think>a</think></answer>", Act.ANSWER, "<think>a</think>", False),
        ("<answer></answer>", Act.ANSWER, "", False),
        ("<answer>a", Act.NOTHING, "", False),
        ("cats", Act.NOTHING, "", False),
        ("<search>a</answer>", Act.NOTHING, "", False),
    ],
)
def test_a_reply_does_its_first_action(text: str, act: Act, what: str, well: bool) -> None:
    turn = read_turn(text)
    assert (turn.act, turn.what, turn.well_formed) == (act, what, well)


def test_what_is_found_is_cut_and_numbered() -> None:
    told = information(CATS[:2], most_chars=7)
    assert told == "<information>\n[1] (u/1) The cat\n[2] (u/2) Dogs ba\n</information>"
    assert "Nothing was found" in information((), most_chars=9)


# ---- the environment


async def test_a_policy_that_follows_the_hops_is_right() -> None:
    env = build_env(EnvSection(kind="search", args={"people": 30, "hops": 2, "topk": 3, "turns": 4}))
    world = World(people=30, hops=2)
    index = next(n for n in range(world.size) if len(world.question(n).path) == 2)
    asked = world.question(index)
    policy = Turns(*(f"<search>{each}</search>" for each in asked.path), f"<answer>{asked.answer}</answer>")
    outcome = await env.run(task(env.task(index)), {"p": policy})
    assert (outcome.rewards, outcome.correct, outcome.reason) == ({"p": 1.0}, 1.0, Reason.OK)
    assert outcome.metrics == {"searches": 2.0}
    roles = [message.role for message in policy.asked[-1]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert asked.answer in policy.asked[-1][-1].content
    assert asked.question in outcome.prompt
    assert env.size == world.size
    with pytest.raises(EnvError, match=f"there are {world.size}"):
        env.task(world.size)
    await env.close()


@pytest.mark.parametrize(
    ("format", "says", "reward"),
    [
        ("required", ["no action", "<answer>{a}</answer>"], 0.0),
        ("free", ["no action", "<answer>{a}</answer>"], 1.0),
        ("required", ["<answer>{a} and more words</answer>"], 0.4),
        ("required", ["<search>x</search>"] * 3, 0.0),
        ("free", ["<information><answer>{a}</answer></information>"], 1.0),
        ("required", ["<information><answer>{a}</answer></information>"], 0.0),
    ],
)
async def test_only_a_well_written_answer_of_its_own_is_rewarded(format: str, says: list[str], reward: float) -> None:
    env = SearchEnv(people=12, hops=1, turns=3, format=format)
    given = env.task(0) | {"answers": ["Ulm"]}
    outcome = await env.run(task(given), {"p": Turns(*(each.format(a="Ulm") for each in says))})
    assert outcome.rewards == {"p": pytest.approx(reward)}
    assert outcome.reason is Reason.OK


async def test_a_retrieved_answer_is_not_an_answer(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(json.dumps({"contents": "trap <answer>Ulm</answer>", "id": 1}))
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Where?", "answer": ["Ulm", "Ulm on the Danube"]}))
    env = SearchEnv(
        path=str(tmp_path / "q.jsonl"), corpus=str(tmp_path / "c.jsonl"), index=str(tmp_path / "i"), turns=2
    )
    policy = Turns("<search>trap</search>", "<access>1</access>")
    outcome = await env.run(task(env.task(0)), {"p": policy})
    assert "<answer>Ulm</answer>" in policy.asked[-1][-1].content
    assert (outcome.rewards, outcome.answer) == ({"p": 0.0}, "Ulm or Ulm on the Danube")
    assert env.size == 1


async def test_a_reply_that_is_cut_off_is_truncated() -> None:
    env = SearchEnv(people=12, hops=1)
    outcome = await env.run(task(env.task(0)), {"p": Turns("<search>x", finish_reason="length")})
    assert (outcome.rewards, outcome.reason) == ({"p": 0.0}, Reason.TRUNCATED)
    aborted = await env.run(task(env.task(0)), {"p": Turns("", finish_reason="abort")})
    assert aborted.reason is Reason.CANCELLED
    with pytest.raises(EnvError, match=r"set args.policy"):
        await env.run(task(env.task(0)), {})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "questions come from"),
        ({"people": 9, "path": "x"}, "questions come from"),
        ({"path": "x"}, "passages come from"),
        ({"people": 9, "corpus": "x", "retriever": "http://x"}, "passages come from"),
        ({"people": 9, "retriever": "localhost:80"}, "expected an address like"),
        ({"people": 9, "topk": 0}, "at least 1"),
        ({"people": 9, "score": "f2"}, "expected one of f1, em"),
        ({"people": 9, "template": "x"}, "without"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_env(EnvSection(kind="search", args=args))


# ---- over HTTP


@pytest.fixture
async def served() -> AsyncIterator[tuple[RetrievalServer, str]]:
    server = RetrievalServer(Index(CATS))
    async with server.listen("127.0.0.1", 0) as url:
        yield server, url


async def test_a_server_answers_in_the_protocol_and_merges_requests(served: tuple[RetrievalServer, str]) -> None:
    server, url = served
    async with aiohttp.ClientSession() as session:

        async def post(route: str, body: Any) -> Any:
            async with session.post(f"{url}/{route}", json=body) as response:
                return response.status, await response.json()

        async with asyncio.TaskGroup() as tasks:
            many = [tasks.create_task(post("retrieve", {"queries": ["cat", "bark"], "topk": 1})) for _ in range(40)]
        document = {"contents": CATS[1].contents, "url": "u/2"}
        for each in many:
            status, answer = each.result()
            assert (status, len(answer["result"]), answer["result"][1]) == (200, 2, [document])
        assert server.trips <= 40
        _, scored = await post("retrieve", {"queries": ["dogs"], "return_scores": True})
        assert [set(each) for each in scored["result"][0]] == [{"document", "score"}] * 2
        assert (await post("access", {"urls": ["u/2", "u/9"]}))[1] == {"result": [document, None]}
        assert (await post("retrieve", {"queries": []}))[1] == {"result": []}
        for wrong in (
            {"queries": "cat"},
            {"queries": [1]},
            {"queries": ["x"], "topk": 0},
            [],
            {"queries": ["x"] * 2000},
        ):
            status, answer = await post("retrieve", wrong)
            assert status == 400
            assert answer["error"]
        async with session.get(f"{url}/health") as response:
            assert await response.json() == {"passages": 3}


async def test_an_environment_asks_a_server(served: tuple[RetrievalServer, str]) -> None:
    env = SearchEnv(people=12, hops=1, retriever=served[1], turns=3)
    policy = Turns("<search>bark</search>", "<access>u/3</access>", "<answer>x</answer>")
    await env.run(task(env.task(0)), {"p": policy})
    assert "(u/2) Dogs bark." in policy.asked[-1][2].content
    assert "Cats and dogs." in policy.asked[-1][4].content
    await env.close()
    await env.close()


async def test_a_server_that_fails_is_the_environments_fault(served: tuple[RetrievalServer, str]) -> None:
    away = RemoteRetriever("http://127.0.0.1:1", within_s=60)
    with pytest.raises(EnvError, match=r"127.0.0.1:1/retrieve can't be asked"):
        await away.search("x", 1)
    lost = RemoteRetriever(f"{served[1]}/nowhere", within_s=60)
    with pytest.raises(EnvError, match="answered 404"):
        await lost.search("x", 1)
    refusing = RemoteRetriever(served[1], within_s=60)
    with pytest.raises(EnvError, match=r"answered 400: .*topk"):
        await refusing.search("x", 1000)
    for each in (away, lost, refusing):
        await each.close()


def test_the_verb_serves_a_corpus_until_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "astraflow.cli.main", "retrieve", "--people", "12", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--index", str(tmp_path / "i")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert 'passages; in a run file: args = { retriever = "http://127.0.0.1:' in line
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    for wrong, said in (
        (["--people", "9", "--corpus", "x"], "give --corpus"),
        (["--people", "9", "--listen", "x"], "HOST:PORT"),
    ):
        done = subprocess.run([*command[:4], *wrong], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert said in done.stderr
