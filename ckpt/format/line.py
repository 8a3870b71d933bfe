"""The line of descent of a save: which steps it continues.

Step numbers alone do not say what belongs together. A script that loads an older step, or none, and then saves begins a
new line. Saves of one line continue each other. The newest line of a namespace is the one to restore from; steps of
other lines are never removed by its saves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import xxhash

from ckpt.errors import CorruptError

_ID = re.compile(r"[0-9a-f]{8}")
_MOST_ANCESTORS = 64  # nearest first; older ones have no steps left
_TEXT_CHARS = 400  # of a script's path, for messages


@dataclass(frozen=True, kw_only=True, order=True)
class Line:
    """A line of descent, as each of its saves records it. All texts are for people.

    Attributes:
        number: greater than that of every line that was known at the beginning; 0 for saves of Holdfast 0.2.0.
        began_s: CLOCK_REALTIME of the agents that planned it. It decides only between lines of the same number, which
            have begun without knowledge of each other.
        id: eight hexadecimal digits; "" for saves of Holdfast 0.2.0.
        ancestors: the lines that it continues, nearest first, each with the last step that belongs to this descent.
        name: the job's name; "" without a launcher.
        script: the script's path.
        user: the user's name.
    """

    number: int = 0
    began_s: float = 0.0
    id: str = ""
    ancestors: tuple[tuple[str, int], ...] = ()
    name: str = ""
    script: str = ""
    user: str = ""

    @classmethod
    def from_json(cls, value: Any) -> Line:
        """Raises CorruptError if a field is missing or malformed."""
        try:
            ancestors = tuple((str(line), step) for line, step in value["ancestors"])
            line = cls(
                number=value["number"], began_s=float(value["began"]), id=value["id"], ancestors=ancestors,
                name=_text(value["name"]), script=_text(value["script"]), user=_text(value["user"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptError(f"line: missing or malformed field: {error}") from None
        if len(line.ancestors) > _MOST_ANCESTORS:
            raise CorruptError(f"line: {len(line.ancestors)} ancestors, expected at most {_MOST_ANCESTORS}")
        numbers = [line.number, *(step for _, step in ancestors)]
        is_sound = all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
        names = [] if line == FIRST else [line.id]
        names += [name for name, _ in ancestors if name]
        if not is_sound or not all(isinstance(name, str) and _ID.fullmatch(name) for name in names):
            raise CorruptError(f"line: malformed number, id or ancestor {line!r:.200}")
        if not -1e11 < line.began_s < 1e11:
            raise CorruptError(f"line: began is {line.began_s!r:.40}")
        return line

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number, "began": self.began_s, "id": self.id, "ancestors": [list(a) for a in self.ancestors],
            "name": self.name, "script": self.script, "user": self.user,
        }  # fmt: skip

    def has(self, line_id: str, step: int) -> bool:
        """Whether a step of a line belongs to this descent: it is of this line, or an ancestor of it."""
        return line_id == self.id or any(line_id == ancestor and step <= last for ancestor, last in self.ancestors)

    def fork(self, step: int | None, *, number: int, began_s: float, seed: str, owner: Owner) -> Line:
        """The line that begins after a step of this one.

        Args:
            step: the step that it continues; None: it continues none.
            seed: text that is the same on all ranks, and of no other attempt.
        """
        origin = f"{self.id} {step} {number} {seed}"
        inherited = [(line, min(last, step)) for line, last in self.ancestors] if step is not None else []
        ancestors = [(self.id, step), *inherited] if step is not None else []
        return Line(
            number=number, began_s=began_s, id=xxhash.xxh32_hexdigest(origin.encode()),
            ancestors=tuple(ancestors[:_MOST_ANCESTORS]), name=owner.name, script=owner.script, user=owner.user,
        )  # fmt: skip

    @property
    def whose(self) -> str:
        """Who saved it, for messages; "" if it is not known."""
        by = f"job {self.name}" if self.name else ""
        script = f"{'of ' if by else ''}script {self.script}" if self.script else ""
        user = f"user {self.user}" if self.user else ""
        return ", ".join(filter(None, (" ".join(filter(None, (by, script))), user)))

    def __str__(self) -> str:
        return f"line {self.id}" if self.id else "the line of Holdfast 0.2.0"


class Descendant(Protocol):
    """What has a line: a save."""

    @property
    def line(self) -> Line: ...


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who saves: the job's name ("" without a launcher), the script's path and the user's name."""

    name: str = ""
    script: str = ""
    user: str = ""


def newest_line(saves: Iterable[Descendant], lines: Iterable[Line] = ()) -> Line:
    """The line to restore from: that of a save, or one that begins after some step and has no save yet."""
    return max((*(save.line for save in saves), *lines), default=FIRST)


NOBODY = Owner()
FIRST = Line()  # that of saves without a line: those of Holdfast 0.2.0


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is no text")
    return "".join(c if c.isprintable() else "?" for c in value[:_TEXT_CHARS])
