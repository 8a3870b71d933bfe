"""The rules on public failures. Every third entry of the corpus was held out while the rules were written."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher.diagnosis import Cause, Diagnosis, FaultClass, NodeEvidence, WorkerFailure, find_cause
from launcher.diagnosis.cause import find_slurms_cause
from launcher.diagnosis.rules import MEANINGS, RULES

CORPUS = Path(__file__).with_name("failures.txt")
ROOT = Path(__file__).parents[3]
LEAST = 0.95


@dataclass
class Rank:
    exit_code: int = 1
    lines: list[str] = field(default_factory=list)


@dataclass
class Entry:
    fault_class: FaultClass
    source: str
    ranks: list[Rank] = field(default_factory=lambda: [Rank()])
    kernel: list[str] = field(default_factory=list)
    job: list[str] = field(default_factory=list)
    oom_kills: int = 0

    def diagnosis(self) -> Diagnosis:
        if self.job:
            return find_slurms_cause(self.job) or self.cause().diagnosis
        return self.cause().diagnosis

    def cause(self) -> Cause:
        failures = [
            WorkerFailure(
                node="n1", rank=rank, time_s=1e9, exit_code=each.exit_code, last_words="\n".join(each.lines) or None
            )
            for rank, each in enumerate(self.ranks)
        ]
        node = NodeEvidence(kernel=tuple(self.kernel), oom_kills=self.oom_kills)
        return find_cause(failures, {"n1": node})


def read() -> list[Entry]:
    entries: list[Entry] = []
    for line in CORPUS.read_text().splitlines():
        if line.startswith("= "):
            _, name, source = line.split(" ", 2)
            entries.append(Entry(FaultClass(name), source))
        elif line.startswith("> "):
            what, _, value = line.removeprefix("> ").partition(" ")
            _take(entries[-1], what, value)
        elif line and entries:
            entries[-1].ranks[-1].lines.append(line)
    return entries


def _take(entry: Entry, what: str, value: str) -> None:
    if what == "rank":
        entry.ranks.append(Rank())
    elif what == "exit":
        entry.ranks[-1].exit_code = int(value)
    elif what == "oom_kill":
        entry.oom_kills = int(value)
    else:
        {"kernel": entry.kernel, "job": entry.job}[what].append(value)


ENTRIES = read()
HELD_OUT = ENTRIES[2::3]


def wrong(entries: list[Entry]) -> list[str]:
    return [
        f"{entry.source}: {found.fault_class}, not {entry.fault_class} ({found.proof!r})"
        for entry in entries
        if (found := entry.diagnosis()).fault_class is not entry.fault_class
    ]


@pytest.mark.parametrize("entries", [HELD_OUT, ENTRIES], ids=["held out", "all"])
def test_nearly_all_public_failures_get_their_class(entries: list[Entry]) -> None:
    found = wrong(entries)
    assert len(found) <= (1 - LEAST) * len(entries), "\n".join(found)


def test_the_corpus_is_large_varied_and_names_each_source_once() -> None:
    assert len(ENTRIES) >= 200
    assert max(Counter(entry.source for entry in ENTRIES).values()) == 1
    assert all("#" in entry.source and "/" in entry.source for entry in ENTRIES)
    assert len({entry.fault_class for entry in ENTRIES}) >= 18


def test_the_whole_corpus_is_read_in_less_than_a_second() -> None:
    begun = time.process_time()
    for entry in ENTRIES:
        entry.diagnosis()
    assert time.process_time() - begun < 1.0  # promised in docs/guide/why.md


def test_each_proof_is_a_line_of_the_evidence() -> None:
    for entry in ENTRIES:
        found = entry.diagnosis()
        if found.fault_class not in (FaultClass.KILLED, FaultClass.HOST_MEMORY, FaultClass.CRASH):
            said = [*entry.kernel, *entry.job, *(line for rank in entry.ranks for line in rank.lines)]
            assert any(found.proof in line for line in said), entry.source


def test_each_rule_has_one_sentence_of_advice_and_a_source() -> None:
    for rule in RULES:
        assert rule.advice and not rule.advice.endswith(".") and "\n" not in rule.advice
        assert "#" in rule.source or "." in rule.source
    assert set(MEANINGS) == set(FaultClass)


def test_the_guide_lists_each_class_with_its_meaning() -> None:
    guide = (ROOT / "docs/guide/why.md").read_text()
    for fault_class, meaning in MEANINGS.items():
        assert f"| `{fault_class}` | {meaning} |" in guide
    assert f"{len(ENTRIES)} public failure reports" in guide
