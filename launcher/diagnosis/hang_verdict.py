"""Finds the rank for which the others wait, from the facts of all ranks. Pure.

Each rank that waits in a collective waits for the members of its process group that have not entered it. Following this
from rank to rank ends at a rank that waits for nobody: it is at fault, and its place says why. If it ends in a circle,
or if all members are there with different operations, the fewest are at fault. Of as many, those are that did
something that they had not done before. What NCCL's RAS says of a process is one more proof; it decides only if nothing
else does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from launcher.diagnosis.hang_facts import Entered, RankFacts, RankPlace, ranks_of, ranks_text
from launcher.diagnosis.ras import RasProcess

_BROKEN = (
    RankPlace.STOPPED,
    RankPlace.DISK,
    RankPlace.SILENT,
    RankPlace.GIL,
)  # not in Python code, whatever the others do
_SHOWN_RANKS = 4


@dataclass(frozen=True, kw_only=True)
class HangVerdict:
    """The rank at fault, if one stands out.

    Attributes:
        guilty: the facts of the ranks at fault, the first one first; empty if none stands out.
        text: one sentence with the rank, its node and the reason.
        proof: the collective in which others wait; None if it is not known.
    """

    guilty: tuple[RankFacts, ...]
    text: str
    proof: Entered | None = None


def judge(facts: Iterable[RankFacts], nodes_unheard: Sequence[str] = (), ras: Sequence[RasProcess] = ()) -> HangVerdict:
    """Finds the rank for which the others wait.

    Args:
        facts: of all ranks whose nodes answered.
        nodes_unheard: nodes whose runners did not answer.
        ras: the processes that NCCL's RAS finds missing or behind.
    """
    told = sorted(facts, key=lambda each: each.rank)
    ranks = [each for each in told if each.runs]
    found = _broken(ranks) or _by_collectives(told) or _by_stacks(ranks)
    found = found or _pick([each for each in told if not each.runs], told, RankPlace.GONE)
    found = _with_ras(found, told, ras)
    if nodes_unheard:
        unheard = f"no stacks came from {','.join(nodes_unheard)}"
        if found is None:
            return HangVerdict(guilty=(), text=unheard)
        return HangVerdict(guilty=found.guilty, text=f"{found.text}; {unheard}", proof=found.proof)
    return found or HangVerdict(guilty=(), text="no single rank stands out")


def _broken(ranks: Sequence[RankFacts]) -> HangVerdict | None:
    for place in _BROKEN:
        found = _pick([each for each in ranks if each.place is place], ranks, place)
        if found:
            return found
    return None


# By what each rank has entered.


def _by_collectives(ranks: Sequence[RankFacts]) -> HangVerdict | None:
    """Follows who waits for whom; None if no rank tells a collective in which it waits."""
    known = {each.rank: each for each in ranks}
    waits = {each.rank: each.last for each in ranks if _is_waiting(each)}
    if not waits:
        return None
    missing = {rank: _missing(waited, known) for rank, waited in waits.items() if waited is not None}
    ends = {rank: waited for rank, waited in waits.items() if waited is not None and missing[rank]}
    first: dict[int, list[int]] = defaultdict(list)  # those who wait for nobody, and who waits for each of them
    for rank in ends:
        for each in missing[rank]:
            if each not in ends:
                first[each].append(rank)
    if disagreeing := _disagreeing(waits, known):
        return disagreeing
    return _absent(first, ends, known) if first else _circle(ends, missing, known)


def _is_waiting(each: RankFacts) -> bool:
    return each.place is RankPlace.COLLECTIVE and each.last is not None and not each.last.is_over


def _missing(waited: Entered, known: Mapping[int, RankFacts]) -> list[int]:
    """The members of its group that have not entered a collective."""
    return [
        rank
        for rank in ranks_of(waited.ranks)
        if rank in known and not any(_same_group(e, waited) and e.seq >= waited.seq for e in known[rank].entered)
    ]


def _same_group(one: Entered, other: Entered) -> bool:
    return (one.group, one.ranks) == (other.group, other.ranks)


def _absent(
    first: Mapping[int, Sequence[int]], ends: Mapping[int, Entered], known: Mapping[int, RankFacts]
) -> HangVerdict | None:
    """Ranks that are in no collective, and that others wait for: those with the fewest steps, and then most awaited."""
    if len(first) > 1 and len(first) == len(known) - 1 and (alone := _ahead(first, ends, known)):
        return alone
    least = min((known[rank].boundary or 0 for rank in first), default=0)
    behind = [rank for rank in first if (known[rank].boundary or 0) == least]
    guilty = sorted(behind, key=lambda rank: (-len(first[rank]), rank))
    proof = ends[first[guilty[0]][0]]
    waiting = [rank for rank, waited in ends.items() if _same_group(waited, proof) and waited.seq == proof.seq]
    return _named([known[rank] for rank in guilty], f"has not entered {proof}, in which {_plural(waiting)}", proof)


def _ahead(
    first: Mapping[int, Sequence[int]], ends: Mapping[int, Entered], known: Mapping[int, RankFacts]
) -> HangVerdict | None:
    """One rank that waits alone, while all others are in their own code: it entered a collective too many."""
    (rank,) = ends.keys() if len(ends) == 1 else (None,)
    if rank is None or not known[rank].is_unusual:
        return None
    return _named([known[rank]], f"entered {ends[rank]}, which no other rank has entered", ends[rank])


def _disagreeing(waits: Mapping[int, Entered | None], known: Mapping[int, RankFacts]) -> HangVerdict | None:
    """Ranks that entered another operation, or one of other shapes, under the same number of the same group."""
    for waited in {each for each in waits.values() if each is not None}:
        at: dict[tuple[str, str], list[int]] = defaultdict(list)
        for rank in ranks_of(waited.ranks):
            for entered in known[rank].entered if rank in known else ():
                if _same_group(entered, waited) and entered.seq == waited.seq:
                    at[(entered.op, entered.what)].append(rank)
        if len(at) < 2 or (len({op for op, _ in at}) == 1 and _may_differ(waited.op)):
            continue
        fewest = _fewest(list(at.values()), known)
        if fewest is None:
            continue
        mine = next(key for key, ranks in at.items() if ranks == fewest)
        others = max((key for key in at if key != mine), key=lambda key: len(at[key]))
        differs = f"{mine[0]} of {mine[1]}" if mine[0] == others[0] else mine[0]
        theirs = f"{others[0]} of {others[1]}" if mine[0] == others[0] else others[0]
        why = f"entered {differs} as number {waited.seq} of process group {waited.group}; the others entered {theirs}"
        return _named([known[rank] for rank in fewest], why, waited)
    return None


def _may_differ(op: str) -> bool:
    """Whether the ranks of an operation may pass different shapes: roots, senders, uneven splits."""
    return any(word in op for word in ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced"))


def _circle(
    ends: Mapping[int, Entered], missing: Mapping[int, Sequence[int]], known: Mapping[int, RankFacts]
) -> HangVerdict | None:
    """Ranks that wait for each other in different process groups."""
    at: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for rank, waited in ends.items():
        at[(waited.group, waited.ranks, waited.seq)].append(rank)
    if len(at) < 2:
        return None
    fewest = _fewest(list(at.values()), known)
    if fewest is None:
        ranks = [known[rank] for rank in sorted(ends)]
        text = "; ".join(f"rank {r.rank} waits in {ends[r.rank]} for {_names(missing[r.rank])}" for r in ranks[:2])
        return HangVerdict(guilty=(), text=f"a deadlock of process groups: {text}", proof=ends[ranks[0].rank])
    proof = ends[fewest[0]]
    waits_for = missing[fewest[0]]
    other = ends.get(waits_for[0], proof)
    why = f"waits in {proof} for {_names(waits_for)}, and has not entered {other}, in which rank {waits_for[0]} waits"
    return _named([known[rank] for rank in fewest], why, proof)


def _fewest(sides: Sequence[Sequence[int]], known: Mapping[int, RankFacts]) -> list[int] | None:
    """The ranks at fault, of sides that contradict each other: the fewest; of as many, those that did something new."""
    least = min(len(side) for side in sides)
    fewest = [side for side in sides if len(side) == least]
    if len(fewest) > 1:
        fewest = [side for side in fewest if any(known[rank].is_unusual for rank in side)]
    return list(fewest[0]) if len(fewest) == 1 else None


# By the stacks alone.


def _by_stacks(ranks: Sequence[RankFacts]) -> HangVerdict | None:
    """A rank outside the collective in which others wait; one that has made fewer steps; one that differs from most."""
    found = None
    if any(each.waits_for_others for each in ranks):
        outside = [each for each in ranks if each.place is not RankPlace.COLLECTIVE]
        found = _pick(outside, ranks, "not in the collective that others wait in")
    found = found or _behind(ranks) or _differing(ranks)
    if not found and len(ranks) == 1 and not ranks[0].waits_for_others:
        found = _pick(ranks, ranks, "the only one that still runs")
    return found


def _behind(ranks: Sequence[RankFacts]) -> HangVerdict | None:
    boundaries = {each.boundary for each in ranks if each.boundary is not None}
    if len(boundaries) < 2:
        return None
    return _pick([each for each in ranks if each.boundary == min(boundaries)], ranks, "behind the others by its steps")


def _differing(ranks: Sequence[RankFacts]) -> HangVerdict | None:
    places = Counter(each.frames[:1] for each in ranks)
    if not places:
        return None
    common, count = places.most_common(1)[0]
    if 2 * count <= len(ranks):
        return None
    return _pick([each for each in ranks if each.frames[:1] != common], ranks, "elsewhere than most")


# By NCCL's RAS.


def _with_ras(found: HangVerdict | None, ranks: Sequence[RankFacts], ras: Sequence[RasProcess]) -> HangVerdict | None:
    """The verdict with what RAS says of the rank; the rank that RAS alone names, if nothing else names one."""
    pids = Counter(each.pid for each in ranks)  # RAS knows nodes by another name or by their address
    said = {each.pid: each.says for each in ras if pids[each.pid] == 1}
    named = [each for each in ranks if each.pid in said]
    if found is None or not found.guilty:
        alone = _pick(named[:1], ranks, said[named[0].pid]) if len(named) == 1 else None
        return alone or found
    agreed = next((each for each in found.guilty if each.pid in said), None)
    if agreed is None:
        return found
    return replace(found, text=f"{found.text}; NCCL says of rank {agreed.rank}: {said[agreed.pid]}")


# Sentences.


def _pick(picked: Sequence[RankFacts], ranks: Sequence[RankFacts], why: str) -> HangVerdict | None:
    """A verdict; None if it fits no rank, or all of several ranks."""
    if not picked or (len(picked) == len(ranks) > 1):
        return None
    return _named(picked, why)


def _named(guilty: Sequence[RankFacts], why: str, proof: Entered | None = None) -> HangVerdict:
    first = guilty[0]
    place = first.place
    told = f": it {place}" if place is not RankPlace.COLLECTIVE and str(place) not in why else ""
    at = f", in {first.where}" if first.where else ""
    others = [str(each.rank) for each in guilty[1 : 1 + _SHOWN_RANKS]] + ["..."] * (len(guilty) > 1 + _SHOWN_RANKS)
    also = f"; so is rank {', '.join(others)}" if others else ""
    return HangVerdict(
        guilty=tuple(guilty), text=f"rank {first.rank} on {first.node}: {why}{told}{at}{also}", proof=proof
    )


def _plural(ranks: Sequence[int]) -> str:
    return f"{_names(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}"
