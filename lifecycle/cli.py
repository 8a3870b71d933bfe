"""`holdfast node`: the group of all verbs about nodes."""

from __future__ import annotations

import typer

from lifecycle.heal.command import heal, lemons, return_
from lifecycle.health.command import check
from lifecycle.on_create import on_create
from lifecycle.provision.command import provision
from lifecycle.slurm_conf import slurm_conf
from lifecycle.software import image, versions

app = typer.Typer(
    help="Check and provision this node; heal the cluster's nodes.", no_args_is_help=True, rich_markup_mode=None
)
app.command("check", short_help="Check this node's health.")(check)
app.command("provision", short_help="Install and configure this node.")(provision)
app.command("on-create", short_help="Print on_create.sh, which provisions a bare node.")(on_create)
app.command("slurm-conf", short_help="Print or lint the lines of slurm.conf for hooks or elastic jobs.")(slurm_conf)
app.command("versions", short_help="Print which versions of torch, NCCL and EFA belong together.")(versions)
app.command("image", short_help="Print the recipe of a training image with EFA.")(image)
app.command("heal", short_help="Reboot or replace drained nodes, check and return them.")(heal)
app.command("return", short_help="Check a repaired node and return it to service.")(return_)
app.command("lemons", short_help="List the nodes that fail again and again.")(lemons)
