"""Messages through libfabric and back to this node, by its own fi_pingpong: over TCP, and over every EFA interface."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok
from lifecycle.health.pci import efa_interfaces
from slurm.command import CommandError

_BIN = "/opt/amazon/efa/bin"
_SIZE_BYTES = 65536
_ROUNDS = 100
_DOMAIN = re.compile(r"^\s*domain:\s*(\S+)", re.MULTILINE)
_LAST = re.compile(r"^\s*\S+\s+\d+\s+=?\d+\s+\S+\s+\S+\s+([\d.]+)\s+([\d.]+)\s", re.MULTILINE)
_RETRY_S = 0.1
_TCP_PATIENCE_S = 8.0
_EFA_PATIENCE_S = 3.5
_ENOUGH_FAILED = 4  # each takes twice the time limit, and a p5 has 32 interfaces


class _Unread(CannotObserve):
    """Both ends succeeded, but their output is not understood. That does not count against the interface."""


@check("tcp_loopback", Level.QUICK, limit_s=20.0)
def tcp_loopback(node: CheckedNode) -> Finding:
    """libfabric carries messages over TCP to this node itself."""
    speed = _pingpong(node, ("-p", "tcp", "-e", "msg"), {}, _TCP_PATIENCE_S)
    return ok(f"{speed} MB/s at {_SIZE_BYTES >> 10} KiB", "messages come back")


@check("efa_loopback", Level.QUICK, limit_s=50.0)
def efa_loopback(node: CheckedNode) -> Finding:
    """Every EFA interface carries messages to this node itself, through the network card."""
    if not efa_interfaces(node):
        raise NotHere("no EFA interface")
    found = _DOMAIN.findall(node.tool(_program(node, "fi_info"), "-p", "efa", "-t", "FI_EP_RDM", timeout_s=10.0).stdout)
    domains = sorted(set(found))
    if not domains:
        raise CannotObserve("fi_info names no EFA domain")
    failed: dict[str, str] = {}
    tried = 0
    for domain in domains:
        if len(failed) == _ENOUGH_FAILED:
            break
        tried += 1
        try:
            # Without this libfabric answers from shared memory, and the card is not tested.
            through_the_card = {"FI_EFA_ENABLE_SHM_TRANSFER": "0"}
            _pingpong(node, ("-p", "efa", "-e", "rdm", "-d", domain), through_the_card, _EFA_PATIENCE_S)
        except _Unread:
            raise
        except CannotObserve as error:
            failed[domain] = str(error)
    measured = f"{tried - len(failed)} of {tried} domains" + (" that were tried" if tried < len(domains) else "")
    if not failed:
        return ok(measured, "all")
    if len(failed) == tried:
        advice = "allow all traffic within the security group; reinstall EFA"
    else:
        advice = "reboot; then replace the node"
    return critical(f"{measured}; {' '.join(failed)} failed: {next(iter(failed.values()))}", "all", advice)


def _pingpong(node: CheckedNode, options: tuple[str, ...], extra: dict[str, str], patience_s: float) -> str:
    """MB/s, as fi_pingpong says it.

    Args:
        node: where it runs.
        options: of both ends.
        extra: environment of both ends.
        patience_s: how long the server may take to listen, and the messages to come back.

    Raises:
        NotHere: it is not installed.
        CannotObserve: it failed, or did not answer in time.
    """
    program, port = _program(node, "fi_pingpong"), str(_free_port())
    path = f"{_BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    common = (*options, "-I", str(_ROUNDS), "-S", str(_SIZE_BYTES))
    env = {"PATH": path, **extra}
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(node.tool, program, *common, "-B", port, timeout_s=2 * patience_s, env=env)
        client = (program, *common, "-P", port, "127.0.0.1")
        end_s = time.monotonic() + patience_s
        while True:  # the server needs a moment until it listens
            try:
                said = node.command(*client, timeout_s=patience_s, env=env).stdout
                break
            except CommandError as error:
                if server.done() or time.monotonic() > end_s:
                    server.result()
                    raise CannotObserve(str(error)) from None
                node.wait(_RETRY_S)
        server.result()
    rows = _LAST.findall(said)
    if not rows:
        raise _Unread(f"fi_pingpong said: {' '.join(said.split())[:120]}")
    return str(rows[-1][0])


def _program(node: CheckedNode, name: str) -> str:
    """The EFA installer's tool where it is installed, else the one on PATH."""
    own = Path(_BIN, name)
    return str(own) if node.path(str(own)).exists() else name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
