"""Experiment trackers continue one run over the attempts of a job, with the variables of a worker and the guide's code.

The trackers are real: Weights & Biases offline, MLflow with its file store, TensorBoard.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from launcher.runner.trackers import tracker_variables

GUIDE = Path(__file__).parents[2] / "docs/guide/observe.md"
RUN = "slurm-c-7"
ATTEMPTS = ((0, 3), (2, 6))  # the first and the last step of each; steps 2 and 3 are repeated

pytestmark = [pytest.mark.processes, pytest.mark.long(seconds=50)]


def code_of(tracker: str) -> str:
    """The guide's code for a tracker."""
    after = GUIDE.read_text().partition(f"**{tracker}")[2]
    block = re.search(r"\n\n((?:    .*\n)+)", after)
    assert block
    return textwrap.dedent(block[1])


def attempts(script: str, tmp_path: Path, **more: str) -> None:
    """Run a script as rank 0 of two attempts; it finds the steps of its attempt in FIRST and LAST."""
    for number, (first, last) in enumerate(ATTEMPTS):
        worker = {"RANK": "0", "HOLDFAST_RUN_ID": RUN, "HOLDFAST_ATTEMPT": str(number), "HOLDFAST_RESTART_COUNT": "0"}
        environment = {**os.environ, **worker, "FIRST": str(first), "LAST": str(last), "HOME": str(tmp_path), **more}
        environment |= tracker_variables(environment)
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


STEPS = "range(int(os.environ['FIRST']), int(os.environ['LAST']) + 1)"


def test_weights_and_biases_has_one_run(tmp_path: Path) -> None:
    script = f"import os, wandb\nwandb.init(project='p')\nfor step in {STEPS}: wandb.log({{'loss': 1.0}}, step=step)\n"
    attempts(script, tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    parts = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(parts) == 2 and {part.name.split("-", 3)[3] for part in parts} == {RUN}


def test_mlflow_has_one_run(tmp_path: Path) -> None:
    log = f"for step in {STEPS}: mlflow.log_metric('loss', 1.0, step=step)\n"
    store = tmp_path / "store"
    attempts(
        f"import os, mlflow\n{code_of('MLflow')}\n{log}", tmp_path,
        MLFLOW_TRACKING_URI=f"file://{store}", MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true",
    )  # fmt: skip
    (metric,) = store.glob("*/*/metrics/loss")
    assert {int(line.split()[2]) for line in metric.read_text().splitlines()} == set(range(7))


def test_tensorboard_hides_the_steps_that_are_repeated(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    script = (
        "import os\nfrom torch.utils.tensorboard import SummaryWriter\nstep = int(os.environ['FIRST']) - 1\n"
        f"writer = {code_of('TensorBoard').partition('#')[0].strip()}\n"
        f"for step in {STEPS}: writer.add_scalar('loss', float(os.environ['HOLDFAST_ATTEMPT']), step)\nwriter.close()\n"
    )
    attempts(script, tmp_path)
    seen = EventAccumulator(str(tmp_path / "tb" / RUN)).Reload().Scalars("loss")
    assert [(each.step, each.value) for each in seen] == [(0, 0), (1, 0), *((step, 1) for step in range(2, 7))]
