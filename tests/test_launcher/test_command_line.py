"""The command line's habits: help, version, errors, whose options are whose."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

import holdfast
from launcher.cli import main
from launcher.cli.app import app
from launcher.cli.job_command import split
from launcher.cli.job_table import job_table
from launcher.history.status import JobStatus
from launcher.job.jobfile import JobSpec
from launcher.job.registry import KnownJob

OWN = {"--nodes": True, "-N": True, "--json": False}


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text("script: train.py\nargs: [--steps, '5']\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verbs() -> Iterator[list[str]]:
    def below(command: Any, context: Any, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
            verb = command.get_command(context, name)
            yield from below(verb, verb.context_class(verb, info_name=name, parent=context), [*words, name])

    root = typer.main.get_command(app)
    yield from below(root, root.context_class(root, info_name="holdfast"), [])


@pytest.mark.parametrize("words", list(verbs()), ids=lambda words: " ".join(words) or "holdfast")
def test_every_verb_explains_itself_and_refuses_what_it_does_not_know(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "-h"]) == 0
    short = capsys.readouterr().out
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out == short
    assert short.startswith(f"Usage: {' '.join(['holdfast', *words])} ")
    assert max(map(len, short.splitlines())) <= 80
    if words != ["submit"]:  # which leaves them to sbatch
        assert main([*words, "--no-such-option"]) == 2
        assert capsys.readouterr().err.startswith("holdfast: error: No such option: --no-such-option")


@pytest.mark.parametrize("words", list(verbs()), ids=lambda words: " ".join(words) or "holdfast")
def test_help_names_values_as_other_tools_do(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "-h"]) == 0
    text = capsys.readouterr().out
    usage, tables = text.partition("\n\n")[0], re.split(r"^(?:Arguments|Options):\n", text, flags=re.M)[1:]
    assert not set("{}<>") & set(usage) and "[[" not in usage
    names = re.findall(r"^  (\S.*?)(?:  |$)", "".join(tables).partition("Commands:")[0], re.M)
    assert names and not [name for name in names if set("{}<>()") & set(name)]
    values = [name.split()[-1].removesuffix("...") for name in names if name.startswith("-") and " " in name]
    types = ("int", "float", "str", "path", "TEXT", "INTEGER", "FLOAT", "PATH")
    assert [value for value in values if value in types] == []
    assert "..." not in text.partition("Commands:")[2]
    assert ("--install-completion" in text) is (words == [])


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("run", "[OPTIONS] JOB.yaml [-- ARGS...]"),
        ("submit", "[OPTIONS] [SBATCH OPTIONS] JOB.yaml [-- ARGS...]"),
        ("init", "[OPTIONS] [DIR]"),
        ("ckpt import", "[OPTIONS] DCP_DIR PATH"),
        ("node env", "[OPTIONS] [LOG...]"),
    ],
)
def test_the_usage_line(words: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "-h"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"Usage: holdfast {words} {usage}"


@pytest.mark.parametrize("words", [[], ["ckpt"], ["node"], ["cluster"]], ids=" ".join)
def test_a_group_alone_prints_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: holdfast") and "Commands:" in out and err == ""


def test_the_version_and_completion(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"holdfast {holdfast.__version__}\n"
    env = {**os.environ, "_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": "holdfast ckpt ver", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-m", "launcher"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["verify"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status", "nope"], 2),
        (["ckpt", "ls", "gs://b/x"], 2),
        (["ckpt", "ls", "/nonexistent"], 2),
        (["node", "check", "--level", "x"], 2),
        (["cluster", "status", "--name", "none"], 2),
        (["cluster", "down", "sideways"], 2),
        (["frob"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_error_is_one_line_or_one_json_object(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("holdfast: error: ") and err.count("\n") == 1
    assert main([*words, "--json"]) in (code, 2)
    out, err = capsys.readouterr()
    error = json.loads(err)
    assert out == "" and error["exit_code"] in (code, 2) and error["errors"]


@pytest.mark.parametrize("words", ["bench .", "import . shared --namespace gpt --step 1"])
def test_a_command_that_needs_torch_says_so_where_there_is_none(words: str, desk: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from launcher.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "ckpt", *words.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "holdfast: error: this command needs torch: run it from the environment of your jobs\n",
    )


def test_a_reader_that_goes_away_is_no_error(desk: Path) -> None:
    (desk / "runs" / "1" / "log").mkdir(parents=True)
    (desk / "runs" / "1" / "events.jsonl").write_text("")
    (desk / "runs" / "1" / "log" / "supervisor.log").write_text("line\n" * 100_000)
    command = f"{sys.executable} -m launcher logs 1 --supervisor | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=desk)
    assert (done.stdout, done.stderr) == ("line\n", "")


@pytest.mark.parametrize("folder", [".", "a folder/gpt"])
def test_the_hint_of_init_holds_before_and_after_a_change_of_directory(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    assert main(["init", folder]) == 0
    said = re.fullmatch(r"try it in (/.+): holdfast run job\.yaml", capsys.readouterr().out.splitlines()[-1])
    assert said and (Path(said[1]) / "job.yaml").is_file()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_stdout_of_any_encoding_takes_every_text(desk: Path, encoding: str) -> None:
    (desk / "runs" / "1" / "log").mkdir(parents=True)
    event = {"time": 1.0, "event": "node_out", "attempt": 0, "node": "n1", "reason": "loss ≤ 1"}
    (desk / "runs" / "1" / "events.jsonl").write_text(json.dumps(event) + "\n")
    (desk / "runs" / "1" / "log" / "supervisor.log").write_text("loss ≤ 1\n")
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    for words in (["logs", "1", "--supervisor"], ["status", "1"]):
        done = subprocess.run([sys.executable, "-m", "launcher", *words], env=env, capture_output=True, check=True)
        shown = {"loss ≤ 1".encode(encoding, "backslashreplace"), "loss ≤ 1".encode()}  # typer takes ascii for utf-8
        assert any(text in done.stdout for text in shown) and done.stderr == b""


@pytest.mark.parametrize("words", ["schema", "status", "status 1 --json"])
def test_a_closed_stdout_is_no_error(desk: Path, words: str) -> None:
    (desk / "runs" / "1").mkdir(parents=True)
    (desk / "runs" / "1" / "events.jsonl").write_text("")
    command = f"{sys.executable} -m launcher {words} >&-"
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stderr == ""


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_options_stand_before_or_after_the_file(order: tuple[int, ...]) -> None:
    groups = (["-N", "2"], ["-p", "train"], ["job.yaml"], ["--exclusive"])
    own, sbatch = split([word for index in order for word in groups[index]], OWN)
    assert [word for word in own if word != "job.yaml"] == ["-N", "2"] and "job.yaml" in own
    assert sbatch in (["-p", "train", "--exclusive"], ["--exclusive", "-p", "train"])


@pytest.mark.parametrize(
    ("words", "own", "sbatch"),
    [
        ("-ptrain -t1-0 job.yaml", "job.yaml", "-ptrain -t1-0"),
        ("--time=1-0 job.yaml --account team", "job.yaml", "--time=1-0 --account team"),
        ("-H -W job.yaml", "job.yaml", "-H -W"),
        ("--requeue job.yaml --json", "job.yaml --json", "--requeue"),
        ("--nodes=3 -N4 job.yaml", "--nodes=3 -N4 job.yaml", ""),
        ("--unknown job.yaml", "job.yaml", "--unknown"),
        ("--comment - job.yaml", "job.yaml", "--comment -"),
    ],
)
def test_each_word_goes_where_it_belongs(words: str, own: str, sbatch: str) -> None:
    assert split(words.split(), OWN) == (own.split(), sbatch.split())


def test_words_behind_dashes_replace_the_scripts_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[JobSpec] = []
    monkeypatch.setattr(
        "launcher.clusters.slurm.submission.sbatch_script", lambda spec, *_: specs.append(spec) or ("", [])
    )
    for words in ([], ["--"], ["--", "--steps", "10", "--json"]):
        assert main(["submit", "job.yaml", "--dry-run", *words]) == 0
    assert [spec.args for spec in specs] == [("--steps", "5"), (), ("--steps", "10", "--json")]


def test_run_takes_the_same_sizes_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    class Submitted(Exception):
        pass

    specs: list[JobSpec] = []

    def submit(self: Any, spec: JobSpec) -> None:
        specs.append(spec)
        raise Submitted

    monkeypatch.setattr("launcher.submission.executor.Executor.submit", submit)
    with pytest.raises(Submitted):
        main(["run", "--gpus-per-node", "2", "job.yaml", "-N", "3", "--", "--steps", "10"])
    assert [(spec.nodes, spec.workers_per_node, spec.args) for spec in specs] == [(3, 2, ("--steps", "10"))]


def test_slurm_is_asked_when_a_job_would_start(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk / "bin").mkdir()
    answer = "sbatch: Job 5 to start at 2026-11-22T20:00:00 on nodes n1 in partition train"
    (desk / "bin" / "sbatch").write_text(f'#!/bin/sh\necho "$@" > {desk}/asked\necho "{answer}" >&2\n')
    (desk / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{desk}/bin:/usr/bin:/bin")
    assert main(["submit", "-p", "train", "job.yaml", "--test-only"]) == 0
    assert capsys.readouterr().out == answer.removeprefix("sbatch: ") + "\n"
    assert (desk / "asked").read_text().startswith("--test-only -p train /")
    assert not (desk / "runs").exists()


@pytest.mark.parametrize("width", [200, 80, 60])
def test_an_id_is_never_cut(width: int, desk: Path) -> None:
    job_id, name = "20261122-184338-9f3e", "a-name-that-nobody-would-type-twice"
    folder = desk / "a-folder-far-away-with-a-long-name" / "runs" / job_id
    job = KnownJob(job_id=job_id, name=name, cluster="local", folder=folder, nodes=1, spares=0)
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(job_table([(job, JobStatus(state="training", step=123456))], width))
    text = console.export_text()
    assert f"{job_id}  a-name-" in text and "123456" in text and max(map(len, text.splitlines())) <= width
    assert ("folder" in text) is (width == 200) and (name in text) is (width >= 200)
