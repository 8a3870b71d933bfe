"""`holdfast ckpt plan`: the memory, storage and bandwidth that checkpoints need, and the losses they survive."""

from __future__ import annotations

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.filesize import decimal

from ckpt.capacity import CapacityPlan, FlushEstimate, Losses, Rates, make_plan
from ckpt.cli.output import print_json
from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError
from ckpt.outlook import Conditions, Outlook, make_outlook

_MAX_BYTES = 1 << 60


def parse_size(text: str, where: str) -> int:
    """The number of bytes in "70GB", "512MiB" or "1500000". Raises ConfigError."""
    try:
        nbytes = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        nbytes = ByteSize(0)
    if not 1 <= nbytes <= _MAX_BYTES:
        expected = f"a size such as 70GB, 512MiB or 1500000, up to {decimal(_MAX_BYTES)}"
        raise ConfigError(f"{where}: got {text!r:.60}, expected {expected}")
    return int(nbytes)


def show_plan(
    config: CheckpointConfig, *, nodes: int, ranks_per_node: int, state: str | None, shard: str | None,
    nodes_per_switch: int | None, conditions: Conditions, as_json: bool, **gb_per_s: float | None,
) -> None:  # fmt: skip
    """Prints the plan.

    Args:
        state, shard: size of the whole state or of each rank's shard, as text; exactly one of the two.
        conditions: what is known of the job and its machines, for the cadence.
        nodes_per_switch: number of consecutive nodes on one switch; None if it is not known.
        gb_per_s: the fields of Rates.

    Raises:
        ConfigError: a size is malformed, or not exactly one is given.
    """
    if (state is None) == (shard is None):
        raise ConfigError("ckpt plan: give one of --state-bytes (of the whole state) and --shard-bytes (of each rank)")
    if shard is not None:
        shard_bytes = parse_size(shard, "--shard-bytes")
    else:
        shard_bytes = -(-parse_size(state or "", "--state-bytes") // (nodes * ranks_per_node))
    domains = [f"switch{node // nodes_per_switch}" for node in range(nodes)] if nodes_per_switch else []
    plan = make_plan(
        config, nodes=nodes, ranks_per_node=ranks_per_node, shard_bytes=shard_bytes,
        rates=Rates(**gb_per_s), domains=domains,
    )  # fmt: skip
    outlook = make_outlook(config, plan, conditions)
    if as_json:
        print_json({**plan.to_json(), "outlook": outlook.to_json()})
        return
    typer.echo("\n".join([*_lines(plan), "", *_outlook(outlook)]))


def _lines(plan: CapacityPlan) -> list[str]:
    memory = plan.memory
    total = plan.nodes * plan.ranks_per_node * plan.shard_bytes
    return [
        f"{plan.nodes} nodes x {plan.ranks_per_node} ranks, {decimal(plan.shard_bytes)} each: {decimal(total)} a save",
        f"memory of each node   {decimal(memory.total_bytes)}: {memory.slots} slots for its own shards "
        f"({decimal(memory.own_bytes)}), as many for redundancy ({decimal(memory.redundancy_bytes)})",
        f"redundancy            {_scheme(plan)}",
        f"survives in memory    {_survives(plan.losses)}",
        f"over the wire         {decimal(plan.wire_bytes)} sent by each node for each save{_seconds(plan.protect_s)}",
        *map(_tier, plan.flushes),
    ]


def _outlook(outlook: Outlook) -> list[str]:
    mean_h = outlook.mean_s_between_failures / 3600
    lines = [
        f"failures              one every {mean_h:,.1f} h ({outlook.failures})",
        f"time that is training {outlook.ratio:.2%} (ETTR) with the job file's cadence, {outlook.best_ratio:.2%} with "
        "the best",
    ]
    for tier in outlook.tiers:
        now = "auto" if tier.is_auto else f"{tier.every_steps} steps"
        traffic = f", {decimal(int(tier.bytes_per_month))} written a month" if tier.bytes_per_month else ""
        lines.append(
            f"{f'saves to {tier.tier}':<22}best every {tier.best_every_steps} steps "
            f"({tier.best_every_steps * outlook.step_s:,.0f} s); the job file has {now}{traffic}"
        )
    if outlook.s3:
        s3 = outlook.s3
        lines.append(
            f"s3 in a month         {s3.puts:,.0f} PUT and LIST, {s3.gets:,.0f} GET, {decimal(int(s3.stored_bytes))} "
            f"stored: {s3.usd:,.0f} dollars at the list prices of S3 Standard"
        )
    lines += [f"assumed               {text}" for text in outlook.assumed]
    lines += [f"watch                 {text}" for text in outlook.watch]
    return [*lines, *(f"CANNOT WORK           {text}" for text in outlook.cannot_work)]


def _scheme(plan: CapacityPlan) -> str:
    if plan.scheme == "none":
        return "none"
    sizes = " or ".join(map(str, plan.losses.set_sizes))
    sets = "one set" if plan.losses.sets == 1 else f"{plan.losses.sets} sets"
    return f"{plan.scheme}, {sets} of {sizes} nodes"


def _survives(losses: Losses) -> str:
    if not losses.any_nodes:
        return "no loss of a node; the step is then restored from a lower tier"
    plural = "s" if losses.any_nodes > 1 else ""
    text = f"the loss of any {losses.any_nodes} node{plural} at once"
    if losses.most_nodes > losses.any_nodes:
        text += f", of up to {losses.most_nodes} in different sets"
    if losses.any_switch is None:
        return f"{text}; of a switch: give --nodes-per-switch"
    return f"{text}; of any one switch: {'yes' if losses.any_switch else 'no'}"


def _tier(flush: FlushEstimate) -> str:
    where = "on each node" if flush.tier == "nvme" else "in all"
    return (
        f"{flush.tier:<22}{decimal(flush.node_bytes)} from each node for each save"
        f"{_seconds(flush.seconds)}; holds {decimal(flush.held_bytes)} {where} (keep {flush.keep}, and one in flight)"
    )


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f", {seconds:,.1f} s"
