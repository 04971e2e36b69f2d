"""The shares of cores add up, and cgroup quotas are read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.errors import ConfigError
from astraflow.node.threads import process_environment, quota_cores, share, usable_cores


@pytest.mark.parametrize(
    ("cores", "policies", "trainers", "expected"),
    [
        (1, 1, 1, {"policy": 1, "trainer": 1}),
        (2, 1, 1, {"policy": 1, "trainer": 1}),
        (3, 1, 1, {"policy": 2, "trainer": 1}),
        (8, 1, 1, {"policy": 4, "trainer": 4}),
        (8, 2, 1, {"policy": 3, "trainer": 2}),
        (4, 0, 1, {"policy": 4, "trainer": 4}),
        (4, 3, 0, {"policy": 1, "trainer": 1}),
    ],
)
def test_even_shares(cores: int, policies: int, trainers: int, expected: dict[str, int]) -> None:
    assert share(cores, policies=policies, trainers=trainers) == expected


def test_fixed_numbers_are_kept_and_the_rest_is_shared() -> None:
    assert share(8, policies=2, trainers=1, policy_threads=1) == {"policy": 1, "trainer": 6}
    assert share(8, policies=1, trainers=1, policy_threads=2, trainer_threads=3) == {"policy": 2, "trainer": 3}


def test_fixed_numbers_beyond_the_machine_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"need 5 cores, but there are 4; lower them"):
        share(4, policies=1, trainers=1, policy_threads=3, trainer_threads=2)


@given(
    cores=st.integers(1, 256),
    policies=st.integers(0, 8),
    trainers=st.integers(0, 8),
    policy_threads=st.integers(0, 8),
    trainer_threads=st.integers(0, 8),
)
def test_shares_never_exceed_the_cores(
    cores: int, policies: int, trainers: int, policy_threads: int, trainer_threads: int
) -> None:
    try:
        shares = share(
            cores,
            policies=policies,
            trainers=trainers,
            policy_threads=policy_threads,
            trainer_threads=trainer_threads,
        )
    except ConfigError:
        assert policies * (policy_threads or 1) + trainers * (trainer_threads or 1) > cores
        return
    total = policies * shares["policy"] + trainers * shares["trainer"]
    assert min(shares.values()) >= 1
    assert total <= max(cores, policies + trainers)
    if not policy_threads and not trainer_threads and policies:
        assert cores - total < max(1, policies)  # nothing is left that could be given to every policy


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_tightest_quota_on_the_cgroup_path_counts(tmp_path: Path) -> None:
    mount, membership = tmp_path / "cgroup", tmp_path / "self"
    write(membership, "0::/kube/pod/main\n")
    write(mount / "kube/pod/main/cpu.max", "max 100000\n")
    write(mount / "kube/pod/cpu.max", "350000 100000\n")
    write(mount / "kube/cpu.max", "800000 100000\n")
    assert quota_cores(mount, membership) == 3


def test_a_quota_below_one_core_is_one_core(tmp_path: Path) -> None:
    write(tmp_path / "self", "4:cpu,cpuacct:/box\n")
    write(tmp_path / "cpu/box/cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "cpu/box/cpu.cfs_period_us", "100000\n")
    assert quota_cores(tmp_path, tmp_path / "self") == 1


def test_no_quota_is_zero(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/\n1:cpu:/\n")
    write(tmp_path / "cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000\n")
    assert quota_cores(tmp_path, tmp_path / "self") == 0
    assert quota_cores(tmp_path, tmp_path / "missing") == 0


def test_usable_cores_obey_the_limit() -> None:
    assert usable_cores(1) == 1
    assert 1 <= usable_cores() <= 4096


def test_the_environment_is_set_before_anything_loads() -> None:
    environment = process_environment(3, base={"PATH": "/bin", "OMP_NUM_THREADS": "64"})
    assert environment["PATH"] == "/bin"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert (environment["PYTHONHASHSEED"], environment["TOKENIZERS_PARALLELISM"]) == ("0", "false")
    assert environment["HF_HUB_OFFLINE"] == "1"
