"""The namespace that a path on a command line names."""

from __future__ import annotations

from pathlib import Path

from ckpt.errors import ConfigError
from ckpt.record.shard import SaveId
from ckpt.tiers.mark import MARK
from ckpt.tiers.posix import SharedTier, read_mark


def open_namespace(path: Path, namespace: str | None = None) -> SharedTier:
    """The shared tier at a path that is a namespace's folder, or the directory above it.

    Args:
        path: an existing directory.
        namespace: which one, where `path` holds several.

    Raises:
        ConfigError: there is none, or there are several and none is named.
        NamespaceError: its mark cannot be read.
    """
    if (path / MARK).is_file():
        folders = [path]
    elif path.is_dir():
        folders = sorted(mark.parent for mark in path.glob(f"*/{MARK}"))
    else:
        raise ConfigError(f"{path}: is no directory")
    marks = [read_mark(folder) for folder in folders]
    if local := [mark.node for mark in marks if mark.node is not None]:
        raise ConfigError(f"{path}: holds only the shards of node {local[0]}; give a shared checkpoint directory")
    tiers = [SharedTier(folder.parent, str(mark.namespace)) for folder, mark in zip(folders, marks, strict=True)]
    found = [tier for tier in tiers if namespace in (None, tier.namespace)]
    if len(found) != 1 or found[0].folder != folders[tiers.index(found[0])]:
        names = ", ".join(tier.namespace for tier in tiers) or "none"
        wanted = "one checkpoint namespace" if namespace is None else f"namespace {namespace}"
        raise ConfigError(f"{path}: expected {wanted}, found {names}; give the folder of one")
    return found[0]


def committed_step(tier: SharedTier, step: int | None) -> SaveId:
    """The newest committed save of a step; of all steps when None. Raises ConfigError when there is none."""
    for save in tier.steps():
        if step in (None, save.step):
            return save
    what = "committed step" if step is None else f"committed step {step}"
    raise ConfigError(f"{tier.folder}: holds no {what}; look with `holdfast ckpt ls`")
