"""Which of the modules that a script loads can be loaded in advance."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  # as in the warm process

from ckpt.worker.loaded import record_modules
from launcher.runner import learned
from launcher.runner.learned import Learned, candidates, learn, load, path_of

VERSIONS = ("3.11", "2.13.0")
HARMFUL = {
    "starts_a_thread": "import threading\nthreading.Thread(target=lambda: None).start()",
    "sets_a_variable": "import os\nos.environ['SET_BY_A_MODULE'] = '1'",
    "reads_its_rank": "import os\nRANK = int(os.environ.get('RANK', 0))",
    "asks_for_its_rank": "import os\nIS_FIRST = 'LOCAL_RANK' not in os.environ",
    "reads_what_the_job_sets": "import os\nSEEN = os.getenv('ONLY_WORKERS_HAVE_IT')",
    "goes_elsewhere": "import os\nos.chdir('/')",
    "handles_a_signal": "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)",
    "opens_a_gpu": "import os\nFILE = os.open('/dev/null', os.O_RDONLY)",
}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the interpreter, with modules that may be loaded in advance."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(learned, "_interpreters_directories", lambda: {str(folder)})
    monkeypatch.setattr(learned, "_WORTH", 1)
    return folder


def put(folder: Path, **sources: str) -> list[str]:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return list(sources)


@pytest.mark.processes
@pytest.mark.parametrize("name", HARMFUL)
def test_a_module_whose_import_would_reach_the_workers_is_left_out_with_all_that_import_it(
    packages: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name == "opens_a_gpu":  # the file that stands for one
        read = os.readlink
        monkeypatch.setattr(os, "readlink", lambda path: read(path).replace("/dev/null", "/dev/nvidia0"))
    above = f"try:\n    import {name}\nexcept Exception:\n    {name} = None"
    names = put(packages, fine=f"A = {name!r}", above=above, **{name: HARMFUL[name]}, other="import fine")
    found = learn(names, [], {"ONLY_WORKERS_HAVE_IT": "1"}, Learned())
    assert found is not None
    assert found.modules == ("fine", "other") and set(found.left_out) == {name}, found
    assert found.tried == set(names) and not {*names} & {*sys.modules}, "only forks have loaded them"
    assert "SET_BY_A_MODULE" not in os.environ


@pytest.mark.processes
def test_what_is_left_out_is_not_loaded_by_another_module_that_has_changed(packages: Path) -> None:
    put(packages, harmful="import os\nos.environ['X'] = '1'", changed="import harmful", stays="A = 1")
    load(Learned(modules=("changed", "stays", "gone"), left_out={"harmful": "sets X"}), [])
    try:
        assert {"changed", "stays", "harmful"} & {*sys.modules} == {"stays"}
    finally:
        del sys.modules["stays"]


@pytest.mark.processes
@pytest.mark.parametrize(
    "source", ["import os\nos._exit(3)", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"]
)
def test_a_module_that_ends_the_process_leaves_the_list_empty(packages: Path, source: str) -> None:
    names = put(packages, fine="A = 1", ends=source)
    assert learn(names, [], {}, Learned()) == Learned(tried=frozenset(names))


@pytest.mark.processes
def test_a_module_is_tried_once(packages: Path) -> None:
    names = put(packages, first="import sys\nif 'second' in sys.modules: raise ValueError", second="A = 1")
    known = learn(names, [], {}, Learned())
    assert known is not None and known.modules == ("first", "second")
    assert learn(names, [], {}, known) is None
    assert learn([*names, *put(packages, third="A = 1")], [], {}, known) == Learned(
        tried=frozenset({*names, "third"}), modules=("first", "second", "third")
    )


def test_only_modules_of_the_interpreter_are_tried_and_none_that_the_script_has_itself(
    packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "datasets.py").touch()
    files = {
        "fine": f"{packages}/fine.py",
        "fine.below": f"{packages}/fine/below.py",
        "datasets": f"{packages}/datasets/__init__.py",  # the script's own would hide it
        "own": f"{tmp_path}/own.py",
        "_built": "built-in",
        "__main__": f"{packages}/x.py",
        "six.moves.x y": f"{packages}/six.py",
        "launcher.submission.job": f"{packages}/launcher/submission/job.py",
        "namespace": "",
    }
    assert candidates(files, [str(tmp_path)]) == ["fine", "fine.below", "_built"]


def test_a_list_of_another_user_version_or_shape_counts_as_none(tmp_path: Path) -> None:
    path = path_of("train.py", {"XDG_CACHE_HOME": str(tmp_path)})
    assert path != path_of("other.py", {"XDG_CACHE_HOME": str(tmp_path)})
    wanted = Learned(tried=frozenset({"a", "b"}), modules=("a",), left_out={"b": "starts a thread"})
    wanted.write(path, VERSIONS)
    assert Learned.read(path, VERSIONS) == wanted and path.parent.stat().st_mode & 0o077 == 0
    assert Learned.read(path, ("3.12", "2.13.0")) == Learned()
    path.chmod(0o622)
    assert Learned.read(path, VERSIONS) == Learned(), "others may have written it"
    path.chmod(0o600)
    for text in ("", "[]", "{}", json.dumps({"versions": VERSIONS, "tried": 1, "modules": [], "left_out": []})):
        path.write_text(text)
        assert Learned.read(path, VERSIONS) == Learned()
    elsewhere = path.rename(tmp_path / "elsewhere")
    wanted.write(elsewhere, VERSIONS)
    path.symlink_to(elsewhere)
    assert Learned.read(path, VERSIONS) == Learned()
    if os.geteuid() == 0:
        wanted.write(path.with_name("theirs"), VERSIONS)
        os.chown(path.with_name("theirs"), 65534, -1)
        assert Learned.read(path.with_name("theirs"), VERSIONS) == Learned()


def test_a_worker_lists_modules_by_their_own_names_with_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "an_alias", json)
    monkeypatch.setitem(sys.modules, "no_module", 5)  # type: ignore[arg-type]
    record_modules(tmp_path / "modules.json")
    found = json.loads((tmp_path / "modules.json").read_text())
    assert found["json"] == json.__file__ and found["sys"] == "built-in"
    assert not {"an_alias", "no_module"} & {*found}
    assert list(tmp_path.iterdir()) == [tmp_path / "modules.json"]
