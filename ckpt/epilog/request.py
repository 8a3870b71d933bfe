"""What a run requests from its nodes for the time after its end: `on_job_end.json` in the memory directory.

The file is written by the user, and read by a process of the same user.
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

# How to find logs, buckets and keys. Keys themselves are not stored, so a bucket that needs keys from the environment
# cannot be reached.
_KEPT = (
    *("HOME", "HOLDFAST_LOG_DIR", "XDG_STATE_HOME", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE"),
    *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED"),
)
_BOOSTER = "HOLDFAST_ALLOCATION"  # set on a booster's nodes

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run's request, as the agent of its last attempt on this node has written it."""

    run_id: str
    attempt: int
    node: str
    nodes: int  # number of nodes
    config: CheckpointConfig
    environment: Mapping[str, str]


def leave_request(place: Place, config: CheckpointConfig, env: Mapping[str, str]) -> None:
    """Writes this attempt's request. Removes an older request if no tier has `on_job_end` any more.

    Booster nodes and leaving nodes have no request: the run continues without them, and its other nodes have their
    shards.
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
        log.warning("%s: %s: nothing will be flushed from here at the job's end", path, error.strerror)


def read_request(directory: Path) -> Request:
    """The request in a memory directory.

    Raises:
        FileNotFoundError: there is no request.
        CorruptError, ConfigError: the request is malformed.
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
