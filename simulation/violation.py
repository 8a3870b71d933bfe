"""How a schedule fails."""

from __future__ import annotations


class Violation(AssertionError):
    """Something was not true that must be.

    Attributes:
        rule: which.
    """

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
