"""`holdfast node env`: prints and lints the environment that a job's workers would have on this node."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.blocks import print_json
from launcher.env.env_lint import remarks
from launcher.env.fabric import MODES, efa_devices, fabric_environment, plugin_path, read_nccl_log, wrong
from launcher.errors import UsageError
from lifecycle import expected, instance_type

app = typer.Typer(rich_markup_mode=None, add_completion=False)

# Variables with these prefixes are printed too.
_SHOWN = (
    "NCCL_",
    "FI_",
    "RDMAV_",
    "TORCH_NCCL_",
    "TORCH_DISTRIBUTED_",
    "CUDA_",
    "UCX_",
    "OMPI_",
    "PMIX_",
    "SLURM_MPI_",
)


@app.command("env", short_help="Print and lint the environment for NCCL and the fabric.")
def env(
    fabric: Annotated[str, typer.Option(metavar="MODE", help="As in the job file: require, prefer or any.")] = "prefer",
    nccl_log: Annotated[
        list[Path] | None,
        typer.Option(metavar="LOG", help="Also judge these logs of NCCL (NCCL_DEBUG=INFO).", show_default=False),
    ] = None,
    more_logs: Annotated[
        list[Path] | None, typer.Argument(metavar="LOG", help="More logs, as with --nccl-log.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print and lint the environment for NCCL and the fabric.

    Exit code 1: a setting is harmful, or (with --fabric require) a log shows that the fabric is not used.
    """
    if fabric not in MODES:
        raise UsageError(f"--fabric: got {fabric!r}, expected one of {', '.join(MODES)}")
    facts = _facts(fabric, [*(nccl_log or []), *(more_logs or [])])
    print_json(facts) if as_json else typer.echo("\n".join(_lines(facts)))
    harmful = any(remark["severity"] == "harmful" for remark in facts["remarks"])
    if harmful or (fabric == "require" and any(log["wrong"] for log in facts["logs"])):
        raise typer.Exit(1)


def _facts(mode: str, logs: list[Path]) -> dict[str, Any]:
    devices = efa_devices()
    instance = instance_type()
    plugin = plugin_path(os.environ)
    return {
        "instance": instance,
        "efa": list(devices),
        "plugin": str(plugin) if plugin else None,
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SHOWN)},
        "launcher_sets": fabric_environment(mode, os.environ, "LOG"),
        "remarks": [asdict(remark) for remark in remarks(os.environ, has_efa=bool(devices))],
        "logs": [_log(log, instance) for log in logs],
    }


def _log(path: Path, instance: str | None) -> dict[str, Any]:
    try:
        observed = read_nccl_log(path.read_text(errors="replace"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    silent = "does not say which network NCCL uses; was NCCL_DEBUG=INFO set?" if observed.network is None else None
    return {"log": str(path), **asdict(observed), "wrong": silent or wrong(observed, expected(instance))}


def _lines(facts: dict[str, Any]) -> list[str]:
    cards = f"{len(facts['efa'])} EFA devices" if facts["efa"] else "no EFA: gloo, or NCCL's own choice of network"
    lines = [f"node: {facts['instance'] or 'not an EC2 instance'}, {cards}"]
    if facts["efa"]:
        lines.append(f"plugin: {facts['plugin'] or 'no libnccl-net-ofi.so found (older ones go by libnccl-net.so)'}")
    lines += [f"set: {name}={value}" for name, value in facts["environment"].items()]
    lines += [f"the launcher adds: {name}={value}" for name, value in facts["launcher_sets"].items()]
    lines += [f"{r['severity'].upper()}: {r['variable']}={r['value']}: {r['reason']}" for r in facts["remarks"]]
    lines += [f"{log['log']}: {log['wrong'] or 'network ' + log['network']}" for log in facts["logs"]]
    return [*lines, "no harmful settings"] if not facts["remarks"] else lines
