"""Mutants of the core, and which of them the schedules kill: `python -m simulation.mutants 40 [--seed 1]`.

A mutant is the core with one place changed: a condition turned, `and` for `or`, or a statement dropped (a command, a
record, a change of the state, a timer). It is killed when a schedule breaks what must be true, a single fault costs
something else, or a unit test of the core fails. Run by hand.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "launcher" / "core"
MODULES = (
    "agent_world", "attempt", "attempt_reports", "boosters", "choice", "decision", "departure", "ending", "exclusion",
    "hang", "launch", "gains", "marks", "members", "nodes", "recovery", "replay", "requests", "resize", "stages",
    "succession", "teardown", "turn",
)  # fmt: skip
TESTS = CORE.parents[1] / "tests"
FIRST_SEED = 1_000_000


def places(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where a module can be changed, and how."""
    for index, node in enumerate(ast.walk(tree)):
        for what in _kinds(node):
            yield index, what


def mutate(tree: ast.Module, index: int, what: str) -> str:
    """Changes one place; returns where and what."""
    node = next(found for at, found in enumerate(ast.walk(tree)) if at == index)
    text = ast.unparse(node.test if isinstance(node, ast.If | ast.IfExp) else node)
    _change(node, what)
    return f"line {getattr(node, 'lineno', 0)}: {what}: {text.splitlines()[0][:110]}"


def _kinds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If | ast.IfExp):
        yield "turn the condition"
    elif isinstance(node, ast.BoolOp):
        yield "swap and/or"
    elif (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or isinstance(node, ast.AugAssign):
        yield "drop the statement"


def _change(node: ast.AST, what: str) -> None:
    if what == "turn the condition":
        assert isinstance(node, ast.If | ast.IfExp)
        node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
    elif what == "swap and/or":
        assert isinstance(node, ast.BoolOp)
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.AugAssign):
        node.op, node.value = ast.Add(), ast.Constant(value=0) if not isinstance(node.value, ast.List) else ast.List([])
    else:
        assert isinstance(node, ast.Expr)
        node.value = ast.Constant(value=None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation.mutants", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=40)
    parser.add_argument("--seed", type=int, default=1, help="of the choice of mutants")
    parser.add_argument("--schedules", type=int, default=3000, help="for each mutant, unless it is killed before")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        return _run_mutant(given.folder, given.schedules)
    from simulation.campaign import run_on_all_cores

    for tally in run_on_all_cores(given.schedules, FIRST_SEED, given.jobs):
        if tally.failures:
            print(f"the core as it is fails, so nothing can be said of mutants: {tally.failures[0].text}")
            return 1
    found = []
    for module in MODULES:
        found += [(module, index, what) for index, what in places(ast.parse(_source(module)))]
    chosen = random.Random(given.seed).sample(found, given.count)
    print(f"{given.count} of {len(found)} mutants", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(pool.map(lambda mutant: _judge(*mutant, given.schedules), chosen))
    print(f"{sum(results)} of {given.count} killed")
    return 0


def _source(module: str) -> str:
    return (CORE / f"{module}.py").read_text()


def _judge(module: str, index: int, what: str, schedules: int) -> bool:
    tree = ast.parse(_source(module))
    what = mutate(tree, index, what)
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        core = Path(folder) / "core"
        shutil.copytree(CORE, core, ignore=shutil.ignore_patterns("__pycache__"))
        (core / f"{module}.py").write_text(ast.unparse(ast.fix_missing_locations(tree)))
        argv = [sys.executable, "-m", "simulation.mutants", "--folder", folder, "--schedules", str(schedules)]
        root = Path(__file__).resolve().parents[1]
        env = os.environ | {"PYTHONPATH": str(root)}
        done = subprocess.run(argv, check=False, cwd=root, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    verdict = json.loads(lines[-1]) if lines else {"rule": f"does not run: {done.stderr[-200:]}", "after": 0}
    if verdict["rule"] is None:
        print(f"SURVIVES  {module}.py {what}", flush=True)
        return False
    print(
        f"killed    {module}.py {what}\n          by {verdict['rule']!r} after {verdict['after']} schedules", flush=True
    )
    return True


def _run_mutant(folder: str, schedules: int) -> int:
    """In a process of its own: runs single faults, then schedules, with the mutant in the core's place."""
    import pytest

    import launcher

    launcher.__path__.insert(0, folder)
    sys.path.insert(0, str(TESTS / "test_simulation"))
    from test_kept_seeds import KEPT  # the core is imported with it

    from simulation import campaign
    from simulation.schedule import draw
    from simulation.single_faults import FAULTS

    campaign.LONGEST_S = 5.0
    drawn = (draw(seed) for seed in range(FIRST_SEED, FIRST_SEED + schedules))
    for number, (schedule, cost) in enumerate(
        chain(FAULTS.values(), ((each, None) for each in chain(KEPT.values(), drawn))), 1
    ):
        failure = campaign.run_one(schedule, cost=cost)
        if failure is not None:
            print(json.dumps({"rule": failure.rule, "after": number}))
            return 0
    has_failed = pytest.main(["-x", "-q", "-p", "no:cacheprovider", str(TESTS / "test_launcher" / "core")])
    print(json.dumps({"rule": "the core's unit tests" if has_failed else None, "after": schedules}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
