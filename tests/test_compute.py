"""One dtype per machine, and paths as people write them."""

from pathlib import Path

import pytest
import torch

from astraflow import compute
from astraflow.paths import user_path, user_path_text


@pytest.mark.parametrize(("written", "fast"), [("bf16", True), ("fp32", False)])
def test_what_the_first_process_found_holds_for_all(tmp_path: Path, written: str, fast: bool) -> None:
    (tmp_path / "compute").write_text(written)
    assert compute.settled_choice(tmp_path / "compute") is fast


@pytest.mark.parametrize("there", [None, "", "fp64"])
def test_without_an_answer_it_is_measured(tmp_path: Path, there: str | None) -> None:
    file = tmp_path / "cache" / "compute"
    if there is not None:
        file.parent.mkdir()
        file.write_text(there)
    fast = compute.settled_choice(file)
    if there is None:
        assert file.read_text() == ("bf16" if fast else "fp32")
        assert compute.settled_choice(file) is fast
    assert [path.name for path in file.parent.iterdir()] == ["compute"]


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert compute.settled_choice(tmp_path / "file" / "compute") in (True, False)


def test_names_of_dtypes() -> None:
    assert (compute.compute_dtype("bf16"), compute.compute_dtype("fp32")) == (torch.bfloat16, torch.float32)
    assert compute.compute_dtype("auto") is compute.compute_dtype("auto")


def test_a_home_is_expanded_and_an_unknown_users_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert user_path("~/m0") == Path("/home/me/m0")
    assert user_path("~") == Path("/home/me")
    assert user_path("~nobody-here/m0") == Path("~nobody-here/m0")
    assert user_path("a/~/b") == Path("a/~/b")
    assert user_path_text("") == ""
