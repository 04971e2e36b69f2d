"""Programs in sandboxes: what comes of them, and what they can't do."""

import os
import threading
from pathlib import Path

import pytest

from astraflow.envs.sandbox import Limits, Sandbox, Session, Status, isolation, probe, seccomp
from astraflow.errors import ConfigError, EnvError
from tests.envs.sandbox.attacks import ATTACKS, limits_for

SMALL = Limits(wall_s=0.6, memory_mb=128, output_kb=256, disk_mb=8)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(limits=Limits(wall_s=60))


def processes_of_sandboxes() -> list[int]:
    """Process ids of users that only sandboxes have, and that are alive."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            state = (each / "stat").read_text().rpartition(")")[2].split()[0]
            owner = each.stat().st_uid
        except OSError:
            continue
        if isolation.FIRST_USER <= owner < isolation.FIRST_USER + isolation.USERS and state != "Z":
            found.append(int(each.name))
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_contained(sandbox: Sandbox, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_SECRET", "x")
    program, endings = ATTACKS[name]
    result = sandbox.run(program, limits=limits_for(endings))
    assert result.status in endings, result
    assert b"WON" not in result.stdout, result
    assert len(result.stdout) + len(result.stderr) <= 2 * SMALL.output_kb << 10
    assert not any(Path(path).exists() for path in ("/won", "/usr/won", "/dev/won"))


def test_a_sandbox_works_while_another_is_bombed(sandbox: Sandbox) -> None:
    bombs = [threading.Thread(target=sandbox.run_now, args=(ATTACKS["fork bomb"][0],), kwargs={"limits": SMALL})]
    for bomb in bombs:
        bomb.start()
    assert [sandbox.run_now("print(1)").text for _ in range(3)] == ["1\n"] * 3
    for bomb in bombs:
        bomb.join()


def test_nothing_is_left_of_a_program_that_was_stopped(sandbox: Sandbox) -> None:
    user_before = set(processes_of_sandboxes())
    sandbox.run(ATTACKS["daemon"][0], limits=SMALL)
    sandbox.run(ATTACKS["ignores signals"][0], limits=SMALL)
    assert [pid for pid in set(processes_of_sandboxes()) - user_before if _is_mine(pid)] == []


def _is_mine(pid: int) -> bool:
    """Below this process; other tests of the machine have sandboxes too."""
    try:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        pass
    return False


def test_a_program_gets_files_and_input_and_gives_output(sandbox: Sandbox) -> None:
    program = "import sys; print(open('a.txt').read() + sys.stdin.read()); sys.exit(3)"
    result = sandbox.run(program, files={"a.txt": b"one "}, stdin=b"two")
    assert (result.status, result.exit, result.text, result.well) == (Status.OK, 3, "one two\n", False)
    assert sandbox.run(["bash", "-c", "echo $((1 + 1)); id -u"]).text == f"2\n{isolation.NOBODY}\n"


def test_what_a_program_does_is_told_apart(sandbox: Sandbox) -> None:
    assert sandbox.run("import os; os.kill(os.getpid(), 11)").exit == 128 + 11
    assert sandbox.run("'\ud800'").exit == 1
    flooded = sandbox.run(ATTACKS["flood"][0], limits=Limits(wall_s=60, output_kb=256))
    assert (flooded.status, len(flooded.stdout)) == (Status.OUTPUT, 256 << 10)
    assert sandbox.run("while True: pass", limits=Limits(wall_s=60, cpu_s=1)).status is Status.TIMEOUT


def test_what_cannot_be_made_is_never_the_programs_fault(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = isolation.Tools(sandbox.tools.bwrap, sandbox.tools.prlimit, sandbox.tools.python, "/nowhere/at/all")
    monkeypatch.setattr(sandbox, "tools", broken)
    with pytest.raises(EnvError, match=r"no sandbox could be made.*nowhere"):
        sandbox.run("print(1)")
    monkeypatch.setattr(probe, "_probed", set())
    with pytest.raises(ConfigError, match=r"allows no sandbox: user namespaces may be switched off.*unsafe = true"):
        probe.make_sure(sandbox)


def test_isolation_that_leaks_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_probed", set())
    monkeypatch.setattr(seccomp, "program", lambda: b"")
    with pytest.raises(ConfigError, match=r"opens network sockets.*has no filter of system calls"):
        Sandbox()


def test_limits_alone_need_a_word_and_still_limit() -> None:
    unsafe = Sandbox(unsafe=True, limits=Limits(wall_s=60))
    assert (
        unsafe.run("import os, sys; print(sys.stdin.read(), open('a').read())", stdin=b"1", files={"a": b"2"}).text
        == "1 2\n"
    )
    assert unsafe.run("while True: pass", limits=SMALL).status is Status.TIMEOUT
    assert unsafe.run("import os; os.abort()").status is Status.KILLED


def test_a_bubblewrap_that_only_root_can_read_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    isolation.find_tools.cache_clear()
    monkeypatch.setattr(probe, "_probed", set())
    seen = isolation._open_to_all
    monkeypatch.setattr(isolation, "_open_to_all", lambda path: path.name != "bwrap" and seen(path))
    copied = Sandbox(limits=Limits(wall_s=60))
    assert "astraflow-bwrap-" in copied.tools.bwrap
    assert copied.run("print(1)").text == "1\n"
    isolation.find_tools.cache_clear()


@pytest.mark.parametrize("wrong", [{"wall_s": 0}, {"memory_mb": -1}, {"processes": 0}])
def test_bounds_that_bound_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected more than 0"):
        Limits(**wrong)  # type: ignore[arg-type]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    isolation.find_tools.cache_clear()
    monkeypatch.setattr(isolation.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="prlimit"):
        Sandbox()
    monkeypatch.setattr(isolation.shutil, "which", lambda name: "/usr/bin/prlimit" if name == "prlimit" else None)
    with pytest.raises(ConfigError, match=r"needs bubblewrap; run: pip install 'astraflow-rl\[code\]'"):
        Sandbox()
    isolation.find_tools.cache_clear()
    with pytest.raises(ConfigError, match="python /nope"):
        isolation.find_tools(python="/nope", unsafe=True)
    with pytest.raises(ConfigError, match="slots"):
        Sandbox(slots=-1)


def test_the_filter_is_known_for_two_kinds_of_machines_and_empty_for_others() -> None:
    assert len(seccomp.program("x86_64")) % 8 == 0
    assert seccomp.program("aarch64") != seccomp.program("x86_64")
    assert seccomp.program("riscv64") == b""


def test_an_interpreter_remembers(sandbox: Sandbox) -> None:
    session = Session(sandbox)
    said = [session.run(text).text for text in ("x = 20", "x + 1", "print('a'); x", "1 / 0", "x")]
    assert said[:3] == ["", "21\n", "a\n20\n"]
    assert said[3].endswith("ZeroDivisionError: division by zero\n")
    assert said[4] == "20\n"
    assert (session.run("raise SystemExit(4)").exit, session.run("input()").exit, session.run("(").exit) == (4, 1, 1)
    assert session.run("print('y' * 5_000_000)").status is Status.OUTPUT
    assert session.run("x").text == "20\n"
    session.close()
    session.close()
    assert session.run("x").text == "this session is closed"


def test_a_shell_remembers_and_ends_with_an_input_that_does_not(sandbox: Sandbox) -> None:
    session = Session(sandbox, "bash", limits=Limits(wall_s=60))
    assert session.run("cd /usr; A=5").well
    assert session.run("pwd; echo $A; false").text == "/usr\n5\n"
    assert session.run("cat; exec 9<&-").status in (Status.OK, Status.KILLED)
    slow = Session(sandbox, "bash", limits=Limits(wall_s=0.3))
    assert slow.run("sleep 60").status is Status.TIMEOUT
    assert slow.run("ls").text == "this session has ended: an input took too long"
    for each in (session, slow):
        each.close()
    gone = Session(sandbox, "python")
    assert gone.run("import os; os._exit(0)").status is Status.KILLED
    assert gone.run("1").text == "this session has ended: its program is gone"


def test_the_example_of_the_page_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs/sandbox.md").read_text(encoding="utf-8")
    exec(page.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out == "ok 0 hello\n\n/usr\n\n"


def test_sessions_are_apart(sandbox: Sandbox) -> None:
    one, other = Session(sandbox, "bash"), Session(sandbox, "bash")
    one.run("echo secret > /tmp/a")
    assert "No such file" in other.run("cat /tmp/a").text
    one.close()
    other.close()
    with pytest.raises(ConfigError, match="did you mean 'bash'"):
        Session(sandbox, "bsh")
