"""What a job asks for in GPUs, however it says so."""

from __future__ import annotations

import pytest

from launcher import gpus


@pytest.mark.parametrize(
    ("gpus_per_node", "gres", "requested", "count", "option"),
    [
        (None, None, 0, 0, None),
        (0, None, 0, 0, None),
        (8, None, 8, 8, 8),
        ("8", None, 8, 8, 8),
        ("a100:8", None, "a100:8", 8, "a100:8"),
        (None, "gpu", 1, 1, None),
        (None, "gpu:8", 8, 8, None),
        (None, "gpu:a100:8", "a100:8", 8, None),
        (None, "gpu:a100", "a100:1", 1, None),
        (None, "gpu:a100:2,gpu:h100:6", 8, 8, None),
        (None, "lustre:1", 0, 0, None),
        (None, "gpu:0", 0, 0, None),
        (8, "lustre:1", 8, 8, 8),
        (8, "gpu:8, lustre:1", 8, 8, None),
        (64, None, 64, 64, 64),
    ],
)
def test_gpus_are_read_the_same_way_wherever_they_are_asked_for(
    gpus_per_node: int | str | None, gres: str | None, requested: int | str, count: int, option: int | str | None
) -> None:
    assert gpus.requested(gpus_per_node, gres) == requested
    assert gpus.count(requested) == count
    assert gpus.option(requested, gres) == option


@pytest.mark.parametrize(
    ("gpus_per_node", "gres", "message"),
    [
        (-1, None, "gpus_per_node: got -1"),
        (65, None, "gpus_per_node: got 65"),
        (True, None, "gpus_per_node: got True"),
        ("a100:0", None, "gpus_per_node: got 'a100:0'"),
        ("a100", None, "gpus_per_node: got 'a100'"),
        (None, "gpu:65", "slurm.gres: got 65"),
        (4, "gpu:8", "gpus_per_node: got 4, and slurm.gres asks for gpu:8"),
        (8, "gpu:a100:8", "gpus_per_node: got 8, and slurm.gres asks for gpu:a100:8"),
    ],
)
def test_requests_that_contradict_or_make_no_sense_are_refused(
    gpus_per_node: int | str | None, gres: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gpus.requested(gpus_per_node, gres)


@pytest.mark.parametrize(
    ("total", "nodes", "each"),
    [(16, 2, "8"), ("16", 2, "8"), ("a100:16", 2, "a100:8"), (3, 2, None), ("all", 2, None), ("", 1, None)],
)
def test_gpus_of_all_nodes_together_are_divided_where_they_can_be(
    total: int | str, nodes: int, each: str | None
) -> None:
    assert gpus.each_of(total, nodes) == each
