"""math-verify in killable processes: verdicts, hangs, deaths."""

import os
import resource
import select
import subprocess
import sys
import threading
import time

import pytest

from astraflow.envs.verifier_pool import _MEMORY_BYTES, VerifierPool
from astraflow.errors import EnvError

HANGS = ("$10^{10^{10}}$", "$9^{9^{9}}$", "$10^{10^{11}}$")


@pytest.fixture(scope="module")
def pool():
    pool = VerifierPool(workers=1, deadline_s=20.0)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        ("72", "The answer is 72.", True),
        ("72", "The answer is \\boxed{71}", False),
        ("\\frac{1}{2}", "so \\boxed{0.5}", True),
        ("1/2", "\\boxed{\\frac{2}{4}}", True),
        ("x^2+1", "\\boxed{1+x^2}", True),
        ("1<x<2", "\\boxed{(1,2)}", True),  # gold first: the other way round math-verify says no
        ("Paris", "It is \\boxed{paris}", True),
        ("Paris", "I say\nParis", True),
        ("Paris", "\\boxed{London}", False),
        ("72", "", False),
        ("72", "٣", False),
        ("72", "nan", False),
        ("72", "1e999", False),
        ("72", "\\boxed{72", False),
        ("72", "\ud800 is 72", True),
        ("72", "\\boxed{" * 10_000, False),
        ("72", "a\nb\r\n\0 72", True),
        ("72", "72 " + "x" * 5000, False),  # only the end is read
        ("72", "  \n ", False),
        ("3.5", "it is \\boxed 3.5.", True),
        ("1/2", "it is $\\boxed\\frac12$", True),
        ("72", "72, which I put into \\boxed as asked", True),
        ("72", "72 \\boxed{}", False),  # the last box counts, and nothing is in it
        ("72", "\\boxed{72} or \\boxed{", False),
        ("5", "\\boxed{5} no \\boxed{7}", False),
        ("7", "\\boxed{5} no \\boxed{7}", True),
        ("1,2", "\\boxed{1} and \\boxed{2}", True),
        ("1e3", "\\boxed{1000}", True),
        ("1000", "it is 1e3", True),
        ("1.0e-3", "0.001", True),
        ("3 \\times 10^5", "\\boxed{300000}", True),
        ("1.5e6", "1.5 × 10^6", True),
        ("1e99", "\\boxed{10^{99}}", False),  # not written out, and not what was asked for
        ("1 1/2", "\\boxed{1.5}", True),
        ("1.5", "\\boxed{1 1/2}", True),
        ("-1 1/2", "\\boxed{-\\frac{3}{2}}", True),
        ("1\\frac{1}{2}", "it is 1 1/2.", True),
        ("1/2", "it is 1 1/2.", False),
        ("1/2", "\\boxed{1\\frac12}", False),
        ("１２", "\\boxed{12}", True),
        ("12", "\\boxed{１２}", True),
        ("-5", "\\boxed{−5}", True),
        ("5", "\\boxed{-5}", False),
        ("5", "\\boxed{.5}", False),
        ("$1,000", "\\boxed{1000}", True),
        ("1000", "\\boxed{\\$1{,}000}", True),
        ("1\\,000", "\\boxed{1000}", True),
        ("50\\%", "\\boxed{50\\%}", True),
        ("50\\%", "\\boxed{5\\%}", False),
        ("x=5", "\\boxed{5}", True),
        ("1½", "\\boxed{1.5}", True),
        ("0.\\overline{3}", "\\boxed{\\frac13}", True),
        ("√2", "\\boxed{\\sqrt{2}}", True),
        ("(-∞, 3]", "\\boxed{(-\\infty,3]}", True),
        ("(-∞, 3]", "\\boxed{(-\\infty,3)}", False),
        ("£1,000", "\\boxed{1000}", True),
        ("5 dollars", "\\boxed{\\$5}", True),
        ("5", "\\boxed{x=5}", True),
        ("\\{1,2\\}", "\\boxed{\\{2,1\\}}", True),
        ("(1,2)", "\\boxed{(2,1)}", False),
        ("[0,1)", "\\boxed{[0,1)}", True),
        ("[0,1)", "\\boxed{[0,1]}", False),
        ("x \\in [0,1)", "\\boxed{[0,1)}", True),
        ("C", "\\boxed{C}", True),
        ("C", "\\boxed{\\text{(C)}}", True),
        ("C", "\\boxed{\\textbf{(C) }42}", True),
        ("\\text{C}", "The answer is (C).", True),
        ("(C)", "so the correct option is **C**", True),
        ("c)", "\\boxed{C}", False),  # not a letter of a choice: c) is half an expression
        ("C", "Answer: C", True),
        ("C", "C. 42", True),
        ("C", "I think C.", True),
        ("C", "**Answer:** C", True),
        ("C", "The answer is C. Option A is wrong, since (B) is.", True),
        ("A", "The answer is C. Option A is wrong.", False),
        ("C", "\\boxed{A or C}", False),
        ("D. H. Lawrence", "\\boxed{D}", False),
        ("D. H. Lawrence", "It was\nD. H. Lawrence.", True),
        ("C", "The answer is not A but (C).", True),
        ("B", "The answer is A. (not B)", False),
        ("A", "A cat sat there.", False),
        ("C", "\\boxed{42}", False),
        ("C", "\\boxed{}", False),
        ("\\textbf{(C) }42", "\\boxed{42}", True),
        ("\\textbf{(C) }42", "\\boxed{C}", True),
        ("\\textbf{(C) }42", "\\boxed{D}", False),
        ("True", "\\boxed{true}", True),
        ("True", "\\boxed{False}", False),
        ("tea", "\\boxed{ate}", False),  # a product of the same letters to mathematics
        ("None of these", "\\boxed{\\text{none of these}}", True),
        ("Paris", "The answer is Paris.", True),
        ("北京", "\\boxed{北京}", True),
        ("1000", "答案是1e3", True),
        ("1.5", "答案是1 1/2。", True),
        ("-5", "答えは-5です", True),
        ("5", "一共5个苹果", True),
        ("X", "\\boxed{X}", True),
    ],
    ids=lambda value: "text" if isinstance(value, str) else None,  # what a name of a test can't hold
)
def test_verdicts(pool, gold, text, right):
    assert pool.verify(gold, text) is right


@pytest.mark.parametrize("text", ["", "5", "\\boxed{}", "\\boxed{", "x"])
@pytest.mark.parametrize("gold", ["", " ", "\n"])
def test_without_an_expected_answer_nothing_is_right(pool, gold, text):
    with pytest.raises(EnvError, match="no expected answer"):
        pool.verify(gold, text)


@pytest.mark.parametrize("gold", ["\\text{}", "$$", "\\boxed{}", "{", "\\", "\u3000", "\u200b"])
def test_an_expected_answer_that_says_nothing_is_never_met(pool, gold):
    for text in ("\\boxed{}", "\\boxed{", "\\text{}", "$$", "nothing", "."):
        try:
            assert not pool.verify(gold, text)
        except EnvError:  # no expected answer
            continue


def test_hung_verifiers_are_killed_and_later_answers_are_right():
    pool = VerifierPool(workers=2, deadline_s=1.0)
    assert pool.verify("3", "it is 3")
    errors = []

    def hang(text: str) -> None:
        try:
            pool.verify("72", text)
        except EnvError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=hang, args=(text,)) for text in HANGS]  # workers + 1
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == len(HANGS)
    assert time.monotonic() - start < 2 * 1.0 + 40  # two rounds, and starting processes on a busy machine
    with pytest.raises(EnvError, match="no verdict within"):  # a failure is not remembered as a verdict
        pool.verify("72", HANGS[0])
    assert pool.verify("72", "is 72 indeed")
    assert not pool.verify("72", "is 73 indeed")
    pool.close()


def test_a_verdict_is_remembered(pool):
    assert not pool.verify("5", "an unlikely 6")
    pool.close()
    assert not pool.verify("5", "an unlikely 6")
    assert pool._places.queue[0] is None  # no process was needed


def test_an_idle_workers_death_costs_one_judgement(pool):
    pool.verify("1", "1")
    pool.verify("10", "a fresh 10")
    worker = pool._places.queue[0]
    worker._process.kill()
    worker._process.wait()
    with pytest.raises(EnvError, match="died"):
        pool.verify("2", "2")
    assert pool.verify("2", "2")


def test_a_closed_pool_leaves_no_process(pool):
    pool.verify("11", "a fresh 11")
    worker = pool._places.queue[0]
    pool.close()
    pool.close()
    assert worker._process.poll() is not None


def test_a_hung_worker_whose_parent_was_killed_ends_by_its_cpu_limit():
    code = (
        "import json, os\n"
        "from astraflow.envs.verifier_pool import _Worker\n"
        "worker = _Worker(deadline_s=1.0)\n"
        f"job = {{'gold': '72', 'text': {HANGS[0]!r}}}\n"
        "worker._process.stdin.write(json.dumps(job).encode() + b'\\n')\n"
        "worker._process.stdin.flush()\n"
        "print(worker._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -9
    assert is_gone(int(done.stdout), within_s=60)


def is_gone(pid: int, *, within_s: float) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([descriptor], [], [], within_s)
    os.close(descriptor)
    return bool(ready)


def test_a_process_may_not_take_more_memory_than_its_share(pool: VerifierPool) -> None:
    assert pool.verify("104729", "\\boxed{104729}")  # of nobody else, who would have it answered without a process
    worker = pool._places.get()
    pool._places.put(worker)
    assert worker is not None
    assert resource.prlimit(worker._process.pid, resource.RLIMIT_AS) == (_MEMORY_BYTES, _MEMORY_BYTES)
