"""The names in a node's memory directory: built and read here alone.

A shard or parity NAME is two files: `NAME.data`, its bytes, and `NAME.json`, its record. A NAME is a stem and a slot:

own-<local rank>-<slot>         the shard of a rank of this node
copy-<number>-<number>-<slot>   a shard that another node has or had; the numbers keep such stems apart
parity-<slot>                   this node's parity

`fetch-<rank>.data` has bytes for one load, and no record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

OWN, COPY, PARITY = KINDS = ("own", "copy", "parity")
FETCHED = "fetch-*"  # a pattern
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_NAME = re.compile(f"(own-{_NUMBER}|copy-{_NUMBER}-{_NUMBER}|parity)-({_NUMBER})")


class StoredName(NamedTuple):
    """The name of a shard or parity."""

    stem: str
    slot: int

    def __str__(self) -> str:
        return f"{self.stem}-{self.slot}"

    @property
    def kind(self) -> str:
        return kind_of(self.stem)


def kind_of(name: str) -> str:
    """One of KINDS for a NAME, its stem or its files."""
    return name.partition("-")[0]


def own_stem(local_rank: int) -> str:
    return f"{OWN}-{local_rank}"


def copy_stem(first: int, second: int) -> str:
    return f"{COPY}-{first}-{second}"


def parse_name(name: str) -> StoredName | None:
    """The parts of a NAME; None for any other text."""
    match = _NAME.fullmatch(name)
    return StoredName(match[1], int(match[2])) if match else None


def names_of(files: Iterable[str], *kinds: str, suffix: str = ".json") -> list[StoredName]:
    """The NAMEs of some kinds (none given: all) among file names that end with the suffix, in order."""
    found = (parse_name(file.removesuffix(suffix)) for file in files if file.endswith(suffix))
    return sorted(name for name in found if name and name.kind in (kinds or KINDS))


def data_file(directory: Path, name: StoredName | str) -> Path:
    return directory / f"{name}.data"


def fetched_name(rank: int) -> str:
    return f"fetch-{rank}"
