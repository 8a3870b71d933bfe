"""Exports a step to torch's own DCP directory or to one safetensors file, and imports a DCP directory."""

from __future__ import annotations

import io
import math
import mmap
import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, WriteItem

from ckpt.config import owner_of
from ckpt.convert.confined import Advance, Confinement, confined
from ckpt.convert.dcp_directory import DirectoryReader, load_object, size_of
from ckpt.convert.full_step import FullStep
from ckpt.errors import CheckpointError, ConfigError, CorruptError, StateError, one_line
from ckpt.format.checksums import checksums
from ckpt.format.json_values import encode
from ckpt.format.layout import Chunk, Layout, align
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.lines import lines_of
from ckpt.tiers.tier import Tier
from ckpt.worker.dcp_objects import Serialised
from ckpt.worker.load.match import DCP
from ckpt.worker.tensors import dtype_name, view_bytes

_IMPORTED = "import"  # run id of imported steps


def export_dcp(stored: FullStep, directory: Path, advance: Advance = lambda nbytes: None) -> None:
    """Writes a directory that torch.distributed.checkpoint.load can read. One tensor at a time is in memory.

    Raises:
        ConfigError: the directory is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory}: is not empty; choose another directory")
    shapes = {
        name: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")
        for name, tensor in stored.tensors.items()
    }
    with alone():
        dcp.save(
            {**stored.values, **shapes}, storage_writer=FileSystemWriter(directory), planner=_Planner(stored, advance)
        )


def export_safetensors(stored: FullStep, file: Path) -> None:
    """Writes all tensors, whole, to one file, with the step in its metadata. Other values cannot be stored there.

    Raises:
        ConfigError: the file exists, or the package safetensors is missing.
        StateError: safetensors has no such dtype.
    """
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise ConfigError(
            "export: the package safetensors is missing; pip install 'holdfast-hpc[safetensors]'"
        ) from None
    if file.exists():
        raise ConfigError(f"{file}: exists already; choose another name")
    temporary = file.with_name(f".{file.name}.tmp")
    tensors = {name: stored.full(name) for name in stored.tensors}
    try:
        save_file(tensors, temporary, metadata={"step": str(stored.save.step), "format": "pt"})
    except (KeyError, ValueError) as error:
        raise StateError(f"{file}: safetensors cannot store this state: {error}") from None
    os.replace(temporary, file)


def import_dcp(directory: Path, tier: Tier, step: int, advance: Advance = lambda nbytes: None) -> SaveId:
    """Imports a torch DCP directory as a committed step, for `dcp.load(state, storage_reader=ckpt.dcp_reader())`.

    No code in the directory is run, and no other file is read (ckpt.convert.dcp_directory). A child process reads it,
    with limits (ckpt.convert.confined). The whole state must fit into memory.

    Raises:
        ConfigError: not a DCP directory, or a damaged one; reading it takes more than the limits; or an object in it
            cannot be loaded or stored without pickle. The message names the directory, and the file or object.
            Also if the namespace has this step already.
        NamespaceError: the namespace belongs to another user.
    """
    if not (directory / ".metadata").is_file():
        raise ConfigError(f"{directory}: is not a torch DCP directory: it has no .metadata")
    tier.prepare()
    if any(save.step == step for save in tier.steps()):
        raise ConfigError(f"{tier.where}: holds step {step} already; choose another --step")
    descriptor = os.memfd_create("holdfast-import")
    try:
        try:
            largest = max(map(size_of, (directory / ".metadata", *directory.glob("*.distcp"))))
            found = confined(partial(_read_directory, directory, descriptor), str(directory), largest, advance)
        except (CheckpointError, OSError) as error:
            text = one_line(error)
            raise ConfigError(text if str(directory) in text else f"{directory}: {text}") from None
        layout = Layout.from_json(found)
        memory = mmap.mmap(descriptor, max(layout.nbytes, 1))
    finally:
        os.close(descriptor)
    owner = replace(owner_of(os.environ), script=str(directory))
    line = lines_of(tier).begin(None, secrets.token_hex(16), owner)
    save = SaveId(step=step, attempt=0, run_id=_IMPORTED, line=line)
    data = memoryview(memory)[: layout.nbytes]
    record = ShardRecord(
        save=save, namespace=tier.namespace, rank=0, world_size=1, layout=layout, blocks=checksums(data)
    )
    tier.begin(save)
    tier.commit(save, 1, tier.write_node(save, 0, [(record, data)]))
    advance(layout.nbytes)
    return save


def _read_directory(directory: Path, memory_fd: int, limits: Confinement) -> dict[str, Any]:
    """Reads the tensors into memory and returns the JSON form of the layout, with all other values in its tree."""
    torch.set_num_threads(1)  # a forked process has lost the threads of its parent's pool
    reader = DirectoryReader(directory)
    metadata = reader.read_metadata()
    chunks, nbytes = _lay_out(metadata.state_dict_metadata)
    limits.allow(nbytes)
    os.ftruncate(memory_fd, max(nbytes, 1))
    memory = mmap.mmap(memory_fd, max(nbytes, 1))
    state: dict[str, Any] = {c.key: view_bytes(memory, c.start, getattr(torch, c.dtype), c.sizes) for c in chunks}
    tensors = set(state)
    state.update({name: None for name in metadata.state_dict_metadata if name not in tensors})
    with alone():
        dcp.load(state, storage_reader=reader, planner=_Loader(limits.advance))
    objects = [[name, encode(value, (name,))] for name, value in state.items() if name not in tensors]
    mappings = encode(metadata.planner_data or {}, ("planner_data",))
    tree = {DCP: {"objects": objects, "mappings": mappings}}
    return Layout(chunks=chunks, tree=tree, nbytes=nbytes).to_json()


@contextmanager
def alone() -> Iterator[None]:
    """Suppresses torch's warning that it assumes a single process, which is true here; `no_dist` does so only since
    2.7. Raises the first failure of torch's collective error, which is no Exception, as it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        try:
            yield
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None


def _lay_out(entries: dict[str, Any]) -> tuple[list[Chunk], int]:
    chunks, start = [], 0
    for name, entry in entries.items():
        if isinstance(entry, TensorStorageMetadata):
            shape = tuple(entry.size)
            if sum(math.prod(chunk.sizes) for chunk in entry.chunks) < entry.size.numel():
                raise CorruptError(f"{name!s:.200}: the parts that are stored do not make up the whole tensor")
            nbytes = entry.size.numel() * entry.properties.dtype.itemsize
            chunks.append(
                Chunk(
                    key=name,
                    dtype=dtype_name(entry.properties.dtype),
                    shape=shape,
                    offsets=(0,) * len(shape),
                    sizes=shape,
                    start=start,
                    nbytes=nbytes,
                )
            )
            start += align(nbytes)
    return chunks, start


class _Loader(DefaultLoadPlanner):
    """Fills a flat state without running stored code, and reports progress."""

    def __init__(self, advance: Advance) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._advance = advance

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        self.state_dict[name] = load_object(name, value)
        self._advance(0)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self._advance(tensor.nbytes)


class _Planner(DefaultSavePlanner):
    """Reads each tensor of a stored step when torch writes it."""

    def __init__(self, stored: FullStep, advance: Advance) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._stored = stored
        self._advance = advance

    def create_local_plan(self) -> SavePlan:
        self.plan = replace(super().create_local_plan(), planner_data=self._stored.mappings)
        return self.plan

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if isinstance(object, Serialised):
            return io.BytesIO(object)
        return super().transform_object(write_item, object)

    def lookup_object(self, index: MetadataIndex) -> Any:
        if index.fqn not in self._stored.tensors:
            return super().lookup_object(index)
        tensor = self._stored.full(index.fqn)
        self._advance(tensor.nbytes)
        return tensor
