"""The report of `nvidia-smi -q -x`, and what it means if a part of it cannot be read.

A GPU that is on the PCI bus and cannot be read is broken: an error in place of a value is critical, and so is a tool
that fails. No text counts as a number unless it is one. A value that the driver or the GPU does not have ("N/A") is
neither good nor bad; a text that is not understood is UNKNOWN, because a newer driver may have new words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from lifecycle.health.check import CannotObserve, CheckedNode, Judge, NotHere, Unreadable
from lifecycle.health.finding import Finding, Status
from lifecycle.health.pci import nvidia_gpus

_ASK = ("nvidia-smi", "-q", "-x")
_ASK_S = 20.0  # without persistence mode the driver is loaded for each call, which takes seconds
_ROOT = re.compile(r"<nvidia_smi_log>.*</nvidia_smi_log>", re.DOTALL)  # wrappers and warnings print text around it
_ABSENT = frozenset(("", "n/a", "not supported", "not available"))
_ERROR = re.compile(r"unknown error|err!|gpu is lost|reset required|requires reset|fallen off", re.IGNORECASE)
_LOST = re.compile(r"unable to determine the device handle|gpu is lost|fallen off the bus", re.IGNORECASE)
_MISMATCH = re.compile(r"driver/library version mismatch", re.IGNORECASE)
_GPU_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)(x|\.\d+)?( \S+)?")

ADVICE = "reset the GPU (nvidia-smi -r) or reboot; then replace the node"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The driver's report about one GPU. Each read notes what could not be read; `of_gpus` judges the notes.

    Attributes:
        bus: PCI address.
        facts: the GPU's element.
        errors: values that are errors.
        odd: values that were not understood.
        absent: names of values that the GPU does not have.
        present: names of values that were read.
    """

    bus: str
    facts: ElementTree.Element
    errors: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The model; "" if it cannot be read."""
        return self.word("product_name", ".+")

    def word(self, path: str, known: str) -> str:
        """The text of an element if it matches a pattern of known texts; else ""."""
        element = self._find(path)
        return "" if element is None else self._known(path, element, re.compile(known)) or ""

    def number(self, path: str) -> int | None:
        """The number at the start of an element's text; None if there is none."""
        element = self._find(path)
        return None if element is None else self._number(path, element)

    def sum(self, group: str, word: str) -> int | None:
        """The sum of the counters below a group whose name contains a word; None if none has a number."""
        found = (self._number(name, each) for name, each in self._below(group, "iter") if word in each.tag)
        numbers = [number for number in found if number is not None]
        return sum(numbers) if numbers else None

    def active(self, group: str) -> list[str] | None:
        """Names of a group's elements that are Active; None if the GPU does not have the group."""
        known = re.compile("Not Active|Active")
        words = {each.tag: self._known(name, each, known) for name, each in self._below(group, "iterfind", "*")}
        told = {tag: word for tag, word in words.items() if word is not None}
        return [tag for tag, word in told.items() if word == "Active"] if told else None

    def _find(self, path: str) -> ElementTree.Element | None:
        """An element; None if it is missing, or if a group above it is N/A or an error."""
        element = self.facts
        for part in path.split("/"):
            inner = element.find(part)
            if inner is None:
                in_place_of_group = element is not self.facts and not len(element)
                if in_place_of_group and self._text(path, element) is not None:
                    self._not_understood(path, element)
                self.absent.add(path)
                return None
            element = inner
        return element

    def _below(self, group: str, method: str, *arguments: str) -> Iterator[tuple[str, ElementTree.Element]]:
        """The elements of a group that have a text, each with a name."""
        top = self._find(group)
        if top is None:
            return
        if not len(top):
            if self._text(group, top) is not None:
                self._not_understood(group, top)
            return
        for each in getattr(top, method)(*arguments):
            if not len(each):
                yield f"{group}/{each.tag}", each

    def _number(self, name: str, element: ElementTree.Element) -> int | None:
        word = self._known(name, element, _NUMBER)
        hit = _NUMBER.fullmatch(word or "")
        return int(hit[1]) if hit else None

    def _known(self, name: str, element: ElementTree.Element, pattern: re.Pattern[str]) -> str | None:
        text = self._text(name, element)
        if text is None:
            return None
        if not pattern.fullmatch(text):
            self._not_understood(name, element)
            return None
        self.present.add(name)
        return text

    def _text(self, name: str, element: ElementTree.Element) -> str | None:
        """The text of an element; None if it is absent or an error."""
        text = (element.text or "").strip().strip("[]")
        if text.lower() in _ABSENT:
            self.absent.add(name)
            return None
        if _ERROR.search(text):
            self.errors.append(f"{element.tag} is {text}")
            return None
        return text

    def _not_understood(self, name: str, element: ElementTree.Element) -> None:
        self.odd.append(f"{name} is {(element.text or '').strip()[:40]!r}")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What nvidia-smi said.

    Attributes:
        log: the XML.
        lost: lines beside the XML about GPUs that do not answer.
        remarks: other lines beside the XML that name a GPU.
        exit_code: of nvidia-smi.
    """

    log: ElementTree.Element
    lost: tuple[str, ...]
    remarks: tuple[str, ...]
    exit_code: int

    def fact(self, name: str) -> str:
        """A fact about the whole node; "" if it is missing."""
        return self.log.findtext(name, "").strip()

    def gpus(self) -> list[Gpu]:
        """The GPUs, without notes."""
        return [Gpu(bus=gpu.get("id", "?"), facts=gpu) for gpu in self.log.iterfind("gpu")]


def read_report(node: CheckedNode) -> Report:
    """Asks nvidia-smi about all GPUs.

    Raises:
        NotHere: the node has no NVIDIA GPU.
        CannotObserve: nvidia-smi is not installed, did not answer, or its answer is not whole.
        Unreadable: nvidia-smi failed, or a GPU does not answer.
    """
    wanted_gpus(node)
    try:
        done = node.tool(*_ASK, timeout_s=_ASK_S, check=False)
    except NotHere:
        raise CannotObserve("nvidia-smi is not installed, and there are GPUs on the PCI bus") from None
    exit_code = done.returncode or 0
    found = _ROOT.search(done.stdout)
    beside = done.stderr + "\n" + (_ROOT.sub("\n", done.stdout) if found else done.stdout)
    lost, remarks = lines_about_gpus(beside)
    try:
        log = ElementTree.fromstring(found[0] if found else "")
    except ElementTree.ParseError as error:
        if lost or exit_code > 0:
            said = "; ".join(lost) or " ".join(beside.split())
            advice = "reboot: the driver was updated under a running kernel" if _MISMATCH.search(beside) else ADVICE
            raise Unreadable(f"nvidia-smi failed with exit code {exit_code}: {said[:200]}", advice) from None
        raise CannotObserve(f"nvidia-smi -q -x: no nvidia_smi_log ({error})") from None
    return Report(log=log, lost=lost, remarks=remarks, exit_code=exit_code)


def lines_about_gpus(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines of a tool that say that a GPU does not answer, and the other lines that name a GPU's PCI address."""
    lines = [" ".join(line.split())[:200] for line in text.splitlines()]
    lost = tuple(line for line in lines if _LOST.search(line))
    return lost, tuple(line for line in lines if line not in lost and _GPU_ADDRESS.search(line))


def silent_gpus(node: CheckedNode, report: Report) -> list[str]:
    """PCI addresses of GPUs on the bus that are not in the report."""
    seen = {_place(gpu.bus) for gpu in report.gpus()}
    return [address for address in nvidia_gpus(node) if _place(address) not in seen]


def of_gpus(judge: Callable[[CheckedNode, Sequence[Gpu]], Finding]) -> Judge:
    """Makes a function that judges the GPUs of the report a check's function, and judges what could not be read.

    A value that is an error is critical. A value that was not understood, or that only some GPUs of a model have, makes
    a good finding UNKNOWN.
    """

    @functools.wraps(judge)
    def of_node(node: CheckedNode) -> Finding:
        try:
            gpus = node.once(read_report).gpus()
        except Unreadable as error:  # gpu_count and gpu_driver report it, with its advice
            raise CannotObserve(f"{error}; see gpu_driver") from None
        if not gpus:
            raise CannotObserve("nvidia-smi sees no GPU")
        try:
            finding = judge(node, gpus)
        except (NotHere, CannotObserve):
            judge_notes(gpus)
            raise
        if finding.status is not Status.CRITICAL:
            judge_notes(gpus)
        return finding

    return of_node


def judge_notes(gpus: Sequence[Gpu]) -> None:
    """Judges what could not be read of the GPUs.

    Raises:
        Unreadable: a value is an error.
        CannotObserve: a value was not understood.
    """
    errors = [f"{gpu.bus}: {', '.join(dict.fromkeys(gpu.errors))}" for gpu in gpus if gpu.errors]
    if errors:
        raise Unreadable("; ".join(errors), ADVICE)
    odd = [f"{gpu.bus}: {note}" for gpu in gpus for note in (*gpu.odd, *_missing(gpu, gpus))]
    if odd:
        raise CannotObserve(f"nvidia-smi: not understood: {'; '.join(odd)}")


def wanted_gpus(node: CheckedNode) -> int:
    """The expected number of GPUs: that of the instance type, else that on the PCI bus.

    Raises:
        NotHere: it is 0.
    """
    plugged = len(nvidia_gpus(node))
    wanted = node.expected.gpus if node.expected else plugged
    if wanted == plugged == 0:
        raise NotHere("no NVIDIA GPU")
    return wanted


def _missing(gpu: Gpu, gpus: Sequence[Gpu]) -> list[str]:
    """Notes about values that this GPU does not have and another GPU of its model has."""
    others = set().union(*(other.present for other in gpus if other.name == gpu.name))
    return [f"{name} is N/A, and not on its siblings" for name in sorted((gpu.absent - gpu.present) & others)]


def _place(address: str) -> tuple[int, ...] | str:
    """A PCI address as numbers: nvidia-smi writes the domain with eight digits, the kernel with four."""
    if not _GPU_ADDRESS.fullmatch(address):
        return address
    return tuple(int(part, 16) for part in re.split("[:.]", address))
