"""Collectives as training uses them: within the node, and between pairs of nodes of a Slurm allocation.

Every node is in two pairs, one with the node before it and one with the node after it. So the pairs show which node of
a slow pair is slow.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.base.environment import Variable
from lifecycle.health import allreduce as program
from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning
from lifecycle.instance import Expected
from slurm.command import CommandError
from slurm.hostlist import expand

_ENOUGH = 0.8  # part of the site's own figure
# Part of what the better pairs reach, if there is no such figure: shared networks differ by more than 0.8.
_ENOUGH_BESIDE_OTHERS = 0.5
_ENOUGH_OF_LINE_RATE = 0.5  # only a warning; docs/admin/health.md explains this limit
_RUN_S = 180.0  # most of it to load torch, which many nodes read at once from a shared file system
_AT_ONCE = 64  # number of sruns; each is a process here and a step for the controller
_FIRST_PORT, _PORTS = 21000, 8000

_EFA = re.compile(r"Selected provider is efa.*?(?:found (\d+) nics)?\)?\s*$", re.IGNORECASE | re.MULTILINE)
_COMPLAINT = re.compile(r"NET/\w+: dlerror=([^\n]+?)\s*$|NET/OFI ([^\n]*[Uu]nable to find[^\n]*?)\s*$", re.MULTILINE)
_NETWORK = re.compile(r"Using network ([^\n]+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One all-reduce.

    Attributes:
        ranks: processes that took part.
        backend: nccl or gloo.
        bus_gb_s: bus bandwidth as nccl-tests defines it, GB/s.
        network: the network between nodes, from NCCL's log; empty with gloo.
        interfaces: EFA interfaces that NCCL found; None if its log does not say.
        right: whether every element of the sum is correct.
        complaint: why NCCL does not use its plugin, such as a libfabric that is too old; empty if it logs none.
    """

    ranks: int
    backend: str
    bus_gb_s: float
    network: str = ""
    interfaces: int | None = None
    right: bool = True
    complaint: str = ""


@check("allreduce", Level.DEEP, limit_s=200.0, alone=True)
def allreduce(node: CheckedNode) -> Finding:
    """An all-reduce over the node's GPUs is right, and as fast as the instance type's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    measured = read_measured(_run(node, [*_program(node), "--node-rank", "0", "--port", str(port)]))
    return judge_node(measured, node.settings.allreduce_gb_s, node.expected)


def judge_node(measured: Measured, wanted: float | None, machine: Expected | None) -> Finding:
    """Judges an all-reduce within a node.

    Args:
        measured: the all-reduce.
        wanted: the site's own figure, GB/s; None if there is none.
        machine: the published figures of the machine's type; None if it is unknown.

    Raises:
        NotHere: there is one GPU.
        CannotObserve: the GPUs took no part.
    """
    told = f"{measured.bus_gb_s:.2f} GB/s, {measured.ranks} ranks, {measured.backend}"
    if not measured.right:
        return critical(
            f"a wrong sum, {told}", "the right sum", "silent data corruption: drain, run deep, replace the node"
        )
    if measured.ranks < 2:
        raise NotHere("one GPU has nobody to reduce with")
    if machine is not None and machine.gpus and measured.backend != "nccl":
        raise CannotObserve(f"{told}: this torch sees no GPU; `python:` in health.yaml names one that does")
    advice = "see nvlink_state, gpu_throttle, gpu_pcie"
    if wanted is not None:
        expected = f"at least {wanted * _ENOUGH:.0f} GB/s, {_ENOUGH:g} of the site's {wanted:g}"
        slow = measured.bus_gb_s < wanted * _ENOUGH
        return critical(told, expected, f"{advice}; then replace the node") if slow else ok(told, expected)
    if machine is None or machine.nvlink_gb_s is None:
        return ok(told)
    least, expected = _of_line_rate(machine.nvlink_gb_s / 2, machine)  # published as the sum of both directions
    return (
        warning(told, expected, f"{advice}, `holdfast node env`") if measured.bus_gb_s < least else ok(told, expected)
    )


def _has_pairs(node: CheckedNode) -> bool:
    try:
        return bool(_allocated(node.environment))
    except NotHere:
        return False


@check("allreduce_pairs", Level.DEEP, limit_s=600.0, alone=True, where=_has_pairs)
def allreduce_pairs(node: CheckedNode) -> Finding:
    """Between neighbours of this allocation an all-reduce is right, equally fast, and over EFA where there is EFA."""
    nodes = _allocated(node.environment)
    pairs = pairs_of(nodes)
    results: dict[tuple[str, str], Measured] = {}
    failed: dict[tuple[str, str], str] = {}
    for number, round_ in enumerate(rounds_of(pairs)):
        with ThreadPoolExecutor(min(len(round_), _AT_ONCE)) as pool:
            asked = {pair: pool.submit(_between, node, pair, number) for pair in round_}
        for pair, answer in asked.items():
            try:
                results[pair] = answer.result()
            except CannotObserve as error:
                failed[pair] = str(error)
    return judge_pairs(results, failed, node)


def pairs_of(nodes: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of each node and the next one; the last node is paired with the first."""
    ring = [(one, nodes[(place + 1) % len(nodes)]) for place, one in enumerate(nodes)]
    return ring if len(nodes) > 2 else ring[:1]


def rounds_of(pairs: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The pairs in rounds; no node is in two pairs of one round."""
    rounds: list[list[tuple[str, str]]] = []
    for pair in pairs:
        for round_ in rounds:
            if not any(set(pair) & set(other) for other in round_):
                round_.append(pair)
                break
        else:
            rounds.append([pair])
    return rounds


def judge_pairs(
    results: Mapping[tuple[str, str], Measured], failed: Mapping[tuple[str, str], str], node: CheckedNode
) -> Finding:
    """Judges the pairs: ok if none failed, none is much slower than the others or the site's figure, and none avoids
    EFA.

    To judge a single node (HOLDFAST_CHECKED_NODE): it is critical only if it is in every bad pair and no other node is,
    because its neighbours have done well without it.

    Raises:
        CannotObserve: no pair gave a result.
    """
    if not results:
        raise CannotObserve("; ".join(f"{'-'.join(pair)}: {why}" for pair, why in failed.items()))
    least, expected = _least([measured.bus_gb_s for measured in results.values()], node.settings.pair_allreduce_gb_s)
    bad = dict(failed)
    for pair, measured in results.items():
        if not measured.right:
            bad[pair] = "a wrong sum"
        elif node.expected and node.expected.efa and (wrong := _not_by_efa(measured, node.expected.efa)):
            bad[pair] = wrong
        elif measured.bus_gb_s < least:
            bad[pair] = f"{measured.bus_gb_s:.2f} GB/s"
    if not bad:
        return _judge_alike(results, least, expected, node)
    told = "; ".join(f"{'-'.join(pair)}: {why}" for pair, why in bad.items())
    suspects = _in_all(list(bad))
    checked = node.environment.get(Variable.CHECKED_NODE)
    if checked and suspects != [checked]:
        return warning(told, expected, f"{checked} alone does not explain it: run the check with other neighbours")
    here = checked or node.environment.get("SLURMD_NODENAME") or os.uname().nodename
    if suspects and here not in suspects:
        return warning(told, expected, f"drain {' or '.join(suspects)} and run the check there")
    return critical(told, expected, "run the check with other neighbours; then replace the node")


def _judge_alike(
    results: Mapping[tuple[str, str], Measured], least: float, expected: str, node: CheckedNode
) -> Finding:
    """Judges pairs that are as fast as each other or as the site's figure. All of them may still be slow for their
    type.

    That gives only a warning, because a line rate does not promise a speed of an all-reduce.
    """
    pair, slowest = min(results.items(), key=lambda result: result[1].bus_gb_s)
    by = slowest.network or slowest.backend
    told = f"{len(results)} pairs, slowest {'-'.join(pair)}: {slowest.bus_gb_s:.2f} GB/s {by}"
    machine = node.expected
    if node.settings.pair_allreduce_gb_s is not None or machine is None or machine.network_gbit_s is None:
        return ok(told, expected)
    lowest, published = _of_line_rate(machine.network_gbit_s / 8, machine)
    if slowest.bus_gb_s < lowest:
        return warning(told, published, "one placement group? `holdfast node env`; or set pair_allreduce_gb_s")
    return ok(told, published if lowest > least else expected)


def _least(speeds: Sequence[float], wanted: float | None) -> tuple[float, str]:
    """The least speed of a pair, GB/s, and its description.

    Among several pairs it is half of the upper quartile. The median would not do: with one bad node among three, two of
    the three pairs are bad. A single pair cannot be compared.
    """
    if wanted is not None:
        return wanted * _ENOUGH, f"at least {wanted * _ENOUGH:.2f} GB/s, {_ENOUGH:g} of the site's {wanted:g}"
    if len(speeds) < 2:
        return 0.0, "the right sum"
    usual = statistics.quantiles(speeds, n=4, method="inclusive")[2]
    least = usual * _ENOUGH_BESIDE_OTHERS
    return least, f"at least {least:.2f} GB/s, {_ENOUGH_BESIDE_OTHERS:g} of the better pairs' {usual:.2f}"


def _of_line_rate(line_gb_s: float, machine: Expected) -> tuple[float, str]:
    """The least speed in relation to a published bandwidth, GB/s, and its description."""
    least = line_gb_s * _ENOUGH_OF_LINE_RATE
    return least, f"at least {least:.2f} GB/s, {_ENOUGH_OF_LINE_RATE:g} of {machine.instance}'s line rate {line_gb_s:g}"


def read_measured(text: str) -> Measured:
    """Parses the output of the all-reduce program.

    Raises:
        CannotObserve: it printed no result.
    """
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        facts = json.loads(lines[-1])
        log = str(facts["nccl_log"])
        network = _NETWORK.findall(log)
        efa = _EFA.search(log)
        complaint = _COMPLAINT.search(log)
        measured = Measured(
            ranks=int(facts["ranks"]),
            backend=str(facts["backend"]),
            bus_gb_s=float(facts["bus_gb_s"]),
            network=network[-1] if network else "",
            interfaces=int(efa[1]) if efa and efa[1] else None,
            right=bool(facts["right"]),
            complaint=(complaint[1] or complaint[2]) if complaint else "",
        )
        if not math.isfinite(measured.bus_gb_s):
            raise ValueError
    except (IndexError, KeyError, TypeError, ValueError):
        raise CannotObserve(f"no result: {' '.join(text.split())[-200:] or 'it said nothing'}") from None
    return measured


def _not_by_efa(measured: Measured, wanted: int) -> str:
    """The reason if traffic did not use all of EFA; empty if it did."""
    if measured.backend != "nccl":
        return f"{measured.backend} instead of NCCL"
    if "libfabric" not in measured.network.lower():
        because = f": {measured.complaint}" if measured.complaint else ""
        return f"NCCL used {measured.network or 'no network that it names'} instead of EFA{because}"
    if measured.interfaces is not None and measured.interfaces != wanted:
        return f"NCCL found {measured.interfaces} of {wanted} EFA interfaces"
    return ""


def _in_all(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The nodes that are in every bad pair."""
    return sorted(set.intersection(*(set(pair) for pair in pairs)))


def _allocated(environment: Mapping[str, str]) -> list[str]:
    if int(environment.get("SLURM_STEP_NUM_NODES", "1")) > 1:
        raise NotHere("one of several checks in one Slurm step; pairs are measured once, from the batch script")
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NODELIST" not in environment:
        raise NotHere("not in a Slurm allocation of several nodes")
    nodes = expand(environment["SLURM_JOB_NODELIST"])
    if len(nodes) < 2:
        raise NotHere("this Slurm allocation has one node")
    return list(nodes)


def _between(node: CheckedNode, pair: tuple[str, str], round_: int) -> Measured:
    port = _FIRST_PORT + (int(node.environment["SLURM_JOB_ID"]) * 31 + round_) % _PORTS
    step = (
        "srun",
        "--overlap",
        "--mpi=none",
        "-N2",
        "-n2",
        "--ntasks-per-node=1",
        "-w",
        ",".join(pair),
        "--kill-on-bad-exit=1",
    )
    # srun numbers tasks in the order of Slurm's node list, so rank 0 is on the first of the pair in that order.
    first = min(pair, key=expand(node.environment["SLURM_JOB_NODELIST"]).index)
    return read_measured(_run(node, [*step, *_program(node), "--nodes", "2", "--host", first, "--port", str(port)]))


def _program(node: CheckedNode) -> tuple[str, ...]:
    """The command of the all-reduce, with this interpreter or with the site's, which need not have this package."""
    if node.settings.python is None:
        return (sys.executable, "-I", "-m", program.__name__)
    return (node.settings.python, "-I", program.__file__)


def _run(node: CheckedNode, argv: Sequence[str]) -> str:
    try:
        return node.command(*argv, timeout_s=_RUN_S).stdout
    except CommandError as error:
        said = " ".join((error.result.stderr.strip() or error.result.stdout.strip()).split())[-200:]
        raise CannotObserve(f"{error.reason}: {said or 'it said nothing'}") from None
