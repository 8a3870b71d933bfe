"""A torch DCP directory of a stranger: an import reads no other file, ends, and says in one line what is wrong."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from verb_kit import Printed, ckpt

from ckpt.convert import confined

pytestmark = pytest.mark.timeout(120)


def nested_key(depth: int = 45) -> bytes:
    """A pickle of a dict whose key is a pair of pairs of pairs: its hash takes 2 to the power of `depth` steps in C."""
    pairs = b"".join(b"q%ch%c\x86" % (level, level) for level in range(depth - 1))
    return b"\x80\x02}(K\x01K\x01\x86" + pairs + b"K\x01u."


def test_the_pickle_of_the_test_is_one() -> None:
    (key,) = pickle.loads(nested_key(5))
    assert key[0][1][0] == ((1, 1), (1, 1))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    dcp.save({"x": torch.ones(3), "o": {"note": "hello"}}, checkpoint_id=tmp_path / "in")
    return tmp_path / "in"


def edit(source: Path, change: Callable[[Metadata], object]) -> None:
    metadata = pickle.loads((source / ".metadata").read_bytes())
    change(metadata)
    (source / ".metadata").write_bytes(pickle.dumps(metadata))


def place_of(metadata: Metadata, name: str) -> Any:
    return next(place for index, place in metadata.storage_data.items() if index.fqn == name)


def imported(source: Path) -> Printed:
    return ckpt("import", source, source.parent / "shared", "--namespace", "ns", "--step", 5)


def refused(source: Path) -> str:
    """The one line of an import that fails."""
    result = imported(source)
    assert result.exit_code == 2 and len(result.messages) == 1, result.output
    assert ckpt("ls", source.parent / "shared").stdout.count("\n") <= 1
    return result.messages[0]


@pytest.mark.parametrize("way", ["up", "absolute", "below", "link", "nothing", "text"])
def test_no_other_file_is_read(source: Path, way: str) -> None:
    secret = source.parent / "secret.distcp"
    torch.save(torch.full((3,), 42.0), secret)
    (source / "sub").mkdir()
    name: Any = {"up": "../secret.distcp", "absolute": str(secret), "below": "sub/x", "link": "link", "nothing": "",
                 "text": 5}[way]  # fmt: skip
    if way == "link":
        (source / "link").symlink_to(secret)
    edit(source, lambda metadata: setattr(place_of(metadata, "x"), "relative_path", name))
    assert "symbolic link" in refused(source) if way == "link" else "expected one beside it" in refused(source)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "link"])
@pytest.mark.parametrize("file", ["data", "metadata"])
def test_what_is_no_regular_file_is_not_opened(source: Path, kind: str, file: str) -> None:
    (data,) = source.glob("*.distcp")
    path = data if file == "data" else source / ".metadata"
    path.rename(path.with_name("moved"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("moved")
    assert "regular file" in refused(source) or "is not a torch DCP directory" in refused(source)


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: setattr(place_of(metadata, "x"), "length", 3 << 30),
        lambda metadata: setattr(place_of(metadata, "x"), "length", -1),
        lambda metadata: setattr(place_of(metadata, "x"), "offset", 1 << 62),
        lambda metadata: setattr(place_of(metadata, "x"), "offset", "0"),
        lambda metadata: setattr(metadata, "storage_data", None),
        lambda metadata: setattr(metadata, "storage_data", {}),
        lambda metadata: setattr(metadata, "state_dict_metadata", []),
        lambda metadata: setattr(metadata.state_dict_metadata["x"], "size", torch.Size([-4])),
        lambda metadata: setattr(metadata.state_dict_metadata["x"], "size", torch.Size([1 << 60])),
        lambda metadata: setattr(metadata.state_dict_metadata["x"], "size", None),
        lambda metadata: setattr(metadata.state_dict_metadata["x"], "chunks", []),
        lambda metadata: metadata.state_dict_metadata.update(y=metadata.state_dict_metadata.pop("x")),
        lambda metadata: metadata.state_dict_metadata.update(z=BytesStorageMetadata()),
        lambda metadata: setattr(metadata, "planner_data", 7),
    ],
    ids=range(14),
)  # fmt: skip
def test_wrong_metadata_are_one_line(source: Path, change: Callable[[Metadata], object]) -> None:
    edit(source, change)
    if (result := imported(source)).exit_code:
        assert len(result.messages) == 1 and result.exit_code == 2, result.output


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(None, id="missing"),
        pytest.param(slice(0), id="empty"),
        pytest.param(slice(100), id="cut off"),
        pytest.param(slice(None, None, -1), id="reversed"),
    ],
)
@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
def test_a_damaged_file_is_named_and_the_source_is_kept(source: Path, file: str, kept: slice | None) -> None:
    damaged = source / file
    data = damaged.read_bytes()
    damaged.unlink()
    if kept is not None:
        damaged.write_bytes(data[kept])
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    message = refused(source)
    assert str(source) in message and "interrupted" not in message
    assert file in message or kept == slice(None, None, -1)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


@pytest.mark.parametrize("where", ["metadata", "object"])
def test_a_pickle_that_computes_for_ever_is_ended(source: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal's handler runs meanwhile, so the kernel has to end it."""
    monkeypatch.setattr(confined, "LIMIT_S", 1)
    if where == "metadata":
        (source / ".metadata").write_bytes(nested_key())
    else:
        (data,) = source.glob("*.distcp")
        with data.open("ab") as file:
            start = file.tell()
            file.write(legacy(nested_key()))
            end = file.tell()

        def change(metadata: Metadata) -> None:
            place = place_of(metadata, "o.note")
            place.offset, place.length = start, end - start

        edit(source, change)
    assert "more than 1 s of processor time" in refused(source)


def legacy(body: bytes) -> bytes:
    """An object as torch.save writes it without its zip file, with another pickle as its content."""
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    return b"".join(pickle.dumps(value, 2) for value in head) + body + pickle.dumps([], 2)


def test_an_object_that_takes_the_machines_memory_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "_MEMORY_BYTES", 1 << 28)

    def change(metadata: Metadata) -> None:
        metadata.planner_data = {"x": "a" * (1 << 20)}
        for level in range(25):
            metadata.planner_data = {f"a{level}": metadata.planner_data, f"b{level}": metadata.planner_data}

    edit(source, change)
    assert "MemoryError" in (line := refused(source)) or "too little memory" in line
