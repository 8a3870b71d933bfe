"""`holdfast cluster`: a real Slurm of several nodes on this one machine; and the configuration of one on AWS."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.blocks import WaitLine, print_json
from launcher.cli.options import GROUP, Json
from lifecycle.cluster.command import config

app = typer.Typer(**GROUP, help="Start a Slurm on this machine, or configure one on AWS.")
app.command("config", short_help="Write what creates a cluster on AWS; check the account.")(config)

ClusterName = Annotated[str, typer.Option(help="The cluster's name.", metavar="NAME")]


@app.command("up", short_help="Start a cluster.")
def up(
    name: ClusterName = "default", nodes: Annotated[int, typer.Option(help="Number of nodes.", metavar="N")] = 4
) -> None:
    """Start a Slurm cluster whose nodes are namespaces of this machine, and print how to use it."""
    from slurm.testbed import TestCluster

    with WaitLine(f"starting cluster {name}"):
        cluster = TestCluster.up(name=name, nodes=nodes)
    typer.echo(f"cluster {name}: {' '.join(cluster.nodes)}\n{cluster.usage}")


@app.command("down", short_help="Remove a cluster.")
def down(name: ClusterName = "default") -> None:
    """Remove a cluster and all that runs on it, also one whose start was interrupted."""
    from slurm.testbed import TestCluster

    with WaitLine(f"removing cluster {name}"):
        TestCluster.load(name).down()
    typer.echo(f"cluster {name} removed")


@app.command("status", short_help="Show a cluster; without --name, all clusters.")
def status(
    name: Annotated[str | None, typer.Option(help="The cluster's name.", metavar="NAME", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Show the nodes of one or all clusters: their state in Slurm and their network link."""
    from slurm.testbed import TestCluster

    names = list(TestCluster.list()) if name is None else [name]
    with WaitLine("asking Slurm"):
        facts = [TestCluster.load(known).status() for known in names]
    if as_json:
        return print_json(facts)
    if not facts:
        typer.echo("no cluster; `holdfast cluster up` starts one")
    for cluster in facts:
        typer.echo(f"cluster {cluster['name']}: controller {cluster['controller']}, SLURM_CONF={cluster['slurm_conf']}")
        for node in cluster["nodes"]:
            link = "link up" if node["link"] else "link down"
            alive = "running" if node["running"] else "crashed"
            typer.echo(f"  {node['name']:<8} {node['address']:<16} {node['state'] or '?':<10} {alive}, {link}")
    return None
