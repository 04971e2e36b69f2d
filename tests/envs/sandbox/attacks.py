"""Programs that try to get out of a sandbox, or to spoil the machine: each prints WON where it gets what it wants.

Beside each: how it may end.
"""

from astraflow.envs.sandbox import Limits

ENDS_ITSELF, IS_STOPPED = frozenset({"ok", "killed"}), frozenset({"timeout", "memory"})
ANYHOW = ENDS_ITSELF | IS_STOPPED | {"output"}


def limits_for(endings: frozenset[str]) -> Limits:
    """Little time only where time is what ends it: a machine may be busy."""
    wall_s = 0.6 if "timeout" in endings else 60.0
    return Limits(wall_s=wall_s, memory_mb=128, output_kb=256, disk_mb=8)


_LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"

ATTACKS: dict[str, tuple[str, frozenset[str]]] = {
    # reaching out
    "tcp": ("import socket; socket.create_connection(('127.0.0.1', 22), 1); print('WON')", ENDS_ITSELF),
    "a socket": ("import socket; socket.socket(); print('WON')", ENDS_ITSELF),
    "ipv6": ("import socket; socket.socket(socket.AF_INET6); print('WON')", ENDS_ITSELF),
    "dns": ("import socket; socket.gethostbyname('example.com'); print('WON')", ENDS_ITSELF),
    "netlink": ("import socket; socket.socket(16, 3, 0); print('WON')", ENDS_ITSELF),
    "raw packets": ("import socket; socket.socket(17, 3, 0); print('WON')", ENDS_ITSELF),
    "abstract unix": ("import socket; socket.socket(1).connect('\\0/org/freedesktop'); print('WON')", ENDS_ITSELF),
    # reading
    "shadow": ("print('WON', open('/etc/shadow').read())", ENDS_ITSELF),
    "symlink": ("import os; os.symlink('/etc/shadow', '/tmp/s'); print('WON', open('/tmp/s').read())", ENDS_ITSELF),
    "homes": ("import os; print('WON' * any(map(os.path.exists, ('/root', '/home', '/work', '/var'))))", ENDS_ITSELF),
    "environment": ("import os; print('WON' * ('ASTRAFLOW_SECRET' in os.environ))", ENDS_ITSELF),
    "parent's environment": ("print('WON' * (b'SECRET' in open('/proc/1/environ', 'rb').read()))", ENDS_ITSELF),
    "processes": ("import os; print('WON' * (len([p for p in os.listdir('/proc') if p.isdigit()]) > 2))", ENDS_ITSELF),
    "descriptors": ("import os; print('WON' * (len(os.listdir('/proc/self/fd')) > 4))", ENDS_ITSELF),
    "kernel memory": ("print('WON', open('/proc/kcore', 'rb').read(8))", ENDS_ITSELF),
    "disks": (
        "import os; print('WON' * any(n.startswith(('sd', 'vd', 'nvme')) for n in os.listdir('/dev')))",
        ENDS_ITSELF,
    ),
    # writing
    "write /usr": ("open('/usr/won', 'w'); print('WON')", ENDS_ITSELF),
    "write /": ("open('/won', 'w'); print('WON')", ENDS_ITSELF),
    "write /dev": ("open('/dev/won', 'w'); print('WON')", ENDS_ITSELF),
    "write sysctl": ("open('/proc/sys/kernel/hostname', 'w').write('won'); print('WON')", ENDS_ITSELF),
    "disk bomb": (
        "f = open('/tmp/a', 'wb')\nfor n in range(300): f.write(b'x' * 10**6); f.flush()\nprint('WON')",
        ENDS_ITSELF | {"output"},
    ),
    "many files": (
        "try:\n  for n in range(400): open(f'/tmp/{n}', 'wb').write(b'x' * 10**6)\n"
        "  print('WON')\nexcept OSError: pass",
        ENDS_ITSELF,
    ),
    "memfd bomb": (
        "import os; fd = os.memfd_create('a')\nfor n in range(300): os.write(fd, b'x' * 10**6)\nprint('WON')",
        ENDS_ITSELF | {"output"},
    ),
    # privileges
    "setuid": ("import os; os.setuid(0); print('WON')", ENDS_ITSELF),
    "su": ("import subprocess; print('WON' * (subprocess.run(['su', '-c', 'id']).returncode == 0))", ENDS_ITSELF),
    "ptrace": (_LIBC + "print('WON' * (libc.ptrace(0, 0, 0, 0) == 0))", ENDS_ITSELF),
    "user namespace": (_LIBC + "print('WON' * (libc.unshare(0x10000000) == 0))", ENDS_ITSELF),
    "clone": (_LIBC + "print('WON' * (libc.syscall(56, 0x10000011, 0, 0, 0, 0) > 0))", ENDS_ITSELF),
    "mount": (_LIBC + "print('WON' * (libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0))", ENDS_ITSELF),
    "chroot": ("import os; os.chroot('/tmp'); print('WON')", ENDS_ITSELF),
    "keys": (_LIBC + "print('WON' * (libc.syscall(250, 0, -3, 1) > 0))", ENDS_ITSELF),
    "io_uring": (_LIBC + "print('WON' * (libc.syscall(425, 8, 0) >= 0))", ENDS_ITSELF),
    "bpf": (_LIBC + "print('WON' * (libc.syscall(321, 0, 0, 0) >= 0 or ctypes.get_errno() != 1))", ENDS_ITSELF),
    "clock": ("import time; time.clock_settime(time.CLOCK_REALTIME, 0); print('WON')", ENDS_ITSELF),
    "terminal": ("import fcntl; fcntl.ioctl(0, 0x5412, b'x'); print('WON')", ENDS_ITSELF),
    # killing
    "kill all": ("import os; os.kill(-1, 9)", ANYHOW),
    "kill 1": ("import os; os.kill(1, 9)", ANYHOW),
    "abort": ("import os; os.abort()", ENDS_ITSELF),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", ENDS_ITSELF),
    # using up
    "loop": ("while True: pass", IS_STOPPED),
    "ignores signals": (
        "import signal\nfor n in range(1, 32):\n  try: signal.signal(n, signal.SIG_IGN)\n  except OSError: pass\n"
        "while True: pass",
        IS_STOPPED,
    ),
    "fork bomb": ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", IS_STOPPED),
    "thread bomb": (
        "import threading, time\ntry:\n  for n in range(200): threading.Thread(target=time.sleep, args=(9,)).start()\n"
        "  print('WON')\nexcept RuntimeError: __import__('os')._exit(0)",
        ENDS_ITSELF | IS_STOPPED,
    ),
    "memory": ("a = []\nwhile True: a.append(b'x' * 10**7)", ANYHOW),
    "memory of many": (
        "import os\nfor n in range(8):\n  if os.fork() == 0: break\na = []\nwhile True: a.append(b'x' * 10**6)",
        ANYHOW,
    ),
    "daemon": (
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(77)\n  os._exit(0)",
        ENDS_ITSELF | IS_STOPPED,
    ),
    "flood": ("while True: print('x' * 10000)", frozenset({"output"})),
    "flood of errors": ("import sys\nwhile True: sys.stderr.write('x' * 10000)", frozenset({"output"})),
    "recursion": (
        "import sys; sys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)",
        ENDS_ITSELF | {"memory", "timeout"},
    ),
    "regular expression": ("import re; re.match('(a+)+b', 'a' * 60)", IS_STOPPED),
}
