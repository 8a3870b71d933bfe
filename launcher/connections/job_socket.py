"""A TCP socket that only the job's hosts can reach: the kernel drops the packets of all other hosts.

The filter needs no privileges, and accepted connections inherit it (socket(7), SO_ATTACH_FILTER). It does not keep out
other users on the job's own hosts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address

from launcher.connections.host_addresses import Range

_LOOPBACK: Range = ("127.0.0.0", "127.255.255.255")

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h; Python has no name for it
# Classic BPF (linux/filter.h): load a byte, load a word, shift right, jump if equal, at least, greater; return.
_LOAD_BYTE, _LOAD_WORD, _SHIFT, _IF_EQUAL, _IF_LEAST, _IF_GREATER, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x35, 0x25, 0x06
_IP_HEADER = -0x100000 & 0xFFFFFFFF  # SKF_NET_OFF
_SOURCE = _IP_HEADER + 12
_DROP, _KEEP = 0, 0xFFFFFFFF


def bound_socket(host: str, port: int) -> socket.socket:
    """A TCP socket bound to `host` if that is an address of this host; else bound to all addresses of this host."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((str(IPv4Address(host)), port))
    except ValueError:  # on this host the name may mean a loopback address, on other hosts another address
        bound.bind(("", port))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        bound.bind(("", port))
    return bound


def filter_refused() -> str:
    """Why the kernel does not allow this user such a filter; "" if it does."""
    with socket.socket() as bound:
        try:
            keep_out_others(bound, [])
        except OSError as error:
            return os.strerror(error.errno or 0)
    return ""


def keep_out_others(bound: socket.socket, hosts: Sequence[Range]) -> None:
    """Drop all packets to a socket, except those from these hosts and from this host's loopback network.

    Call this before the socket listens: existing connections stay.

    Raises:
        OSError: the kernel or a sandbox does not allow the filter.
    """
    program = [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_SHIFT, 0, 0, 4),
        (_IF_EQUAL, 1, 0, 4),
        (_RETURN, 0, 0, _DROP),  # the packet is not IPv4
        (_LOAD_WORD, 0, 0, _SOURCE),
    ]
    for first, last in (_LOOPBACK, *hosts):
        program += [
            (_IF_LEAST, 0, 2, int(IPv4Address(first))),
            (_IF_GREATER, 1, 0, int(IPv4Address(last))),
            (_RETURN, 0, 0, _KEEP),
        ]
    program.append((_RETURN, 0, 0, _DROP))
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_of = struct.pack("@HP", len(program), ctypes.addressof(buffer))  # struct sock_fprog
    bound.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_of)
