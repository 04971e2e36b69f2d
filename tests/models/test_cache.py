"""The cache: complete folders or none, one builder, damage is repaired."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.models.cache import MARKER, built_folder, cache_root, run_builder


def writer(text: str, built: list[str]):
    def build(folder: Path) -> None:
        assert list(folder.iterdir()) == []
        built.append(text)
        (folder / "a.txt").write_text(text)

    return build


def test_a_folder_is_built_once(tmp_path):
    built: list[str] = []
    for _ in range(3):
        folder = built_folder("m", recipe="1", cache=tmp_path, build=writer("x", built))
    assert built == ["x"]
    assert (folder / "a.txt").read_text() == "x"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m.lock"]


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "marker", "half"])
def test_a_damaged_folder_is_built_again(tmp_path, damage):
    built: list[str] = []
    folder = built_folder("m", recipe="1", cache=tmp_path, build=writer("xyz", built))
    {
        "cut": lambda: (folder / "a.txt").write_text("xy"),
        "flip": lambda: (folder / "a.txt").write_text("xyx"),
        "remove": lambda: (folder / "a.txt").unlink(),
        "marker": lambda: (folder / MARKER).write_text("{}"),
        "half": lambda: (folder / MARKER).unlink(),
    }[damage]()
    built_folder("m", recipe="1", cache=tmp_path, build=writer("xyz", built))
    assert len(built) == 2
    assert (folder / "a.txt").read_text() == "xyz"


def test_another_recipe_replaces_the_folder(tmp_path):
    built: list[str] = []
    built_folder("m", recipe="1", cache=tmp_path, build=writer("old", built))
    folder = built_folder("m", recipe="2", cache=tmp_path, build=writer("new", built))
    assert (folder / "a.txt").read_text() == "new"


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(folder: Path) -> None:
        (folder / "a.txt").write_text("half")
        raise ConfigError("no wheel")

    with pytest.raises(ConfigError, match="no wheel"):
        built_folder("m", recipe="1", cache=tmp_path, build=fail)
    assert [p.name for p in tmp_path.iterdir()] == ["m.lock"]


def test_two_at_once_build_once(tmp_path):
    built: list[str] = []
    inside = threading.Event()

    def build(folder: Path) -> None:
        inside.set()
        writer("x", built)(folder)

    def prepare() -> None:
        built_folder("m", recipe="1", cache=tmp_path, build=build)

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert inside.wait(10)
    for thread in threads:
        thread.join()
    assert built == ["x"]


def test_the_root_follows_xdg_cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "astraflow"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG specification: ignore relative paths
    assert cache_root() == Path.home() / ".cache" / "astraflow"
    assert cache_root(Path("/elsewhere")) == Path("/elsewhere")


def test_only_the_cache_reads_its_variable():
    package = Path(__file__).parents[2] / "astraflow"
    readers = [path.name for path in package.rglob("*.py") if 'get("XDG_CACHE_HOME"' in path.read_text()]
    assert readers == ["cache.py"]


def test_a_cache_that_cant_be_written_is_a_config_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        built_folder("m", recipe="1", cache=tmp_path / "file", build=writer("x", []))


def test_a_failing_builder_process_is_quoted():
    with pytest.raises(ConfigError, match="No module named"):
        run_builder("astraflow.nothing")


def test_a_killed_builder_leaves_no_folder_and_no_lock(tmp_path):
    code = (
        "import os, sys, pathlib\n"
        "from astraflow.models.cache import built_folder\n"
        "def build(folder):\n"
        "    (folder / 'a.txt').write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
        "built_folder('m', recipe='1', cache=pathlib.Path(sys.argv[1]), build=build)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ, check=False)
    assert done.returncode == -9
    assert not (tmp_path / "m").exists()
    built: list[str] = []
    built_folder("m", recipe="1", cache=tmp_path, build=writer("x", built))
    assert built == ["x"]
