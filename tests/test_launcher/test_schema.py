"""What the models say of themselves: the reference pages, the schema and the examples are true to them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.settings.keys import Key, keys_of
from holdfast.settings.schema import sections_of
from holdfast.settings.validation import validated
from holdfast.settings.yaml_file import parse_yaml
from launcher.cli import main
from launcher.cli.reference import pages
from launcher.cli.schema import TITLES, model_of
from launcher.job.elastic import Elastic

ROOT = Path(__file__).resolve().parents[2]
NEEDS: dict[str, dict[str, Any]] = {  # what an example of a key is valid with
    "copies": {"scheme": "partner"}, "parity": {"scheme": "rs"}, "command": {"replace": "command"},
}  # fmt: skip
NEEDS_IN = {"Notify": {"webhook": "/x"}, "Metrics": {"textfile": "/x"}}  # the same for all keys of a section
NEEDS |= {name: {"min_nodes": 2} for name in keys_of(Elastic) if name not in ("min_nodes", "sizes")}


def example_of(key: Key) -> dict[str, Any]:
    return {key.name: parse_yaml(str(key.metadata["example"]).encode(), key.name)}


def test_the_reference_is_the_models() -> None:
    stale = [name for name, text in pages() if (ROOT / "docs/reference" / name).read_text() != text]
    assert not stale, f"{stale}: run `make docs`"


@pytest.mark.parametrize("name", TITLES)
def test_every_key_has_a_description_and_an_example_that_is_valid(name: str) -> None:
    for section in sections_of(model_of(name)):
        keys = keys_of(section)
        always = [example_of(key) for key in keys.values() if not key.section and key.name in ("name", "namespace")]
        always += [example_of(key) for key in keys.values() if key.is_required]
        for key in keys.values():
            assert key.metadata["description"].endswith("."), key.name
            if key.section or key.name == "sha256":  # a sum of 64 digits says no more than four of them
                continue
            needs = NEEDS_IN.get(section.__name__, NEEDS.get(key.name, {}))
            needed = {other: value for other, value in needs.items() if other in keys}
            given = {**needed, **example_of(key)}
            for each in always:
                given = each | given
            validated(section, given, source=f"{section.__name__}.{key.name}")


@pytest.mark.parametrize("name", TITLES)
def test_the_schema_knows_every_key(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--of", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    for section in sections_of(model_of(name)):
        found = schema if section is model_of(name) else schema["$defs"][section.__name__]
        keys = keys_of(section)
        aliases = {key.metadata["also_named"] for key in keys.values() if "also_named" in key.metadata}
        assert [name for name in found["properties"] if name not in aliases] == list(keys)
        assert aliases <= found["properties"].keys() and found["additionalProperties"] is False
        assert all("description" in entry for entry in found["properties"].values())
    assert sys.executable not in json.dumps(schema)


def test_editors_find_the_schema_of_every_example() -> None:
    examples = [path for path in ROOT.glob("examples/**/*.yaml") if "script:" in path.read_text()]
    assert examples
    for path in examples:
        found = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text())
        assert found and (path.parent / found[1]).is_file(), path


def test_help_does_not_wait_for_the_validator() -> None:
    code = "import sys, launcher.cli; launcher.cli.main(['--help']); print([*{'pydantic', 'yaml'} & {*sys.modules}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"
