"""Reads of checkpoints' data in the directories behind tiers, whichever process reads, as the kernel reports them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from fnmatch import fnmatch
from pathlib import Path

DATA = "node-*.data"  # what a step's nodes have written; whoever writes one has it under another name
_ACCESS, _MOVED_TO, _CREATE, _OPEN = 0x1, 0x80, 0x100, 0x20  # inotify(7)
_HEAD = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class TierReads:
    """Notes each file with data that is read, from now on.

    Args:
        mapped: directories whose files are mapped as well as read: every opening counts.
        served: directories of a server, which opens files for other reasons: every read counts.
    """

    def __init__(self, *, mapped: Path, served: Path) -> None:
        self._notify = _libc.inotify_init1(os.O_CLOEXEC)
        assert self._notify >= 0, os.strerror(ctypes.get_errno())
        self._watched: dict[int, tuple[Path, int]] = {}
        self._files: list[Path] = []
        self._watch(mapped, _OPEN | _ACCESS)
        self._watch(served, _ACCESS)
        threading.Thread(target=self._follow, daemon=True).start()

    def files(self) -> list[Path]:
        """The files, one entry for each opening or read."""
        return list(self._files)

    def _watch(self, folder: Path, mask: int) -> None:
        """Watches a directory and those below it."""
        number = _libc.inotify_add_watch(self._notify, os.fsencode(folder), mask | _CREATE | _MOVED_TO)
        if number < 0:  # it has gone meanwhile
            return
        self._watched[number] = (folder, mask)
        with contextlib.suppress(FileNotFoundError):  # it has gone now
            for path in folder.iterdir():
                if path.is_dir():
                    self._watch(path, mask)

    def _follow(self) -> None:
        while True:
            data = os.read(self._notify, 1 << 16)
            while data:
                number, happened, _, length = _HEAD.unpack_from(data)
                name = data[_HEAD.size : _HEAD.size + length].rstrip(b"\0").decode()
                data = data[_HEAD.size + length :]
                folder, mask = self._watched[number]
                if happened & (_CREATE | _MOVED_TO) and (folder / name).is_dir():
                    self._watch(folder / name, mask)
                elif happened & mask and fnmatch(name, DATA):
                    self._files.append(folder / name)
