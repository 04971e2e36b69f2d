"""What the SGLang engine decides without a server: admission, metrics, labels, flags, versions."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from astraflow.engines.sglang.admission import FIRST, REST, Admission, Pressure
from astraflow.engines.sglang.labels import Labels
from astraflow.engines.sglang.launch import server_flags
from astraflow.engines.sglang.metrics import read_pressure
from astraflow.engines.sglang.scratch import Scratch
from astraflow.engines.sglang.supported import check_version
from astraflow.errors import EngineError

PAGE = """\
# HELP sglang:token_usage The token usage.
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="/tmp/a}b 0.1",tp_rank="0"} 0.25
sglang:num_running_reqs{engine_type="unified",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",dp_rank="1",tp_rank="0"} 4.0
sglang:num_queue_reqs{engine_type="unified",tp_rank="0"} 2.0
sglang:num_retracted_requests_total{engine_type="unified",tp_rank="0"} 1e+01
sglang:num_running_reqs_other{x="y"} 99
sglang:gen_throughput{engine_type="unified",tp_rank="0"} NaN-ish
sglang:cache_hit_rate 0.5 1395066363000
"""


def grown(admission: Admission, seconds: int, pressure: Pressure | None = None) -> int:
    for _ in range(seconds):
        admission.observe(pressure or Pressure(kv_usage=0.1), given=admission.limit, without_token=3)
    return admission.limit


def test_it_grows_gently_to_the_most_while_memory_is_free() -> None:
    admission = Admission(200)
    limits = [admission.limit, *(grown(admission, 1) for _ in range(40))]
    assert limits[0] == FIRST
    assert limits[-1] == 200
    assert all(one <= other <= one * 1.2 + 1 for one, other in pairwise(limits))


def test_it_does_not_grow_while_it_is_not_what_holds_requests_back() -> None:
    admission = Admission(200)
    for _ in range(20):
        admission.observe(Pressure(), given=3, without_token=3)
    assert admission.limit == FIRST


def test_it_does_not_grow_into_memory_that_running_requests_will_need() -> None:
    assert grown(Admission(200), 20, Pressure(kv_usage=0.9)) == FIRST


@pytest.mark.parametrize(
    ("signs", "what"),
    [
        ([Pressure(retracted=2.0)], "retracted"),
        ([Pressure(queued=1.0), Pressure(queued=3.0)], "queued"),
        ([Pressure(kv_usage=0.99)], "full"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pressure_cuts_once_and_then_it_rests(signs: list[Pressure], what: str) -> None:
    admission = Admission(200)
    before = grown(admission, 10)
    for sign in signs[:-1]:
        admission.observe(sign, given=3, without_token=3)  # not enough to hold requests back, so nothing grows
    assert admission.limit == before
    admission.observe(signs[-1], given=before, without_token=3)
    cut = admission.limit
    assert cut == int(before * 0.8)
    calm = Pressure(retracted=signs[-1].retracted)
    assert grown(admission, REST, calm) == cut
    assert grown(admission, 1, calm) > cut


def test_a_request_that_is_queued_for_a_moment_is_no_pressure() -> None:
    admission = Admission(200)
    before = grown(admission, 5)
    admission.observe(Pressure(queued=1.0), given=3, without_token=3)
    admission.observe(Pressure(), given=3, without_token=3)
    admission.observe(Pressure(queued=1.0), given=3, without_token=3)
    assert admission.limit == before


def test_a_queue_that_the_server_told_of_long_ago_is_no_pressure() -> None:
    admission = Admission(200)
    for _ in range(10):
        admission.observe(Pressure(queued=5.0), given=FIRST, without_token=0)
    assert admission.limit > FIRST


def test_what_a_swap_made_the_server_retract_is_no_pressure_but_the_next_is() -> None:
    admission = Admission(200)
    admission.observe(Pressure(retracted=1.0), given=3, without_token=3)
    admission.excuse()
    admission.observe(Pressure(retracted=5.0), given=3, without_token=3)
    assert admission.limit == FIRST
    admission.observe(Pressure(retracted=6.0), given=FIRST, without_token=3)
    assert admission.limit < FIRST


def test_it_never_falls_below_one() -> None:
    admission = Admission(3)
    for number in range(100):
        admission.observe(Pressure(retracted=float(number)), given=1, without_token=3)
    assert admission.limit == 1


def test_a_prometheus_page_is_read_ranks_together() -> None:
    assert read_pressure(PAGE) == Pressure(
        running=7.0, queued=2.0, kv_usage=0.25, retracted=10.0, cache_hit_rate=0.5, tokens_per_s=0.0
    )
    assert read_pressure("") == Pressure()


def test_labels_are_told_apart_from_everybody_elses() -> None:
    mine, other = Labels(), Labels()
    assert mine.version(mine.label(12)) == 12
    for label in ("default", "12", "", None, other.label(12), mine.label(12) + "x", mine.label(-1)):
        assert mine.version(label) is None


def test_server_arguments_become_flags() -> None:
    flags = server_flags(
        {"tp_size": 2, "trust_remote_code": True, "disable_radix_cache": False, "lora_paths": ["a", "b"]}
    )
    assert flags == ["--stream-interval", "4", "--tp-size", "2", "--trust-remote-code", "--lora-paths", "a", "b"]
    cpu = server_flags({"device": "cpu", "stream_interval": 1, "json_model_override_args": {"a": 1}})
    assert cpu[:2] == ["--stream-interval", "1"]
    assert "torch_native" in cpu
    assert cpu[-2:] == ["--json-model-override-args", '{"a": 1}']


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.40", "0.5.23rc1"])
def test_versions_in_the_range_are_taken(version: str) -> None:
    check_version(version, "here")


@pytest.mark.parametrize("version", ["0.5.22", "0.6.0", "1.0", "0.5", "None", ""])
def test_other_versions_are_refused_with_the_range(version: str) -> None:
    with pytest.raises(EngineError, match=r"SGLang .*works with sglang>=0\.5\.23,<0\.6"):
        check_version(version, "here")


def test_a_folder_is_removed_with_its_engine_and_by_the_next_one_if_that_was_killed(tmp_path: Path) -> None:
    living = Scratch(1, (tmp_path,))
    script = "import os, pathlib, sys; from astraflow.engines.sglang.scratch import Scratch; "
    script += "print(Scratch(1, (pathlib.Path(sys.argv[1]),)).path, flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
    ).stdout.strip()
    assert (Path(killed) / "lock").exists()
    (tmp_path / "astraflow-sglang-without-a-lock").mkdir()  # being made at this moment
    other = Scratch(1, (tmp_path,))
    assert not Path(killed).exists()
    assert living.path.exists()
    assert other.path.stat().st_mode & 0o077 == 0
    other.remove()
    living.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["astraflow-sglang-without-a-lock"]


def test_a_model_that_does_not_fit_in_memory_goes_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    scratch = Scratch(1 << 60, (Path("/dev/shm"), tmp_path / "disk"))
    assert scratch.path.parent == tmp_path / "disk"
    scratch.remove()
