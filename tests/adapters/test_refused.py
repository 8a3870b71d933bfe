"""What an adapter cannot keep is refused before training, with the reason."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ckpt import CheckpointError

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def trainer(folder: Path, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], disable_tqdm=True, **options
    )
    return transformers.Trainer(torch.nn.Linear(2, 1), arguments, train_dataset=[{"x": 1}])


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"enable_jit_checkpoint": True}, "workers get no SIGTERM"),
        ({"auto_find_batch_size": True}, "another batch size"),
        ({"ignore_data_skip": True}, "see samples twice"),
    ],
)
def test_options_of_the_trainer(tmp_path: Path, option: dict[str, Any], reason: str) -> None:
    refused = trainer(tmp_path, **option)
    from holdfast.adapters.transformers import holdfast

    with pytest.raises(CheckpointError, match=f"{next(iter(option))}=True.*{reason}"):
        holdfast(refused)


def test_a_trainer_that_is_none_or_has_its_checkpoints_already(tmp_path: Path) -> None:
    wrapped = trainer(tmp_path)
    from holdfast.adapters.transformers import holdfast

    assert holdfast(wrapped) is wrapped
    with pytest.raises(CheckpointError, match="already"):
        holdfast(wrapped)
    with pytest.raises(CheckpointError, match="got a Linear, expected an instance of transformers' Trainer"):
        holdfast(torch.nn.Linear(2, 1))


def test_a_trainer_that_keeps_generated_samples_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TRL's GRPOTrainer does."""
    generating = trainer(tmp_path)
    generating._buffered_inputs = None
    from holdfast.adapters.transformers import holdfast

    holdfast(generating)
    assert "Trainer keeps generated samples beyond a step, which no checkpoint has" in caplog.text


def test_strategies_and_environments_of_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    from lightning.pytorch.plugins.environments import SLURMEnvironment

    from holdfast.adapters.lightning import Trainer

    for variable in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    common: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    with pytest.raises(CheckpointError, match="got Anywhere, expected DDPStrategy"):
        Trainer(strategy=_fsdp1(), **common)
    for name, value in {"NTASKS": "1", "NODEID": "0", "PROCID": "0", "LOCALID": "0", "JOB_NUM_NODES": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(CheckpointError, match=r"SLURMEnvironment.*requeues the job by itself"):
        Trainer(strategy="ddp", devices=1, plugins=[SLURMEnvironment()], **common)


def _fsdp1() -> Any:
    from lightning.pytorch.strategies import FSDPStrategy

    class Anywhere(FSDPStrategy):
        """Lightning itself wants a GPU for it."""

        def __init__(self) -> None:
            super().__init__()

    return Anywhere()


def test_the_nodes_and_devices_of_a_job_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("lightning")
    from holdfast.adapters.lightning import Trainer

    for name, value in {"RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    made = Trainer(accelerator="cpu", strategy="ddp", num_nodes=8, logger=False)
    assert (made.num_nodes, made.num_devices) == (2, 2)
    assert "num_nodes=8 is replaced by 2" in caplog.text


def test_a_stream_without_a_position() -> None:
    pytest.importorskip("lightning")
    from holdfast.adapters.lightning import _Fit

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(4))

    fit = _Fit.__new__(_Fit)
    with pytest.raises(CheckpointError, match="DataLoader whose position cannot be saved"):
        fit.begin_loader(torch.utils.data.DataLoader(Stream()))


def test_compromised_releases_of_lightning_are_never_installed() -> None:
    tomllib = pytest.importorskip("tomllib")
    packaging = pytest.importorskip("packaging.requirements")
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    found = [packaging.Requirement(text) for extra in extras.values() for text in extra]
    ranges = {one.name: one.specifier for one in found if "lightning" in one.name}
    assert ranges.keys() == {"lightning", "pytorch-lightning"}
    assert not any(range_.contains(bad) for range_ in ranges.values() for bad in ("2.6.2", "2.6.3"))


def test_importing_the_adapters_package_imports_no_framework() -> None:
    code = (
        "import sys, holdfast.adapters; print([m for m in ('torch', 'transformers', 'lightning') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_version_that_was_not_tried_is_named(caplog: pytest.LogCaptureFixture) -> None:
    from holdfast.adapters.parts import warn_if_untried

    version = importlib.metadata.version("pytest")
    warn_if_untried("pytest", version)
    assert not caplog.text
    warn_if_untried("pytest", f"{version}1")
    assert f"pytest {version} was not tried" in caplog.text
