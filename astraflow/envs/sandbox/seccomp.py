"""The filter of system calls that every sandboxed program has, as the bytes that bwrap hands to the kernel. Pure.

Everything is allowed but what reaches beyond a sandbox: the network (any socket that isn't a Unix one), other
processes' memory, mounts and namespaces, keys, kernel modules, clocks, and interfaces that bugs were often found in
(io_uring, bpf, userfaultfd, perf). `clone3` is answered with ENOSYS, since its flags are out of a filter's sight; libc
then uses `clone`, whose flags are looked at.
Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux.
"""

import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; an argument has 8 bytes, low half first
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* but the one of time, which `clone` can't make
_X32 = 0x40000000  # calls of the x32 ABI, which has every number a second time
_TERMINAL_INJECTIONS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

_SINCE_5 = {425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 447}  # alike on every machine

# fmt: off
_REFUSED = {
    "x86_64": _SINCE_5 | {
        101, 103, 134, 135, 153, 154, 155, 159, 161, 163, 164, 165, 166, 167, 168, 169, 172, 173, 175, 176, 179, 180,
        212, 227, 237, 246, 248, 249, 250, 256, 272, 279, 298, 300, 303, 304, 305, 308, 310, 311, 312, 313, 320, 321,
        323,
    },
    "aarch64": _SINCE_5 | {
        39, 40, 41, 51, 60, 89, 92, 97, 104, 105, 106, 112, 116, 117, 142, 170, 171, 217, 218, 219, 224, 225, 235, 238,
        239, 241, 262, 264, 265, 266, 268, 270, 271, 272, 273, 280, 282, 294,
    },
}
# fmt: on
_CALLS = {  # clone, clone3, socket, ioctl
    "x86_64": (56, 435, 41, 16),
    "aarch64": (220, 435, 198, 29),
}
_ARCHS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def program(machine: str = "") -> bytes:
    """The filter for this machine, or the named one; empty where none is known."""
    machine = machine or platform.machine()
    if machine not in _ARCHS:
        return b""
    clone, clone3, socket, ioctl = _CALLS[machine]
    refuse = _ERRNO | errno.EPERM
    steps = [
        _step(_LOAD, _ARCH),
        _step(_EQUAL, _ARCHS[machine], 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, _KILL),
    ]
    for number in sorted(_REFUSED[machine]):
        steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, refuse)]
    steps += [_step(_EQUAL, clone3, 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    steps += [
        _step(_EQUAL, clone, 0, 4),
        _step(_LOAD, _ARGUMENT),
        _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        _step(_RETURN, refuse),
        _step(_RETURN, _ALLOW),
    ]
    steps += [
        _step(_EQUAL, socket, 0, 4),
        _step(_LOAD, _ARGUMENT),
        _step(_EQUAL, 1, 1, 0),  # AF_UNIX
        _step(_RETURN, _ERRNO | errno.EACCES),
        _step(_RETURN, _ALLOW),
    ]
    steps += [
        _step(_EQUAL, ioctl, 0, 5),
        _step(_LOAD, _ARGUMENT + 8),
        _step(_EQUAL, _TERMINAL_INJECTIONS[0], 1, 0),
        _step(_EQUAL, _TERMINAL_INJECTIONS[1], 0, 1),
        _step(_RETURN, refuse),
        _step(_RETURN, _ALLOW),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
