"""What a run asks of its nodes for the time after its end: `on_job_end.json` in the memory directory.

It is the user's own word, read by a process of that user.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ckpt.config import CheckpointConfig, Place
from ckpt.errors import CorruptError
from ckpt.format.atomic_files import dump_json, durable_write, read_regular

NAME = "on_job_end.json"
_MAX_BYTES = 1 << 22

# How to find logs, buckets and keys. Keys themselves are not written down: a bucket that is reached by them alone stays
# out of reach.
_KEPT = (
    *("HOME", "HOLDFAST_LOG_DIR", "XDG_STATE_HOME", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"),
    *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED"),
)
_BOOSTER = "HOLDFAST_ALLOCATION"  # set on its nodes

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run's wish, as the agent of its last attempt on this node left it."""

    run_id: str
    attempt: int
    node: str
    nodes: int  # how many there were
    config: CheckpointConfig
    environment: Mapping[str, str]


def leave_request(place: Place, config: CheckpointConfig, env: Mapping[str, str]) -> None:
    """Writes the wish of this attempt; takes an older one back where no tier asks any more.

    On a booster's node, or one that is about to leave, nothing is wished: the run goes on without it, and its other
    nodes have what this one held.
    """
    value = {
        "run_id": place.run_id, "attempt": place.attempt, "node": place.node, "nodes": len(place.nodes),
        "checkpoint": asdict(config), "environment": {name: env[name] for name in _KEPT if name in env},
    }  # fmt: skip
    path = place.ram_dir / NAME
    try:
        if config.on_job_end and _BOOSTER not in env and not place.is_holder:
            durable_write(path, dump_json(value), sync=False)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: %s: nothing will be done here at the job's end", path, error.strerror)


def read_request(directory: Path) -> Request:
    """The wish in a memory directory.

    Raises:
        FileNotFoundError: there is none.
        CorruptError, ConfigError: it is none that we could have written.
    """
    path = directory / NAME
    try:
        value = json.loads(read_regular(path, _MAX_BYTES))
        environment = {name: str(value["environment"][name]) for name in _KEPT if name in value["environment"]}
        request = Request(
            run_id=str(value["run_id"]), attempt=int(value["attempt"]), node=str(value["node"]),
            nodes=int(value["nodes"]), config=CheckpointConfig.from_json(value["checkpoint"]),
            environment=environment,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptError(f"{path}: missing or malformed field: {error}") from None
    if not request.node or "/" in request.node or not request.node.isprintable():
        raise CorruptError(f"{path}: node {request.node!r:.60}, expected a node's name")
    return request
