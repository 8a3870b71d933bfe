"""`holdfast node`: the verbs about the node they run on. Each module that has one hands it to this group."""

from __future__ import annotations

import typer

from lifecycle.heal.command import heal, lemons, return_
from lifecycle.health.command import check
from lifecycle.on_create import on_create
from lifecycle.provision.command import provision
from lifecycle.slurm_conf import slurm_conf
from lifecycle.software import image, versions

app = typer.Typer(
    help="Check and provision this node; heal those of the cluster.", no_args_is_help=True, rich_markup_mode=None
)
app.command("check", short_help="Say whether this node is fit for training.")(check)
app.command("provision", short_help="Make this node fit for training.")(provision)
app.command("on-create", short_help="Print the script that makes a bare node fit.")(on_create)
app.command("slurm-conf", short_help="Print or lint the lines of slurm.conf for hooks or elastic jobs.")(slurm_conf)
app.command("versions", short_help="Say which software belongs together here.")(versions)
app.command("image", short_help="Print the recipe of a training image with EFA.")(image)
app.command("heal", short_help="Heal the nodes that holdfast has drained.")(heal)
app.command("return", short_help="Return a node that was repaired, if it passes its check.")(return_)
app.command("lemons", short_help="List the nodes that fail again and again.")(lemons)
