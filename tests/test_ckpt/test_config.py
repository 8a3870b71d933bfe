"""The checkpoint section and the environment: what is wrong is named, with what was expected."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ckpt.config import CheckpointConfig, Place, config_from_env
from ckpt.errors import ConfigError

ENV = {
    "HOLDFAST_RUN_ID": "local-1",
    "HOLDFAST_ATTEMPT": "3",
    "HOLDFAST_NODE": "n2",
    "HOLDFAST_NODES": "n1,n2",
    "HOLDFAST_RANKS_PER_NODE": "4",
    "HOLDFAST_RAM_DIR": "/dev/shm/x",
}


def test_a_full_section() -> None:
    config = CheckpointConfig.from_mapping(
        {
            "namespace": "gpt",
            "memory": {"every_steps": 2, "keep": 3},
            "redundancy": {"scheme": "none"},
            "shared": {"path": "/fsx", "every_steps": 20},
        }
    )
    assert (config.memory.every_steps, config.memory.keep, config.redundancy.scheme, config.slots) == (2, 3, "none", 4)
    assert config.shared is not None and (config.shared.path, config.shared.keep) == ("/fsx", 3)


def test_lower_tiers_nearest_first_each_with_a_slot_of_its_own() -> None:
    section = {
        "namespace": "gpt",
        "s3": {"url": "gs://my_bucket/prefix", "path_style": True, "region": None},
        "shared": {"path": "/fsx", "stripe_count": -1, "every_s": 600},
        "nvme": {"path": "/local", "rate_limit_bytes_s": 10**9},
    }
    config = CheckpointConfig.from_mapping(section)
    assert [(name, tier.every_steps, tier.keep) for name, tier in config.lower.items()] == [
        ("nvme", 50, 2), ("shared", 500, 3), ("s3", 1000, 3)
    ]  # fmt: skip
    assert config.slots == 2 + 3
    assert CheckpointConfig.from_json(json.loads(json.dumps(asdict(config)))) == config


def test_defaults() -> None:
    config = CheckpointConfig.from_mapping({"namespace": "gpt"})
    assert (config.memory.every_steps, config.memory.keep, config.redundancy.scheme, config.shared) == (
        10,
        2,
        "partner",
        None,
    )
    assert config.slots == 2


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "checkpoint.namespace: missing, expected letters"),
        ({"namespace": "../x"}, "checkpoint.namespace: got '../x'"),
        ({"namespace": ".x"}, "checkpoint.namespace"),
        ({"namespace": "x" * 129}, "128 at most"),
        ({"namespace": "x", "memry": {}}, r"checkpoint.memry: unknown key, did you mean memory\?"),
        ({"namespace": "x", "zzz": {}}, "checkpoint.zzz: unknown key, known keys: namespace, memory"),
        (
            {"namespace": "x", "memory": {"every_step": 1}},
            r"checkpoint.memory.every_step: unknown key, did you mean every_steps",
        ),
        ({"namespace": "x", "memory": {"every_steps": 0}}, "got 0, expected a whole number of at least 1, or auto"),
        ({"namespace": "x", "memory": {"every_steps": True}}, "got True"),
        ({"namespace": "x", "memory": {"every_steps": 1.5}}, "got 1.5"),
        (
            {"namespace": "x", "memory": {"keep": 1}},
            "checkpoint.memory.keep: got 1, expected a whole number, at least 2",
        ),
        ({"namespace": "x", "memory": 5}, "checkpoint.memory: got 5, expected an object"),
        ({"namespace": "x", "redundancy": {"scheme": "raid"}}, "got 'raid', expected 'none', 'partner', 'xor' or 'rs'"),
        ({"namespace": "x", "redundancy": {"group_size": 1}}, "redundancy.group_size: got 1, expected 2 to 32 nodes"),
        ({"namespace": "x", "redundancy": {"group_size": 33}}, "redundancy.group_size: got 33"),
        (
            {"namespace": "x", "redundancy": {"scheme": "rs", "parity": 8}},
            "redundancy.parity: got 8, expected less than group",
        ),
        ({"namespace": "x", "redundancy": {"scheme": "rs", "parity": 0}}, "redundancy.parity: got 0"),
        (
            {"namespace": "x", "redundancy": {"copies": 2, "group_size": 2}},
            "redundancy.copies: got 2, expected less than group",
        ),
        (
            {"namespace": "x", "redundancy": {"failure_domain": "rack"}},
            "failure_domain: got 'rack', expected 'node' or 'switch'",
        ),
        ({"namespace": "x", "shared": {}}, "checkpoint.shared.path: missing"),
        ({"namespace": "x", "shared": {"path": ""}}, "expected a string of printable characters"),
        ({"namespace": "x", "redundancy": {"scheme": "xor", "parity": 1}}, "parity: has no effect with scheme xor"),
        ({"namespace": "x", "redundancy": {"copies": 1, "parity": 1}}, "parity: has no effect with scheme partner"),
        ({"namespace": "x", "redundancy": {"scheme": "none", "group_size": 4}}, "group_size: has no effect with"),
        ({"namespace": "a b", "memry": 1}, "checkpoint.namespace: .*; checkpoint.memry: unknown key"),
        ({"namespace": "x", "shared": {"path": "/x", "keep": "3"}}, "checkpoint.shared.keep: got '3'"),
        ({"namespace": "x", "shared": {"path": "/x", "stripe_count": 0}}, "stripe_count: got 0"),
        ({"namespace": "x", "shared": {"path": "/x", "every_s": 0}}, "every_s: got 0"),
        ({"namespace": "x", "nvme": {}}, "checkpoint.nvme.path: missing"),
        ({"namespace": "x", "nvme": {"path": "local"}}, "checkpoint.nvme.path: got 'local', expected an absolute path"),
        ({"namespace": "x", "s3": {"url": "bucket/x"}}, "checkpoint.s3.url: got 'bucket/x', expected s3://bucket"),
        ({"namespace": "x", "s3": {"url": "s3://b u"}}, "checkpoint.s3.url"),
        ({"namespace": "x", "s3": {"url": "gs://b/x"}}, "a bucket's name has 3 to 63 characters"),
        ({"namespace": "x", "s3": {"url": "s3://my_bucket/x"}}, "checkpoint.s3.url"),
        ({"namespace": "x", "s3": {"url": "s3://bkt", "bucket_owner": 123456789012}}, "12 digits, in quotes"),
        ({"namespace": "x", "s3": {"url": "gs://bkt", "bucket_owner": "123456789012"}}, "has no effect for gs://bkt"),
        *(
            (
                {"namespace": "x", "s3": {"url": "s3://bkt", "endpoint_url": url}},
                "s3.endpoint_url: .*http:// or https://",
            )
            for url in ("minio:9000", "minio", "//minio:9000", "http:/minio", "https://", "ftp://minio", "http://a b")
        ),
        ({"namespace": "x", "s3": {"url": "s3://bkt", "path_style": "yes"}}, "got 'yes', expected a valid boolean"),
        ([], r"checkpoint: got \[\], expected a mapping of plain values"),
    ],
)
def test_a_wrong_section_names_the_key(section: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        CheckpointConfig.from_mapping(section)
    assert "\n" not in str(caught.value)


def test_the_place_of_a_process() -> None:
    place = Place.from_env(ENV)
    assert (place.node_rank, place.world_size, place.attempt) == (1, 8, 3)
    assert place.socket_path == Path("/dev/shm/x/agent-3.sock")
    assert place.domains == () and Place.from_env({**ENV, "HOLDFAST_DOMAINS": "s1,s2"}).domains == ("s1", "s2")
    without_node = {key: value for key, value in ENV.items() if key != "HOLDFAST_NODE"}
    assert Place.from_env({**without_node, "SLURMD_NODENAME": "n1"}).node_rank == 0


def test_holders_come_behind_the_nodes_that_train_and_bring_no_ranks() -> None:
    place = Place.from_env({**ENV, "HOLDFAST_HOLDERS": "n3,n4", "HOLDFAST_NODE": "n4"})
    assert (place.members, place.node_rank, place.is_holder) == (("n1", "n2", "n3", "n4"), 3, True)
    assert place.world_size == 2 * place.ranks_per_node
    assert not Place.from_env({**ENV, "HOLDFAST_HOLDERS": ""}).holders


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"HOLDFAST_RUN_ID": None}, "HOLDFAST_RUN_ID is not set"),
        ({"HOLDFAST_RUN_ID": "a/b"}, "HOLDFAST_RUN_ID='a/b'"),
        ({"HOLDFAST_ATTEMPT": "x"}, "HOLDFAST_ATTEMPT='x'"),
        ({"HOLDFAST_ATTEMPT": "-1"}, "HOLDFAST_ATTEMPT='-1'"),
        ({"HOLDFAST_RANKS_PER_NODE": "0"}, "HOLDFAST_RANKS_PER_NODE='0'"),
        ({"HOLDFAST_NODE": "n9"}, "HOLDFAST_NODE='n9' is not in HOLDFAST_NODES=n1,n2"),
        ({"HOLDFAST_NODES": "n1,n2,n2"}, "names a node twice"),
        ({"HOLDFAST_HOLDERS": "n3,n2"}, "HOLDFAST_NODES=n1,n2 HOLDFAST_HOLDERS=n3,n2 names a node twice"),
        ({"HOLDFAST_HOLDERS": "n3", "HOLDFAST_NODE": "n4"}, "is not in HOLDFAST_NODES=n1,n2 HOLDFAST_HOLDERS=n3"),
        ({"HOLDFAST_DOMAINS": "s1"}, "HOLDFAST_DOMAINS names 1 domains, expected one for each of 2"),
        ({"HOLDFAST_RAM_DIR": "shm"}, "HOLDFAST_RAM_DIR='shm'"),
    ],
)
def test_a_wrong_environment_names_the_variable(change: dict[str, str | None], message: str) -> None:
    env = {key: value for key, value in {**ENV, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        Place.from_env(env)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "HOLDFAST_CHECKPOINT is not set"),
        ("{", "HOLDFAST_CHECKPOINT is not JSON"),
        ("[]", "checkpoint: not a configuration as JSON"),
        ("{}", "checkpoint: not a configuration as JSON: .*namespace"),
        (json.dumps({"namespace": "x", "memory": {"kept": 0}}), "checkpoint: not a configuration as JSON: .*kept"),
        (json.dumps({"namespace": "x", "memory": [1]}), "checkpoint: not a configuration as JSON"),
    ],
)
def test_a_wrong_section_in_the_environment(text: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_env({} if text is None else {"HOLDFAST_CHECKPOINT": text})
