"""NVIDIA's own diagnostics, if DCGM is installed: seconds at level quick, minutes under load at level deep."""

from __future__ import annotations

import json
from typing import Any

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning
from lifecycle.health.pci import nvidia_gpus

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")  # since DCGM 4, and before
_MILD = (1, 5)  # dcgm_errors.h: errors to monitor, and settings such as persistence mode, which do not mean a bad GPU


@check("dcgm_short", Level.QUICK, limit_s=45.0, until=Level.QUICK)
def dcgm_short(node: CheckedNode) -> Finding:
    """DCGM's short diagnostic (level 1) finds nothing."""
    return _diagnose(node, 1)


@check("dcgm_long", Level.DEEP, limit_s=1500.0, alone=True, where=nvidia_gpus)
def dcgm_long(node: CheckedNode) -> Finding:
    """DCGM's long diagnostic (level 3: memory, bandwidth, stress, power) finds nothing."""
    return _diagnose(node, 3)


def _diagnose(node: CheckedNode, level: int) -> Finding:
    if not nvidia_gpus(node):
        raise NotHere("no NVIDIA GPU")
    # The exit code is not 0 both for a finding and for a failure to run, so the report decides.
    done = node.tool("dcgmi", "diag", "-r", str(level), "-j", timeout_s=1490.0, check=False)
    passed, failed, mild = _read(done.stdout)
    if failed:
        return critical("; ".join(failed[:4]), "all pass", "drain; what DCGM names; replace the node if it fails again")
    if mild:
        return warning("; ".join(mild[:4]), "all pass", "what DCGM names")
    return ok(f"{passed} tests passed", "all pass")


def _read(text: str) -> tuple[int, list[str], list[str]]:
    """The number of passed tests, the failures, and the mild failures, with reasons.

    Raises:
        CannotObserve: there is no report, or nothing was tested.
    """
    try:
        report = json.loads(text[text.index("{") :])
        root: dict[str, Any] = next(report[name] for name in _ROOTS if name in report)
        tests = [test for category in root["test_categories"] for test in category["tests"]]
    except (ValueError, KeyError, TypeError, StopIteration):
        raise CannotObserve(f"dcgmi diag: no report: {' '.join(text.split())[:120] or 'it said nothing'}") from None
    passed = 0
    failed: list[str] = []
    mild: list[str] = []
    for test in tests:
        results = test.get("results", [])
        words = [str(result.get("status", "")).lower() for result in results]
        passed += "pass" in words and "fail" not in words
        for result, word in zip(results, words, strict=True):
            if word == "fail":
                told = f"{test.get('name', '?')} on {_entity(result)}: {_reason(result)}"
                (mild if _is_mild(result) else failed).append(told)
    if not passed and not failed and not mild:
        raise CannotObserve("dcgmi diag: every test was skipped")
    return passed, failed, mild


def _is_mild(result: dict[str, Any]) -> bool:
    """Whether DCGM itself calls all reasons mild. Older versions do not say."""
    warnings = result.get("warnings", [])
    return bool(warnings) and all(isinstance(each, dict) and each.get("error_severity") in _MILD for each in warnings)


def _entity(result: dict[str, Any]) -> str:
    return f"GPU {result.get('entity_id', result.get('gpu_id', result.get('gpu_ids', '?')))}"


def _reason(result: dict[str, Any]) -> str:
    warnings = result.get("warnings", [])
    if isinstance(warnings, list) and warnings:
        first = warnings[0]
        return str(first.get("warning", first) if isinstance(first, dict) else first)
    return str(result.get("warning", "no reason given"))
