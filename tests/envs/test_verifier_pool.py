"""math-verify in killable processes: verdicts, hangs, deaths."""

import threading
import time

import pytest

from astraflow.envs.verifier_pool import VerifierPool
from astraflow.errors import EnvError

HANGS = ("$10^{10^{10}}$", "$9^{9^{9}}$", "$10^{10^{11}}$")


@pytest.fixture(scope="module")
def pool():
    pool = VerifierPool(workers=2, deadline_s=20.0)
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
    ],
)
def test_verdicts(pool, gold, text, right):
    assert pool.verify(gold, text) is right


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
    assert time.monotonic() - start < 2 * 1.0 + 15  # two rounds, and starting processes on a busy machine
    assert pool.verify("72", "is 72 indeed")
    assert not pool.verify("72", "is 73 indeed")
    pool.close()


def test_a_verdict_is_remembered_a_failure_is_not():
    pool = VerifierPool(workers=1, deadline_s=0.5)
    with pytest.raises(EnvError, match="no verdict within"):
        pool.verify("72", HANGS[0])
    with pytest.raises(EnvError, match="no verdict within"):
        pool.verify("72", HANGS[0])
    pool.close()


def test_an_idle_workers_death_costs_one_judgement():
    pool = VerifierPool(workers=1, deadline_s=20.0)
    assert pool.verify("1", "1")
    worker = pool._places.get()
    worker._process.kill()
    worker._process.wait()
    pool._places.put(worker)
    with pytest.raises(EnvError, match="died"):
        pool.verify("2", "2")
    assert pool.verify("2", "2")
    pool.close()


def test_a_closed_pool_leaves_no_process_and_can_start_again():
    pool = VerifierPool(workers=1, deadline_s=20.0)
    assert pool.verify("1", "1")
    worker = pool._places.get()
    pool._places.put(worker)
    pool.close()
    pool.close()
    assert worker._process.poll() is not None
    assert pool.verify("2", "2")
    pool.close()
