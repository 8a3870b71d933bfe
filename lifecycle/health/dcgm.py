"""NVIDIA's own diagnostics, if DCGM is installed: seconds at level quick, minutes under load at level deep."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning
from lifecycle.health.pci import nvidia_gpus

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")  # since DCGM 4, and before
_QUIET = ("pass", "skip", "skipped", "not run", "notrun")
_MILD = (1, 5)  # dcgm_errors.h: errors to monitor, and settings such as persistence mode, which do not mean a bad GPU


@check("dcgm_short", Level.QUICK, limit_s=45.0, until=Level.QUICK)
def dcgm_short(node: CheckedNode) -> Finding:
    """DCGM's short diagnostic (level 1) finds nothing."""
    return _diagnose(node, 1)


@check("dcgm_long", Level.DEEP, limit_s=1500.0, alone=True, where=nvidia_gpus)
def dcgm_long(node: CheckedNode) -> Finding:
    """DCGM's long diagnostic (level 3: memory, bandwidth, stress, power) finds nothing."""
    return _diagnose(node, 3)


@dataclass(kw_only=True)
class _Results:
    """The results of all tests; each text names the test, the GPU and DCGM's reason."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    mild: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


def _diagnose(node: CheckedNode, level: int) -> Finding:
    if not nvidia_gpus(node):
        raise NotHere("no NVIDIA GPU")
    # The exit code is not 0 both for a finding and for a failure to run, so the report decides.
    done = node.tool("dcgmi", "diag", "-r", str(level), "-j", timeout_s=1490.0, check=False)
    found = _read(done.stdout)
    if found.failed:
        return critical(
            "; ".join(found.failed[:4]), "all pass", "drain; what DCGM names; replace the node if it fails again"
        )
    if found.mild:
        return warning("; ".join(found.mild[:4]), "all pass", "what DCGM names")
    if found.odd:
        raise CannotObserve(f"dcgmi diag: not understood: {'; '.join(found.odd[:4])}")
    if not found.passed:
        raise CannotObserve("dcgmi diag: every test was skipped")
    return ok(f"{found.passed} tests passed", "all pass")


def _read(text: str) -> _Results:
    """The results in a report, which may have text around it.

    Raises:
        CannotObserve: there is no report.
    """
    try:
        report, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
        root: dict[str, Any] = next(report[name] for name in _ROOTS if name in report)
        tests = [test for category in root["test_categories"] for test in category["tests"]]
        found = _Results()
        for test in tests:
            _sort(test, found)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        raise CannotObserve(f"dcgmi diag: no report: {' '.join(text.split())[:120] or 'it said nothing'}") from None
    return found


def _sort(test: dict[str, Any], found: _Results) -> None:
    """Adds the results of one test."""
    results: list[dict[str, Any]] = test.get("results") or []
    kinds = [str(result.get("status", "")).lower() for result in results]
    for result, kind in zip(results, kinds, strict=True):
        told = f"{test.get('name', '?')} on {_entity(result)}: {_reason(result)}"
        if kind == "fail":
            (found.mild if _is_mild(result) else found.failed).append(told)
        elif kind == "warn":
            found.mild.append(told)
        elif kind not in _QUIET:
            found.odd.append(f"status {kind!r} of {told}")
    found.passed += "pass" in kinds and set(kinds) <= {"pass", *_QUIET}


def _is_mild(result: dict[str, Any]) -> bool:
    """Whether DCGM itself calls all reasons mild. Older versions do not say."""
    warnings = result.get("warnings") or []
    return bool(warnings) and all(isinstance(each, dict) and each.get("error_severity") in _MILD for each in warnings)


def _entity(result: dict[str, Any]) -> str:
    return f"GPU {result.get('entity_id', result.get('gpu_id', result.get('gpu_ids', '?')))}"


def _reason(result: dict[str, Any]) -> str:
    warnings = result.get("warnings") or []
    if isinstance(warnings, list) and warnings:
        first = warnings[0]
        return str(first.get("warning", first) if isinstance(first, dict) else first)
    return str(result.get("warning", "no reason given"))
