"""`holdfast cluster config`: writes what creates a cluster, or checks the account for it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.files import publish
from holdfast.blocks import print_json
from lifecycle.cluster.request import Capacity, ClusterRequest, Kind
from lifecycle.errors import LifecycleError, NodeUsageError

_CREATE = "create.sh"


def config(
    kind: Annotated[
        Kind, typer.Option(help="The service: hyperpod, parallelcluster or pcs.", metavar="KIND", show_default=False)
    ],
    instance: Annotated[str, typer.Option(help="EC2's type of the nodes that train.", metavar="TYPE")],
    nodes: Annotated[int, typer.Option("--nodes", "-N", min=1, help="Nodes that train.", metavar="N")],
    wheel: Annotated[Path, typer.Option(help="The package that nodes install.", metavar="FILE")],
    scripts: Annotated[str, typer.Option(help="Where create.sh uploads the scripts.", metavar="S3://BUCKET/PREFIX")],
    subnet: Annotated[str, typer.Option(help="The subnet of all nodes.", metavar="ID")],
    security_group: Annotated[str, typer.Option(help="The security group; it has to allow EFA.", metavar="ID")],
    region: Annotated[str, typer.Option(help="AWS's region.", metavar="NAME")],
    name: Annotated[str, typer.Option(help="The cluster's name.", metavar="NAME")] = "holdfast",
    role: Annotated[
        str, typer.Option(help="HyperPod: the execution role; PCS: the instance profile.", metavar="ARN")
    ] = "",
    spares: Annotated[int, typer.Option(min=0, help="Spare nodes, of each team.", metavar="N")] = 0,
    boosters: Annotated[int, typer.Option(min=0, help="Nodes that only boosters use.", metavar="N")] = 0,
    spot: Annotated[bool, typer.Option("--spot", help="Boosters' nodes are spot instances.")] = False,
    team: Annotated[
        list[str] | None, typer.Option(help="A team and its nodes; may be repeated.", metavar="NAME=N")
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="ondemand, or block for a capacity block (with --reservation).", metavar="HOW")
    ] = "ondemand",
    reservation: Annotated[str, typer.Option(help="A capacity reservation of EC2.", metavar="ID")] = "",
    training_plan: Annotated[str, typer.Option(help="A training plan of HyperPod.", metavar="ARN")] = "",
    fsx: Annotated[str, typer.Option(help="An existing Lustre file system.", metavar="ID:MOUNTNAME")] = "",
    fsx_gib: Annotated[int, typer.Option(min=0, help="Size of a new Lustre file system.", metavar="GIB")] = 0,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A bucket to associate with Lustre, or to mount; may be repeated.", metavar="S3://BUCKET"),
    ] = None,
    accounting: Annotated[bool, typer.Option("--accounting", help="Slurm's accounting, for teams' shares.")] = False,
    database: Annotated[
        str, typer.Option(help="The database of accounting; PCS has its own.", metavar="HOST[:PORT]")
    ] = "",
    database_secret: Annotated[str, typer.Option(help="The secret with its password.", metavar="ARN")] = "",
    controller: Annotated[
        str, typer.Option(help="EC2's type of the controller or login node.", metavar="TYPE")
    ] = "m5.2xlarge",
    image: Annotated[str, typer.Option(help="PCS: the machine image.", metavar="ID")] = "",
    slurm_version: Annotated[str, typer.Option(help="PCS: Slurm's version.", metavar="V")] = "25.05",
    torch: Annotated[str, typer.Option(help="The torch version of the jobs.", metavar="V")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new directory.", metavar="DIR")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Ask the account whether this cluster can be created.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print JSON.")] = False,
) -> None:
    """Write what creates a cluster on AWS, and print the one command that does. Nothing is created here.

    With --check: ask the account for quotas, offerings by zone, the training plan or reservation, the subnet and the
    buckets, and name the zone that fits; nothing is written.

    Exit code 1: --check found something that is missing, or that AWS did not tell.
    """
    fsx_id, _, mount_name = fsx.partition(":")
    request = ClusterRequest(
        kind=kind,
        name=name,
        region=region,
        instance=instance,
        nodes=nodes,
        spares=spares,
        boosters=boosters,
        booster_capacity="spot" if spot else "ondemand",
        teams=_teams(team or ()),
        capacity=_capacity(capacity),
        controller_instance=controller,
        wheel=wheel,
        scripts=scripts,
        subnet=subnet,
        security_group=security_group,
        role=role,
        fsx=fsx_id,
        fsx_mountname=mount_name,
        fsx_gib=fsx_gib,
        data=tuple(data or ()),
        training_plan=training_plan,
        reservation=reservation,
        database=database,
        database_secret=database_secret,
        has_accounting=accounting or bool(database),
        slurm_version=slurm_version,
        image=image,
        torch=torch,
    )
    if check:
        return _check(request, as_json)
    return _write(request, output or Path(f"{name}-{kind}"))


def _write(request: ClusterRequest, folder: Path) -> None:
    """Writes the files to a new directory, and prints the command that creates the cluster."""
    files = cluster_files(request)
    if folder.exists():
        raise NodeUsageError(f"--output {folder}: is there already, expected a new directory")
    for path, content in files.items():
        publish(folder / path, content, 0o755 if path.endswith(".sh") else 0o644)
    typer.echo(f"{folder}: {', '.join(path for path in files if '/' not in path)}; scripts/ has what nodes run")
    for command in request.accounting_commands() if request.kind != "hyperpod" else ():
        typer.echo(f"once on the cluster: {command}")
    typer.echo(f"nothing is created yet; check the account with --check, then run:\n    bash {folder / _CREATE}")


def cluster_files(request: ClusterRequest) -> dict[str, bytes]:
    """Path -> content of all that creates the cluster.

    Raises:
        UsageError: the request is not one that the service accepts.
    """
    from lifecycle.cluster.calls import check_calls, create_script, request_files
    from lifecycle.cluster.hyperpod import hyperpod_calls
    from lifecycle.cluster.parallelcluster import CONFIG, parallelcluster_config
    from lifecycle.cluster.pcs import pcs_calls
    from lifecycle.cluster.scripts import scripts

    where = (request.name, request.region, request.script_url)
    files = {f"scripts/{name}": content for name, content in scripts(request).items()}
    if request.kind == "parallelcluster":
        import yaml

        files[CONFIG] = yaml.safe_dump(parallelcluster_config(request), sort_keys=False).encode()
        create = f"pcluster create-cluster --cluster-name {request.name} --cluster-configuration {CONFIG}"
        files[_CREATE] = create_script(*where, [], [f"{create} --region {request.region}"]).encode()
        return files
    calls = hyperpod_calls(request) if request.kind == "hyperpod" else pcs_calls(request)
    check_calls(calls)
    files |= {name: text.encode() for name, text in request_files(calls).items()}
    files[_CREATE] = create_script(*where, calls).encode()
    return files


def _teams(given: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in given:
        name, _, count = text.partition("=")
        if not count.isdecimal() or int(count) < 1 or name in found:
            raise NodeUsageError(f"--team: got {text!r}, expected NAME=N, each name once and at least one node")
        found[name] = int(count)
    return found


def _capacity(given: str) -> Capacity:
    if given == "ondemand" or given == "block":
        return given  # type: ignore[return-value]
    raise NodeUsageError(f"--capacity: got {given!r}, expected ondemand or block")


def _check(request: ClusterRequest, as_json: bool) -> None:
    from lifecycle.cluster.account import AccountCheck

    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise LifecycleError("cluster config --check: boto3 is missing; pip install 'holdfast-hpc[s3]'") from None
    session = boto3.session.Session(region_name=request.region)
    try:
        report = AccountCheck(request, session.client).report()
    except (BotoCoreError, ClientError) as error:
        raise LifecycleError(f"cluster config --check: {' '.join(str(error).split())}") from None
    if as_json:
        print_json(asdict(report) | {"is_ok": report.is_ok})
    else:
        words = {True: "ok", False: "no", None: "?"}
        for finding in report.findings:
            typer.echo(f"{words[finding.is_ok]:<3} {finding.subject}: {finding.detail}")
        typer.echo(f"zone: {', '.join(report.zones) or 'none fits'}")
    raise typer.Exit(0 if report.is_ok else 1)
