"""`holdfast ckpt plan`: the memory, storage and bandwidth that checkpoints need, and the losses they survive."""

from __future__ import annotations

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.filesize import decimal

from ckpt.capacity import CapacityPlan, FlushEstimate, Losses, Rates, make_plan
from ckpt.cli.output import print_json
from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError

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
    nodes_per_switch: int | None, as_json: bool, **gb_per_s: float | None,
) -> None:  # fmt: skip
    """Prints the plan.

    Args:
        state, shard: size of the whole state or of each rank's shard, as text; exactly one of the two.
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
    print_json(plan.to_json()) if as_json else typer.echo("\n".join(_lines(plan)))


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
        f"{flush.tier:<22}{decimal(flush.node_bytes)} from each node every {flush.every_steps} steps"
        f"{_seconds(flush.seconds)}; holds {decimal(flush.held_bytes)} {where} (keep {flush.keep}, and one in flight)"
    )


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f", {seconds:,.1f} s"
