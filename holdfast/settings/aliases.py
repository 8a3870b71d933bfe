"""Aliases: other names that a file may use for keys, from `also_named` in the keys' metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.settings.keys import keys_of

Path = tuple[str | int, ...]  # the keys and indices that lead to a value


class Aliases:
    """Replaces aliases by the keys' own names.

    Attributes:
        problems: an error for each alias that is given together with its key; from the alias's path to the text.
    """

    def __init__(self) -> None:
        self.problems: dict[Path, str] = {}
        self._written: dict[Path, str] = {}  # from the path of a key to the alias in the file

    def replaced(self, model: Any, data: Any, path: Path = ()) -> Any:
        """Return a model's data with each key under its own name.

        Args:
            model: the model; see `keys`.
            data: the data as in the file.
            path: the path of the data in the file.
        """
        if not isinstance(data, Mapping):
            return data
        keys = keys_of(model)
        names = {str(key.metadata["also_named"]): name for name, key in keys.items() if "also_named" in key.metadata}
        plain: dict[Any, Any] = {}
        for written, value in data.items():
            name: Any = names.get(written, written)
            if name != written and name in data:
                self.problems[(*path, written)] = (
                    f"{name}, another name of this key, is given too; leave one of them out"
                )
                continue
            if name != written:
                self._written[(*path, name)] = written
            section = keys[name].section if name in keys and not keys[name].is_list else None
            plain[name] = self.replaced(section, value, (*path, name)) if section else value
        return plain

    def as_written(self, path: Path) -> Path:
        """Return a path with the names that the file uses."""
        return tuple(self._written.get(path[: depth + 1], part) for depth, part in enumerate(path))
