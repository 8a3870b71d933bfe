"""Expands and compresses Slurm's hostlists, for example `n[1-3,07],login`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

from slurm.errors import SlurmError

MAX_HOSTS = 65536  # Slurm's own limit for one range (MAX_RANGE); a longer list is a mistake or an attack
_DIGITS = r"[0-9]{1,18}"
_PIECE = re.compile(r"\[(?P<ranges>[^\[\]]*)\]|(?P<name>[^\[\],\s]+)|(?P<comma>,)")
_RANGE = re.compile(rf"({_DIGITS})(?:-({_DIGITS}))?")
_NUMBERED = re.compile(rf"(.*?)({_DIGITS})")


class HostlistError(SlurmError):
    """A text is not a hostlist, or has too many hosts.

    Attributes:
        text: the text.
    """

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        super().__init__(f"hostlist {shown!r}: {problem}; expected names such as n1,n[2-4,07]")


def expand(text: str) -> tuple[str, ...]:
    """The host names of a hostlist, in its order.

    Args:
        text: for example `login,rack[1-2]n[08-10]`; empty or `(null)` for no host.

    Raises:
        HostlistError: it is malformed, or has more than 65536 hosts.
    """
    if text in ("", "(null)"):
        return ()
    hosts: list[str] = []
    for word in _words(text):
        if len(hosts) + math.prod(len(choices) for choices in word) > MAX_HOSTS:
            raise HostlistError(text, f"stands for more than {MAX_HOSTS} hosts")
        hosts.extend("".join(choice) for choice in itertools.product(*word))
    return tuple(hosts)


def compress(hosts: Iterable[str]) -> str:
    """The hostlist of host names, in the same order.

    Raises:
        HostlistError: a name is empty or holds a comma, bracket or space.
    """
    groups: list[tuple[str, list[list[str]]]] = []  # prefix, runs of [first, last] number; no runs: the whole name
    for host in hosts:
        piece = _PIECE.fullmatch(host)
        if piece is None or piece["name"] is None:
            raise HostlistError(host, "not a host name")
        numbered = _NUMBERED.fullmatch(host)
        if numbered is None:
            groups.append((host, []))
            continue
        prefix, number = numbered.groups()
        if not groups or groups[-1][0] != prefix or not groups[-1][1]:
            groups.append((prefix, [[number, number]]))
            continue
        runs = groups[-1][1]
        first, last = runs[-1]
        if number == _padded(int(last) + 1, first):
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(prefix + _brackets(runs) for prefix, runs in groups)


def _words(text: str) -> list[list[Sequence[str]]]:
    """Splits at the commas outside brackets. A word is a list of alternatives: one for text, several for a bracket."""
    words: list[list[Sequence[str]]] = [[]]
    position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            raise HostlistError(text, f"unexpected {text[position]!r} at character {position + 1}")
        position = piece.end()
        if piece["comma"]:
            words.append([])
        elif piece["name"]:
            words[-1].append([piece["name"]])
        else:
            words[-1].append(_numbers(text, piece["ranges"]))
    if not all(words):
        raise HostlistError(text, "a name is missing beside a comma")
    return words


def _numbers(text: str, ranges: str) -> list[str]:
    """The numbers in a bracket, padded as their range's first one is."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise HostlistError(text, f"{part!r} is not a number or a range")
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1:
            raise HostlistError(text, f"the range {part!r} runs backwards")
        if len(numbers) + count > MAX_HOSTS:
            raise HostlistError(text, f"stands for more than {MAX_HOSTS} hosts")
        numbers.extend(_padded(number, first) for number in range(int(first), int(last) + 1))
    return numbers


def _padded(number: int, like: str) -> str:
    return str(number).zfill(len(like))


def _brackets(runs: list[list[str]]) -> str:
    if not runs:
        return ""
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        return runs[0][0]
    return "[" + ",".join(first if first == last else f"{first}-{last}" for first, last in runs) + "]"
