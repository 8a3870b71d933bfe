"""Other names that a file may use for keys: `also_named` in their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lifecycle.settings.keys import keys_of

Path = tuple[str | int, ...]  # the keys and indices that lead to a value


class Aliases:
    """Puts a key's own name in an alias's place.

    Attributes:
        problems: an alias that is given together with its key, by path.
    """

    def __init__(self) -> None:
        self.problems: dict[Path, str] = {}
        self._written: dict[Path, str] = {}  # by the path of the key

    def replaced(self, model: Any, data: Any, path: Path = ()) -> Any:
        """The data of a model, with each key under its own name."""
        if not isinstance(data, Mapping):
            return data
        keys = keys_of(model)
        names = {str(key.metadata["also_named"]): name for name, key in keys.items() if "also_named" in key.metadata}
        plain: dict[Any, Any] = {}
        for written, value in data.items():
            name: Any = names.get(written, written)
            if name != written and name in data:
                self.problems[(*path, written)] = f"{name}, which is the same key, is given too; leave one of them out"
                continue
            if name != written:
                self._written[(*path, name)] = written
            section = keys[name].section if name in keys and not keys[name].is_list else None
            plain[name] = self.replaced(section, value, (*path, name)) if section else value
        return plain

    def as_written(self, path: Path) -> Path:
        """A path with the aliases that the file uses."""
        return tuple(self._written.get(path[: depth + 1], part) for depth, part in enumerate(path))
