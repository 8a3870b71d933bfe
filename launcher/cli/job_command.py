"""Splits the command lines of `run` and `submit`. Options may stand before or after JOB.yaml.

Words after `--` go to the script. `submit` passes options that are not its own to sbatch, unchanged.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from launcher.cli.plain_command import PlainCommand
from launcher.errors import UsageError

SCRIPT_ARGUMENTS = "launcher.script_arguments"  # in the context's meta; None without `--`
# Options of sbatch (sbatch(1), 25.05) that take no value as a word of its own. All others take the next word.
_SHORT_WITHOUT_VALUE = frozenset("HOQhkIsuvVW")
_LONG_WITHOUT_VALUE = frozenset(
    ("--contiguous", "--disable-stdout-job-info", "--exclusive", "--get-user-env", "--hold", "--ignore-pbs", "--nice",
     "--no-kill", "--no-requeue", "--overcommit", "--oversubscribe", "--parsable", "--propagate", "--quiet", "--reboot",
     "--requeue", "--resv-ports", "--spread-job", "--stepmgr", "--usage", "--use-min-nodes", "--verbose", "--wait")
)  # fmt: skip


class JobCommand(PlainCommand):
    """A verb that takes JOB.yaml and arguments for its script."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGS...]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words, rest = _cut(args)
        ctx.meta[SCRIPT_ARGUMENTS] = rest
        given = list(words)  # the parser takes words out of its list
        try:
            return list(super().parse_args(ctx, words))
        except Exception as error:
            unknown = getattr(error, "option_name", None)  # of click's NoSuchOption, wherever typer keeps it
            at = next((at for at, word in enumerate(given) if word.partition("=")[0] == unknown), None)
            if rest is None and unknown is not None and at is not None:
                said = error.format_message().rstrip(".")  # type: ignore[attr-defined]
                raise UsageError(f"{said}; {_perhaps_of_the_script(ctx.command_path, given, at)}") from None
            raise


class SubmitCommand(JobCommand):
    """A verb that also takes sbatch's options, which become the context's `args`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        own, *rest = super().collect_usage_pieces(ctx)
        return [own, "[SBATCH OPTIONS]", *rest]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words, rest = _cut(args)
        takes_value = {name: not getattr(option, "is_flag", True) for option in self.params for name in option.opts}
        takes_value |= dict.fromkeys(ctx.help_option_names, False)
        own, sbatch = split(words, takes_value)
        super().parse_args(ctx, own if rest is None else [*own, "--", *rest])
        ctx.args = sbatch
        return sbatch


def split(words: Sequence[str], takes_value: dict[str, bool]) -> tuple[list[str], list[str]]:
    """Divides a command line between `holdfast submit` and sbatch.

    Args:
        words: the command line, without the arguments of the script.
        takes_value: the options of `holdfast submit`, and whether each takes a value.

    Returns:
        The options of `holdfast submit` and JOB.yaml; the options of sbatch.
    """
    own: list[str] = []
    sbatch: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-") or word == "-":
            own.append(word)
            continue
        is_long = word.startswith("--")
        name, holds_value = (word.partition("=")[0], "=" in word) if is_long else (word[:2], len(word) > 2)
        if name in takes_value:
            side, needs_value = own, takes_value[name]
        else:
            side = sbatch
            needs_value = name not in _LONG_WITHOUT_VALUE if is_long else name[1:] not in _SHORT_WITHOUT_VALUE
        side.append(word)
        if needs_value and not holds_value and waiting and not waiting[0].endswith((".yaml", ".yml")):
            side.append(waiting.pop(0))
    return own, sbatch


def _perhaps_of_the_script(command: str, words: list[str], at: int) -> str:
    """The advice for an option that the verb does not have: a `--` before it may be missing."""
    given = words[:at] if any(word.endswith((".yaml", ".yml")) for word in words[:at]) else ["JOB.yaml"]
    corrected = " ".join(map(shlex.quote, [*command.split(), *given, "--", *words[at:]]))
    return f"words for the script go after --: {corrected}; see `{command} --help`"


def _cut(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in args:
        return list(args), None
    end = list(args).index("--")
    return list(args[:end]), list(args[end + 1 :])
