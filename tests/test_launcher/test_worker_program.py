"""What workers run, as far as it can be seen before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.job.jobfile import JobSpec
from launcher.job.program import module_file, script_problem
from launcher.runner.attempt import _preload


@pytest.mark.parametrize(
    ("source", "is_loaded"),
    [
        ("model = torch.compile(model)", True),
        ("@torch.compile\ndef step(): ...", True),
        ("TrainingArguments('out', torch_compile=True)", True),
        ("model.compile()", True),
        ("import re\nre.compile('x')", False),
    ],
)
def test_the_compiler_is_loaded_in_advance_where_the_source_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, is_loaded: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "pkg/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    wanted = [str(tmp_path), *(["torch._inductor.compile_fx"] if is_loaded else []), "json"]
    for program in ({"script": "train.py"}, {"module": "pkg"}):
        assert _preload(JobSpec.from_mapping({**program, "preload": ["json"]}, tmp_path)) == wanted
    assert _preload(JobSpec.from_mapping({"name": "a", "command": ["x"]}, tmp_path)) == [str(tmp_path)]


def test_a_module_is_found_as_python_finds_it_and_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "pkg" / "train.py").touch()
    (tmp_path / "pkg" / "sub" / "deep.py").touch()
    folders = [str(tmp_path)]
    assert module_file("pkg.train", folders) == tmp_path / "pkg" / "train.py"
    assert module_file("pkg.sub.deep", folders) == tmp_path / "pkg" / "sub" / "deep.py"
    assert module_file("pkg", folders) is module_file("pkg.gone", folders) is module_file("gone.x", folders) is None
    json_tool = module_file("json.tool", folders)
    assert json_tool is not None and json_tool.name == "tool.py"


def test_with_another_working_directory_or_in_a_container_modules_are_not_looked_for_here(tmp_path: Path) -> None:
    for option in ("chdir", "container-image"):
        for program in ({"module": "pkg.gone"}, {"name": "a", "command": ["./gone.sh"]}):
            JobSpec.from_mapping({**program, "slurm": {option: "/x"}}, tmp_path)


def test_a_source_in_another_encoding_is_a_script_and_warnings_are_left_to_its_run(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    script = tmp_path / "train.py"
    script.write_bytes("# -*- coding: latin-1 -*-\nname = 'Ä'\nx = '\\d'\n".encode("latin-1"))
    assert script_problem(script) == "" and not recwarn.list
