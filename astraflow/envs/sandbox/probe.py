"""Attacks on a sandbox of this machine before it is used: what doesn't hold is refused, in words.

Many containers allow only part of what isolates, and a sandbox that is weaker than it looks is worse than none. One
program tries what hostile programs try, in some 30 ms; once per process, since nothing changes meanwhile.
"""

import json
from typing import TYPE_CHECKING

from astraflow.envs.sandbox.job import Limits
from astraflow.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from astraflow.envs.sandbox.sandbox import Sandbox

_LIMITS = Limits(wall_s=20.0, processes=8)
_probed: set[str] = set()  # interpreters whose sandboxes hold

_ATTACKS = """
import ctypes, json, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)

def works(attack):
    # in a process of its own, which may be the worse for it
    child = os.fork()
    if not child:
        try:
            os._exit(bool(attack()))
        except BaseException:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 1 << 8

def connects():
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
    return set(names) - {"lo"}

def resists(number, *args):
    return libc.syscall(number, *args) >= 0

def forks():
    children, most = [], 12
    try:
        for _ in range(most):
            child = os.fork()
            if not child:
                signal.pause()
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return len(children) == most

def writes(path):
    open(path, "w").close()
    return True

won = {
    "opens network sockets": works(lambda: socket.socket(socket.AF_INET)),
    "opens netlink sockets": works(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
    "reaches this machine's network": works(connects),
    "has capabilities": int(status["CapEff"], 16) != 0,
    "can get privileges": status["NoNewPrivs"].strip() != "1",
    "has no filter of system calls": status["Seccomp"].strip() != "2",
    "sees this machine's files": any(os.path.exists(path) for path in ("/etc/passwd", "/root", "/home", "/var")),
    "sees other processes": len([name for name in os.listdir("/proc") if name.isdigit()]) > 3,
    "writes to /usr": works(lambda: writes("/usr/astraflow-probe")),
    "writes to /": works(lambda: writes("/astraflow-probe")),
    "sees the environment": "ASTRAFLOW_PROBE" in os.environ or len(os.environ) > 8,
    "makes namespaces": works(lambda: libc.unshare(0x10000000) == 0),
    "traces processes": works(lambda: libc.ptrace(0, 0, 0, 0) == 0),
    "uses io_uring": works(lambda: resists(425, 8, 0)),
    "has processes without bound": forks(),
}
print(json.dumps([name for name, did in won.items() if did]))
"""


def make_sure(sandbox: "Sandbox") -> None:
    """Raises ConfigError if no sandbox can be made here, or one that leaks."""
    key = f"{sandbox.tools.bwrap} {sandbox.tools.python}"
    if key in _probed:
        return
    try:
        result = sandbox.run_now(_ATTACKS, limits=_LIMITS)
    except EnvError as exc:
        raise ConfigError(
            f"{exc}. This machine allows no sandbox: user namespaces may be switched off (sysctl "
            "user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; "
            "in a container: its seccomp profile). Where whatever runs here may be lost, unsafe = true runs programs "
            "with limits only"
        ) from exc
    try:
        leaks = json.loads(result.stdout)
    except ValueError:
        words = result.stderr.decode(errors="replace").strip()[-300:]
        raise ConfigError(
            f"the sandbox's self-test ended with {result.status}, exit code {result.exit}: {words}"
        ) from None
    if leaks:
        raise ConfigError(
            f"a sandbox on this machine doesn't hold: a program in it {', '.join(leaks)}; use another machine or a "
            "newer bubblewrap and kernel, or unsafe = true where whatever runs here may be lost"
        )
    _probed.add(key)
