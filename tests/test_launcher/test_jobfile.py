"""The job file: what is accepted, what is filled in, and that a job survives JSON."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt import CheckpointConfig
from launcher.errors import LauncherError, UsageError
from launcher.job.elastic import Elastic
from launcher.job.jobfile import JobSpec, Restart, load_job, read_job

SCRIPT = Path(__file__).resolve()
BASE = SCRIPT.parent


def job(**keys: Any) -> JobSpec:
    return JobSpec.from_mapping({"script": SCRIPT.name, **keys}, BASE, "job.yaml")


def write(folder: Path, text: str) -> Path:
    (folder / "train.py").write_text("")
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def test_a_job_of_only_a_script_trains_on_one_node_without_checkpoints() -> None:
    spec = job()
    assert (spec.name, spec.script, spec.nodes, spec.spares) == ("test_jobfile", SCRIPT, 1, 0)
    assert (spec.workers_per_node, spec.checkpoint, spec.time) == (1, None, None)
    assert spec.restart == Restart(max_without_progress=3, max_restarts=None)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"restart": {"on": {"lost": "stop"}}}, "restart.on.lost: not a class of faults; expected one of gpu_memory"),
        ({"restart": {"on": {"loss": "pray"}}}, "restart.on.loss: got 'pray', expected one of stop, retry"),
        ({"log_rules": [{"pattern": "x("}]}, "log_rules[0].pattern: got 'x(', expected a regular expression"),
        (
            {"log_rules": [{"pattern": "x", "action": "pray"}]},
            "log_rules[0].action: got 'pray', expected",
        ),
    ],
)
def test_what_follows_a_fault_or_a_line_is_checked(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        job(**keys)


def test_what_follows_a_fault_or_a_line_reaches_the_supervisor() -> None:
    spec = job(restart={"on": {"loss": "stop"}}, log_rules=[{"name": "nan", "pattern": "is nan"}])
    assert dict(spec.restart.on) == {"loss": "stop"}
    assert [(rule.title, rule.pattern, rule.action) for rule in spec.log_rules] == [("nan", "is nan", "retry")]
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_restarts_are_limited_by_default_only_where_progress_cannot_be_seen() -> None:
    months = 365 * 8  # eight lost nodes a day
    assert job().max_restarts == 100
    assert job(checkpoint={}).max_restarts > months
    assert job(progress="out/*.pt").max_restarts > months
    assert job(checkpoint={}, restart={"max_restarts": 0}).max_restarts == 0


def test_every_gpu_gets_a_worker() -> None:
    assert job(gpus_per_node=8).workers_per_node == 8
    assert job(gpus_per_node=8, workers_per_node=2).workers_per_node == 2


@pytest.mark.parametrize(
    ("keys", "gpus", "workers"),
    [
        ({"gpus_per_node": "a100:8"}, "a100:8", 8),
        ({"gpus_per_node": "8"}, 8, 8),
        ({"slurm": {"gres": "gpu:8"}}, 8, 8),
        ({"slurm": {"gres": "gpu:a100:8"}}, "a100:8", 8),
        ({"slurm": {"gres": "lustre:1,gpu:tesla_v100-sxm2:4"}}, "tesla_v100-sxm2:4", 4),
        ({"slurm": {"gres": "gpu"}}, 1, 1),
        ({"slurm": {"gres": "gpu:a100:2,gpu:h100:4"}}, 6, 6),
        ({"slurm": {"gres": "gpu:8"}, "gpus_per_node": 8}, 8, 8),
        ({"slurm": {"gres": "gpu:8"}, "workers_per_node": 2}, 8, 2),
        ({"slurm": {"gres": "lustre:1"}}, 0, 1),
    ],
)
def test_gpus_are_said_in_slurms_own_ways(keys: dict[str, Any], gpus: int | str, workers: int) -> None:
    spec = job(**keys)
    assert (spec.gpus_per_node, spec.workers_per_node) == (gpus, workers)
    assert JobSpec.from_json(spec.to_json()) == spec


def test_numbers_among_the_arguments_become_text() -> None:
    assert job(args=["--layers", 4, "--lr", 0.5]).args == ("--layers", "4", "--lr", "0.5")


def test_the_namespace_is_the_jobs_name_unless_given() -> None:
    assert job(name="gpt", checkpoint={}).checkpoint == CheckpointConfig(namespace="gpt")
    assert job(name="gpt", checkpoint={"namespace": "other"}).checkpoint == CheckpointConfig(namespace="other")


def test_relative_paths_count_from_the_job_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "script: train.py\ncheckpoint: {shared: {path: ckpt}}\n")
    monkeypatch.chdir("/")
    spec = load_job(path)
    assert spec.script == tmp_path / "train.py"
    assert spec.checkpoint and spec.checkpoint.shared and spec.checkpoint.shared.path == str(tmp_path / "ckpt")


def test_a_progress_pattern_stays_relative_to_the_directory_in_which_the_script_runs(tmp_path: Path) -> None:
    spec = load_job(write(tmp_path, "script: train.py\nprogress: out/*.pt\n"))
    assert spec.progress == "out/*.pt"
    assert JobSpec.from_json(spec.to_json()) == spec
    with pytest.raises(UsageError, match=r"progress: got .*expected a pattern of files"):
        job(progress=["a"])


def test_home_and_variables_in_paths_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    (tmp_path / "train.py").touch()
    monkeypatch.delenv("UID", raising=False)  # bash and zsh do not export it
    checkpoint = {"namespace": "gpt", "shared": {"path": "$SCRATCH/ckpt"}, "nvme": {"path": "/local/holdfast-${UID}"}}
    spec = job(script="~/train.py", progress="$HOME/out/*.pt", checkpoint=checkpoint)
    assert (spec.script, spec.progress) == (tmp_path / "train.py", f"{tmp_path}/out/*.pt")
    assert spec.checkpoint and spec.checkpoint.shared and spec.checkpoint.nvme
    assert spec.checkpoint.shared.path == "/scratch/me/ckpt"
    assert spec.checkpoint.nvme.path == f"/local/holdfast-{os.getuid()}"
    assert checkpoint["shared"]["path"] == "$SCRATCH/ckpt"


@pytest.mark.parametrize("path", ["$HOLDFAST_NO_SUCH/x", "${HOLDFAST_NO_SUCH}/x", "~holdfast-no-such/x"])
def test_a_path_with_a_variable_or_user_that_does_not_exist_is_refused(path: str) -> None:
    for keys, place in (
        ({"script": path}, "script"),
        ({"progress": path}, "progress"),
        ({"checkpoint": {"shared": {"path": path}}}, "checkpoint.shared.path"),
        ({"checkpoint": {"nvme": {"path": path}}}, "checkpoint.nvme.path"),
    ):
        with pytest.raises(UsageError) as caught:
            job(**keys)
        assert f"job.yaml: {place}: got {path!r}, expected a path whose user and variables exist" in str(caught.value)


@pytest.mark.parametrize("place", [{"shared": {"path": "/fsx/ckpt"}}, {"s3": {"url": "s3://bucket/prefix"}}])
def test_a_place_that_projects_share_needs_a_name(place: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match=r"checkpoint.namespace: missing, expected it or `name`, because another project"
    ):
        job(checkpoint=place)
    for keys in ({"name": "gpt", "checkpoint": place}, {"checkpoint": {"namespace": "gpt", **place}}):
        spec = job(**keys)
        assert spec.checkpoint is not None and spec.checkpoint.namespace == "gpt"
    spec = job(checkpoint={"shared": {"path": "ckpt"}})
    assert spec.checkpoint is not None and spec.checkpoint.namespace == SCRIPT.stem, "the folder is this project's own"


def test_scripts_of_other_letters_have_names_of_their_own(tmp_path: Path) -> None:
    names = set()
    for stem in ("训练", "模型", "tränïng 1"):
        (tmp_path / f"{stem}.py").touch()
        names.add(JobSpec.from_mapping({"script": f"{stem}.py"}, tmp_path, "job.yaml").name)
    assert len(names) == 3


def test_s3_without_boto3_is_refused_before_anything_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = {"namespace": "gpt", "s3": {"url": "s3://bucket/prefix"}}
    assert job(checkpoint=checkpoint).checkpoint is not None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"checkpoint.s3: needs boto3.*pip install 'holdfast-hpc\[s3\]'"):
        job(checkpoint=checkpoint)


def test_sbatch_options_take_dashes_or_underscores_and_false_means_absent() -> None:
    assert job(slurm={"mem_per_cpu": "2G", "exclusive": True, "contiguous": False}).slurm == {
        "mem-per-cpu": "2G",
        "exclusive": True,
    }


def test_a_longer_warning_before_the_time_limit_may_be_asked_for() -> None:
    for signal in ("B:USR2@600", "USR1@120", "B:SIGUSR1@60", "12"):
        assert job(slurm={"signal": signal}).slurm == {"signal": signal}


def test_an_empty_section_is_an_absent_one(tmp_path: Path) -> None:
    spec = load_job(write(tmp_path, "script: train.py\nenv:\nslurm:\ncheckpoint:\nrestart:\n"))
    assert (dict(spec.env), dict(spec.slurm), spec.checkpoint, spec.restart) == ({}, {}, None, Restart())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("script: a.py\nscript: b.py\n", "job.yaml: not valid YAML: key 'script' is given twice at line 2, column 1"),
        ("a: &x [1]\nb: *x\n", "job.yaml: not valid YAML: aliases (*name) are not allowed at line 2, column 4"),
        ("script: [\n", "job.yaml: not valid YAML: "),
        (
            "script: !!python/object:os.system x\n",
            "job.yaml: not valid YAML: tag tag:yaml.org,2002:python/object:os.system is not allowed",
        ),
        ("[" * 5000, "job.yaml: not valid YAML: nested too deeply, more than 32 levels"),
        ("- script\n", "job.yaml: got ['script'], expected a mapping"),
        ("", "job.yaml: got nothing, expected a mapping"),
    ],
)
def test_unreadable_yaml_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_job(write(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path}/{message}") and "\n" not in str(caught.value)


def test_a_file_of_more_than_a_mebibyte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got more than 1048576 bytes"):
        load_job(write(tmp_path, "#" * (1 << 20) + "\n"))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"script: \xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_job(path)


def test_a_validated_job_is_taken_as_it_is(tmp_path: Path) -> None:
    """Its script may be gone by then, and its values are not looked at again."""
    spec = job(name="gpt", checkpoint={"s3": {"url": "s3://bucket/x"}}, elastic={"min_nodes": 1}, time="1:00:00")
    (tmp_path / "job.json").write_text(json.dumps(spec.to_json()))
    assert read_job(tmp_path) == spec
    changed = {**spec.to_json(), "nodes": 0, "script": "/gone.py"}
    (tmp_path / "job.json").write_text(json.dumps(changed))
    assert (read_job(tmp_path).nodes, read_job(tmp_path).script) == (0, Path("/gone.py"))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000, '{"script": 3}', "null", '"x"'])
def test_a_corrupt_job_json_is_one_clear_line(tmp_path: Path, text: str) -> None:
    written = json.dumps(job(checkpoint={}).to_json())
    for corrupt in (text, written[:-9], written.replace('"memory": {', '"memory": {"x": 1, '), "\x00" * len(written)):
        (tmp_path / "job.json").write_text(corrupt)
        with pytest.raises(LauncherError, match=r"job\.json: not .*; submit the job again") as caught:
            read_job(tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / "job.json").unlink()
    with pytest.raises(LauncherError, match=r"job\.json: cannot be read"):
        read_job(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "elastic", "sizes", "booster_nodes", "most_boosters"),
    [
        (4, None, (4,), 0, 0),
        (4, {"min_nodes": 2}, (4, 3, 2), 0, 0),
        (2, {"min_nodes": 2, "max_nodes": 8, "step": 2}, (8, 6, 4, 2), 2, 3),
        (4, {"min_nodes": 2, "max_nodes": 8, "step": 2}, (8, 6, 4, 2), 2, 2),
        (2, {"sizes": [2, 8, 4]}, (8, 4, 2), 2, 3),
        (1, {"sizes": [1, 4, 8]}, (8, 4, 1), 1, 7),
        (8, {"sizes": [4, 8], "min_nodes": 4, "max_nodes": 8}, (8, 4), 0, 0),
    ],
)
def test_sizes_and_boosters_of_a_job(
    nodes: int, elastic: Any, sizes: tuple[int, ...], booster_nodes: int, most_boosters: int
) -> None:
    spec = job(nodes=nodes, elastic=elastic, spares=1)
    assert (spec.sizes, spec.booster_nodes, spec.most_boosters) == (sizes, booster_nodes, most_boosters)
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert (spec.most_nodes, spec.least_nodes) == (nodes + 1, sizes[-1] if elastic else nodes + 1)


def test_hyperpods_names_say_the_same() -> None:
    spec = job(
        nodes=2,
        elastic={
            "minReplicas": 2, "maxReplicas": 8, "replicaIncrementStep": 2, "scalingTimeoutInSeconds": 30,
            "gracefulShutdownTimeoutInSeconds": 100, "faultyScaleDownTimeoutInSeconds": 10,
            "scaleUpSnoozeTimeInSeconds": 200,
        },
    )  # fmt: skip
    assert spec.elastic == Elastic(
        min_nodes=2, max_nodes=8, step=2, scaling_timeout_s=30, graceful_shutdown_timeout_s=100,
        faulty_scale_down_timeout_s=10, scale_up_snooze_s=200,
    )  # fmt: skip
    assert job(elastic={"replicaDiscreteValues": [1, 2]}).elastic == Elastic(sizes=(1, 2))


def test_boosters_have_nodes_like_the_jobs_own() -> None:
    elastic: dict[str, Any] = {"min_nodes": 1, "max_nodes": 4}
    slurm = {"partition": "train", "account": "team", "mem": "64G", "exclusive": True, "nodelist": "n1", "time": 60}
    assert job(slurm=slurm, gpus_per_node=8, elastic=elastic).booster_options == {
        "gpus-per-node": "8", "account": "team", "mem": "64G", "exclusive": True,
    }  # fmt: skip
    booster = {"partition": "boost", "qos": "low", "time": "4:00:00", "account": "spare", "slurm": {"mem": "32G"}}
    assert job(slurm=slurm, elastic=elastic | {"booster": booster}).booster_options == {
        "partition": "boost", "qos": "low", "time": "4:00:00", "account": "spare", "mem": "32G", "exclusive": True,
    }  # fmt: skip
    assert "gpus-per-node" not in job(slurm={"gres": "gpu:8"}, elastic=elastic).booster_options


words = st.text("abcxyz019_-.", min_size=1, max_size=12)
texts = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
printable = st.text("abcXYZ 012:=,@", min_size=1, max_size=12)
sizes = st.integers(1, 10**6)
jobs = st.fixed_dictionaries(
    {},
    optional={
        "name": words.filter(lambda name: name[0].isalnum()),
        "args": st.lists(st.one_of(texts, st.integers(), st.floats(allow_nan=False)), max_size=4),
        "nodes": st.integers(1, 1 << 16),
        "spares": st.integers(0, 1 << 16),
        "gpus_per_node": st.one_of(st.integers(0, 64), st.just("a100:8")),
        "workers_per_node": st.integers(1, 64),
        "env": st.dictionaries(st.from_regex(r"[A-G_][A-Za-z0-9_]{0,8}", fullmatch=True), texts, max_size=3),
        "restart": st.fixed_dictionaries(
            {}, optional={"max_without_progress": sizes, "max_restarts": st.integers(0, 9)}
        ),
        "elastic": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {"min_nodes": st.just(1), "max_nodes": st.just(1 << 16)},
                optional={
                    "scaling_timeout_s": st.floats(0, 1e9),
                    "booster": st.fixed_dictionaries(
                        {}, optional={"partition": words, "time": st.just("1:00:00"), "slurm": st.just({"nice": 3})}
                    ),
                    "scale": st.dictionaries(
                        st.just("1"), st.dictionaries(words, st.one_of(st.integers(), st.booleans(), words)), max_size=1
                    ),
                },
            ),
        ),
        "checkpoint": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {},
                optional={
                    "namespace": words.filter(lambda name: name[0].isalnum()),
                    "memory": st.fixed_dictionaries({}, optional={"every_steps": sizes, "keep": st.integers(2, 9)}),
                    "redundancy": st.fixed_dictionaries({"scheme": st.sampled_from(["none", "partner", "xor", "rs"])}),
                    "shared": st.fixed_dictionaries(
                        {"path": words},
                        optional={
                            "every_steps": sizes,
                            "keep": sizes,
                            "stripe_count": st.sampled_from([-1, 1, 8, None]),
                        },
                    ),
                    "nvme": st.fixed_dictionaries(
                        {"path": words.map("/{}".format)}, optional={"every_s": sizes, "rate_limit_bytes_s": sizes}
                    ),
                    "s3": st.fixed_dictionaries(
                        {"url": st.just("s3://bucket/prefix")},
                        optional={"endpoint_url": st.just("https://host:1"), "path_style": st.booleans()},
                    ),
                },
            ),
        ),
        "slurm": st.dictionaries(
            st.sampled_from(["partition", "account", "mem_per_cpu", "exclusive", "qos"]),
            st.one_of(printable, st.booleans(), st.integers(0, 99)),
        ),
        "time": st.one_of(sizes, st.sampled_from(["30:00", "1:00:00", "2-12"])),
    },
)


@given(jobs)
@settings(max_examples=150, deadline=None)
def test_a_job_survives_json(mapping: dict[str, Any]) -> None:
    spec = job(**{"name": "gpt", **mapping})
    again = JobSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec


@given(st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), texts), lambda inner: st.one_of(
    st.lists(inner, max_size=3),
    st.dictionaries(st.one_of(texts, st.integers(), st.sampled_from([
        "script", "name", "args", "nodes", "env", "restart", "checkpoint", "slurm", "memory", "redundancy", "shared",
        "path", "elastic", "sizes", "min_nodes", "minReplicas", "step", "scale", "booster",
    ])), inner, max_size=4),
), max_leaves=12))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_whatever_stands_in_the_file_the_only_error_is_a_usage_error_of_one_line(data: Any) -> None:
    try:
        JobSpec.from_mapping({"script": SCRIPT.name, **data} if isinstance(data, dict) else data, BASE, "job.yaml")
    except UsageError as error:
        assert all(line.startswith("job.yaml: ") and len(line) < 500 for line in str(error).splitlines())
