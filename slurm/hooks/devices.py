"""Withholds devices from a control group of version 2, by a small eBPF program (BPF_PROG_TYPE_CGROUP_DEVICE).

Version 2 has no file for devices. The kernel runs the program whenever a process of the group opens a device file. The
program disappears with the group.
"""

from __future__ import annotations

import ctypes
import os
import struct

ALLOWED = (3, 5, 7, 8, 9)
"""Minor numbers of major 1: null, zero, full, random and urandom."""

_SYSCALL = {"x86_64": 321, "aarch64": 280}  # bpf(2)
_LOAD, _ATTACH = 5, 8
_CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE = 15, 6
# Instructions of eBPF (linux/bpf.h): load a word through a pointer, and with a constant, jump if equal to one, or not,
# set, end.
_LDW, _AND, _JEQ, _JNE, _MOV, _EXIT = 0x61, 0x57, 0x15, 0x55, 0xB7, 0x95
_CHARACTER = 2  # the low half of bpf_cgroup_dev_ctx.access_type; major and minor follow it


def withhold_devices(group: str) -> None:
    """Leaves a control group no devices but ALLOWED.

    Raises:
        OSError: the kernel does not know such programs, or the group is not of version 2.
    """
    directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        program = _load(_program())
        try:
            _bpf(_ATTACH, struct.pack("=IIII", directory, program, _CGROUP_DEVICE, 0))
        finally:
            os.close(program)
    finally:
        os.close(directory)


def _program() -> bytes:
    """r1 points to access_type, major and minor; r0 is the answer, 1 for yes."""
    loads = [(_LDW, 2, 1, 0, 0), (_AND, 2, 0, 0, 0xFFFF), (_LDW, 3, 1, 4, 0), (_LDW, 4, 1, 8, 0)]
    tests = [(_JNE, 2, _CHARACTER, False), (_JNE, 3, 1, False), *((_JEQ, 4, minor, True) for minor in ALLOWED)]
    no = len(loads) + len(tests)
    yes = no + 2
    jumps = [
        (code, register, 0, (yes if is_yes else no) - index - 1, constant)
        for index, (code, register, constant, is_yes) in enumerate(tests, len(loads))
    ]
    ends = [(_MOV, 0, 0, 0, 0), (_EXIT, 0, 0, 0, 0), (_MOV, 0, 0, 0, 1), (_EXIT, 0, 0, 0, 0)]
    return b"".join(
        struct.pack("=BBhi", code, source << 4 | target, offset, constant)
        for code, target, source, offset, constant in [*loads, *jumps, *ends]
    )


def _load(instructions: bytes) -> int:
    """Hands a program to the kernel; returns its descriptor."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    count = len(instructions) // 8
    head = struct.pack("=IIQQ", _CGROUP_DEVICE_PROGRAM, count, ctypes.addressof(code), ctypes.addressof(licence))
    return _bpf(_LOAD, head + bytes(24))  # no log, no flags


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        raise OSError(0, f"bpf(2): its number on {os.uname().machine} is not known here")
    libc = ctypes.CDLL(None, use_errno=True)
    given = ctypes.create_string_buffer(attributes, len(attributes))
    answer: int = libc.syscall(number, command, given, len(attributes))
    if answer < 0:
        raise OSError(ctypes.get_errno(), f"bpf(2): {os.strerror(ctypes.get_errno())}")
    return answer
