"""The result of the last run, for the prolog level, which has no time to run the checks again."""

from __future__ import annotations

from lifecycle.health.check import CannotObserve, CheckedNode, Level, check
from lifecycle.health.finding import Finding, Status, critical, ok, warning
from lifecycle.health.verdict import boot_id, read_verdict

MAX_AGE_S = 24 * 3600.0


@check("last_verdict", Level.PROLOG, limit_s=1.0, until=Level.PROLOG)
def last_verdict(node: CheckedNode) -> Finding:
    """The last quick or deep run of this boot found nothing critical."""
    try:
        verdict = read_verdict(node.path(str(node.verdict)))
    except FileNotFoundError:
        raise CannotObserve("no verdict yet; run `holdfast node check` as root") from None
    except ValueError as error:
        raise CannotObserve(str(error)) from None
    if verdict.boot_id != boot_id(node):
        raise CannotObserve("the last verdict is from before the last reboot")
    if verdict.level == Level.PROLOG.word:
        raise CannotObserve("no quick or deep run since the last reboot")
    age_s = node.now_s() - verdict.time_s
    failed = [row for row in verdict.checks if row["status"] == Status.CRITICAL.word]
    measured, expected = f"{verdict.status.word} {age_s / 60:.0f} min ago", "nothing critical"
    if failed:
        return critical(f"{measured}: {', '.join(row['name'] for row in failed)}", expected, str(failed[0]["advice"]))
    if age_s > MAX_AGE_S:
        return warning(measured, f"at most {MAX_AGE_S / 3600:.0f} h old", "does Slurm's HealthCheckProgram run?")
    return ok(measured, expected)
