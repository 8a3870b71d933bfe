"""Steps leave for torch's own formats, and come from them, with every element where it was."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections import deque
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorProperties
from trainer_kit import solo_namespace
from verb_kit import Printed, ckpt

from ckpt import Checkpointer
from ckpt.convert.full_step import read_stored
from ckpt.format.checksums import checksums
from ckpt.format.layout import Chunk, Layout
from ckpt.format.rank_grid import Spread
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.posix import SharedTier

SAVE = SaveId(step=7, attempt=0, run_id="run")


@pytest.fixture(autouse=True)
def _arguments_of_the_oldest_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 has no `no_dist`."""
    save, load = dcp.save, dcp.load

    def save_2_6(state_dict: Any, *, checkpoint_id: Any = None, storage_writer: Any = None, planner: Any = None) -> Any:
        return save(state_dict, checkpoint_id=checkpoint_id, storage_writer=storage_writer, planner=planner)

    def load_2_6(state_dict: Any, *, checkpoint_id: Any = None, storage_reader: Any = None, planner: Any = None) -> Any:
        return load(state_dict, checkpoint_id=checkpoint_id, storage_reader=storage_reader, planner=planner)

    monkeypatch.setattr(dcp, "save", save_2_6)
    monkeypatch.setattr(dcp, "load", load_2_6)


def run(*arguments: str | Path) -> Printed:
    return ckpt(*arguments)


def training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(2, 5, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    return model, optimizer


def sharded(tier: SharedTier) -> torch.Tensor:
    """A committed step of two ranks: one DTensor in uneven halves, a plain tensor and a value of each rank."""
    whole = torch.arange(35, dtype=torch.float32).view(7, 5)
    halves = Spread(shape=(2,), ranks=range(2), splits=(0,))
    places, start = [], 0
    tier.prepare()
    for rank, rows in enumerate((4, 3)):
        data = whole[start : start + rows].numpy().tobytes() + bytes([rank] * 8)
        chunks = (
            Chunk(key="w", dtype="float32", shape=(7, 5), offsets=(start, 0), sizes=(rows, 5), start=0,
                  nbytes=rows * 20, spread=0),
            Chunk(key="p", dtype="uint8", shape=(8,), offsets=(0,), sizes=(8,), start=rows * 20, nbytes=8),
        )  # fmt: skip
        tree = {"w": {"#dtensor": "w"}, "p": {"#tensor": "p"}, "seed": rank}
        record = ShardRecord(
            save=SAVE, namespace="ns", rank=rank, world_size=2,
            layout=Layout(chunks=chunks, tree=tree, nbytes=len(data), spreads=(halves,)),
            blocks=checksums(memoryview(data)),
        )  # fmt: skip
        places += tier.write_node(SAVE, rank, [(record, memoryview(data))])
        start += rows
    tier.commit(SAVE, 2, places)
    return whole


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, torch.nn.Module, torch.optim.Optimizer]:
    """A step that a real Checkpointer has flushed."""
    model, optimizer = training()
    with solo_namespace() as namespace:
        with Checkpointer(
            config={"namespace": namespace, "shared": {"path": tmp_path / "shared", "every_steps": 1}}
        ) as ckpt:
            pair = (torch.ones(2), deque([torch.full((3,), 2.0)]))
            ckpt.save(3, {"model": model, "optimizer": optimizer, "epoch": 9, "pair": pair})
        yield tmp_path / "shared" / namespace, model, optimizer


def test_torch_loads_the_exported_directory_by_itself(saved: Any, tmp_path: Path) -> None:
    path, model, optimizer = saved
    result = run("export", path, "--step", 3, "--dcp", tmp_path / "out")
    assert result.exit_code == 0, result.output
    fresh, fresh_optimizer = training()
    pair = [torch.zeros(2), [torch.zeros(3)]]
    state = {"model": fresh.state_dict(), "optimizer": fresh_optimizer.state_dict(), "epoch": 0, "pair": pair}
    for tensor in state["model"].values():
        tensor.zero_()
    dcp.load(state, storage_reader=dcp.FileSystemReader(tmp_path / "out"))
    assert state["epoch"] == 9 and pair[0].tolist() == [1, 1] and pair[1][0].tolist() == [2, 2, 2]
    assert all(torch.equal(state["model"][name], value) for name, value in model.state_dict().items())
    fresh_optimizer.load_state_dict(state["optimizer"])
    for now, then in zip(fresh_optimizer.state.values(), optimizer.state.values(), strict=True):
        assert all(torch.equal(now[name], then[name]) for name in ("exp_avg", "exp_avg_sq", "step"))


def test_safetensors_holds_every_tensor_whole(saved: Any, tmp_path: Path) -> None:
    from safetensors import safe_open

    path, model, _ = saved
    result = run("export", path, "--safetensors", tmp_path / "out.safetensors")
    assert result.exit_code == 0 and "values that are not tensors" in result.stdout
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata()["step"] == "3"
        for name, value in model.state_dict().items():
            assert torch.equal(file.get_tensor(f"model.{name}"), value)


@pytest.mark.parametrize("rank", [0, 1])
def test_dtensors_are_put_together_and_the_rest_is_one_ranks(tmp_path: Path, rank: int) -> None:
    from safetensors.torch import load_file

    whole = sharded(SharedTier(tmp_path, "ns"))
    assert run("export", tmp_path, "--safetensors", tmp_path / "f", "--rank", rank).exit_code == 0
    found = load_file(tmp_path / "f")
    assert torch.equal(found["w"], whole) and found["p"].tolist() == [rank] * 8
    assert run("export", tmp_path, "--dcp", tmp_path / "d", "--rank", rank).exit_code == 0
    state = {"w": torch.zeros(7, 5), "p": torch.zeros(8, dtype=torch.uint8), "seed": -1}
    dcp.load(state, checkpoint_id=tmp_path / "d")
    assert torch.equal(state["w"], whole) and state["p"].tolist() == [rank] * 8 and state["seed"] == rank


def test_a_torch_directory_comes_in_and_goes_out_again(tmp_path: Path) -> None:
    model, optimizer = training()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "note": "hello"}
    dcp.save(state, checkpoint_id=tmp_path / "in")
    with solo_namespace() as namespace:
        result = run("import", tmp_path / "in", tmp_path / "shared", "--namespace", namespace, "--step", 5)
        assert result.exit_code == 0, result.output
        assert run("verify", tmp_path / "shared").exit_code == 0
        target = {"model": {k: torch.zeros_like(v) for k, v in state["model"].items()}, "note": ""}
        with Checkpointer(namespace=namespace, shared=tmp_path / "shared") as ckpt:
            assert ckpt.newest_step == 5
            dcp.load(target, storage_reader=ckpt.dcp_reader())
    assert target["note"] == "hello"
    assert all(torch.equal(target["model"][name], value) for name, value in state["model"].items())
    assert run("export", tmp_path / "shared", "--dcp", tmp_path / "out").exit_code == 0
    again = {"model": {k: torch.zeros_like(v) for k, v in state["model"].items()}, "note": ""}
    dcp.load(again, checkpoint_id=tmp_path / "out")
    assert all(torch.equal(again["model"][name], value) for name, value in state["model"].items())


def test_a_program_reads_what_was_exported_and_imported(tmp_path: Path) -> None:
    sharded(SharedTier(tmp_path / "here", "ns"))
    step = {"namespace": "ns", "step": 7, "attempt": 0}
    for kind, tensors, left_out in (("--dcp", 2, 0), ("--safetensors", 2, 1)):
        result = run("export", tmp_path / "here", kind, tmp_path / kind, "--json")
        expected = {**step, "tensors": tensors, "values_left_out": left_out, "to": str(tmp_path / kind)}
        assert json.loads(result.stdout) == expected and result.stderr == ""
    there = tmp_path / "there"
    result = run("import", tmp_path / "--dcp", there, "--namespace", "ns", "--step", "9", "--json")
    (line,) = {save.line.id for save in SharedTier(there, "ns").steps()}
    place = {"to": str(SharedTier(there, "ns").where), "line": line, "aside": []}
    assert json.loads(result.stdout) == {**step, "step": 9, **place}


def test_a_step_is_imported_once(tmp_path: Path) -> None:
    dcp.save({"x": torch.ones(3)}, checkpoint_id=tmp_path / "in")
    arguments = ("import", tmp_path / "in", tmp_path / "shared", "--namespace", "ns", "--step", 5)
    assert run(*arguments).exit_code == 0
    result = run(*arguments)
    assert result.exit_code == 2 and "holds step 5 already" in result.stderr


class Runs:
    """Unpickles as a call."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call = call, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("kind", ["metadata", "attribute", "object", "other"])
def test_an_import_runs_nothing_of_what_is_in_the_directory(tmp_path: Path, kind: str) -> None:
    mark, source = tmp_path / "mark", tmp_path / "in"
    stored = {"metadata": None, "attribute": None, "object": Runs(os.mkdir, str(mark)), "other": SimpleNamespace(a=1)}[
        kind
    ]
    dcp.save({"x": torch.ones(3), "o": {"stored": stored}}, checkpoint_id=source)
    if kind in ("metadata", "attribute"):
        call = Runs(os.mkdir, str(mark)) if kind == "metadata" else Runs(getattr, Path, "home")
        (source / ".metadata").write_bytes(pickle.dumps(call))
    result = run("import", source, tmp_path / "shared", "--namespace", "ns", "--step", 5)
    assert result.exit_code in (1, 2) and len(result.messages) == 1 and not mark.exists()
    expected = {
        "metadata": "is not torch metadata: it names posix.mkdir, which is not one of torch's metadata classes",
        "attribute": "is not torch metadata: it asks for an attribute 'home'",
        "object": "o.stored: holds an object that only the code it names could make (posix.mkdir)",
        "other": "o.stored: holds an object that only the code it names could make (types.SimpleNamespace)",
    }
    assert expected[kind] in result.stderr


def test_what_torch_stores_of_layouts_dtypes_and_values_is_imported(tmp_path: Path) -> None:
    values = {
        "when": datetime(2026, 1, 2),
        "few": frozenset({1}),
        "r": range(3),
        "c": 1j,
        "p": Path("a"),
        "dtype": torch.bfloat16,
        "size": torch.Size([2]),
    }
    state = {"x": torch.ones(2, 3, dtype=torch.complex64), "y": torch.ones(1, 2, 3, 4), "values": values}
    state["y"] = state["y"].to(memory_format=torch.channels_last)
    dcp.save(state, checkpoint_id=tmp_path / "in")
    result = run("import", tmp_path / "in", tmp_path / "shared", "--namespace", "ns", "--step", 5)
    assert result.exit_code == 0, result.output
    (save,) = SharedTier(tmp_path / "shared", "ns").steps()
    found = read_stored(SharedTier(tmp_path / "shared", "ns"), save)
    assert found.values == {f"values.{name}": value for name, value in values.items()}
    assert all(torch.equal(found.full(name), state[name]) for name in ("x", "y"))


def test_a_directory_of_a_newer_torch_is_imported(tmp_path: Path) -> None:
    """torch 2.15 stores the strides of each tensor. An older torch itself cannot read them."""
    written = TensorProperties.__getstate__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorProperties, "__getstate__", lambda properties: (*written(properties), (1, 3)))
        dcp.save({"x": torch.arange(6.0).reshape(3, 2).t()}, checkpoint_id=tmp_path / "in")
    with pytest.raises(ValueError, match="unpack"):
        pickle.loads((tmp_path / "in" / ".metadata").read_bytes())
    result = run("import", tmp_path / "in", tmp_path / "shared", "--namespace", "ns", "--step", 5)
    assert result.exit_code == 0, result.output
    (save,) = SharedTier(tmp_path / "shared", "ns").steps()
    found = read_stored(SharedTier(tmp_path / "shared", "ns"), save)
    assert torch.equal(found.full("x"), torch.arange(6.0).reshape(3, 2).t())


def test_torch_does_not_warn_of_what_was_meant(tmp_path: Path) -> None:
    sharded(SharedTier(tmp_path, "ns"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert run("export", tmp_path, "--dcp", tmp_path / "out").exit_code == 0
        assert run("import", tmp_path / "out", tmp_path / "ns", "--step", "8").exit_code == 0
    assert not [warning for warning in warned if "torch.distributed is disabled" in str(warning.message)]


def test_an_import_into_a_directory_that_is_not_there_says_how_it_is_made(tmp_path: Path) -> None:
    dcp.save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "in")
    result = run("import", tmp_path / "in", tmp_path / "new", "--step", "3")
    assert result.exit_code == 2 and "--namespace NAME creates it" in result.stderr
    assert run("import", tmp_path / "in", tmp_path / "new", "--step", "3", "--namespace", "a").exit_code == 0


def test_nothing_is_exported_from_bytes_that_do_not_verify(tmp_path: Path) -> None:
    tier = SharedTier(tmp_path, "ns")
    sharded(tier)
    with open(tier.data_path(SAVE, "node-00001.data"), "r+b") as file:
        file.write(b"\xff")
    result = run("export", tmp_path, "--dcp", tmp_path / "out")
    assert result.exit_code == 1 and "does not match" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["ns"], ["ns", "--dcp", "a", "--safetensors", "b"], ["ns", "--step", "99", "--dcp", "a"],
                  ["missing", "--dcp", "a"], ["ns", "--dcp", "full"], ["ns", "--safetensors", "file"],
                  ["ns", "--dcp", "a", "--rank", "2"]],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sharded(SharedTier(tmp_path, "ns"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    result = run("export", *arguments)
    assert result.exit_code == 2 and len(result.messages) == 1, result.output
