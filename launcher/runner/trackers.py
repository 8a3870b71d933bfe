"""Variables with which experiment trackers continue one run over all attempts and requeues of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.base.environment import Variable

_ID_CHARS = 128  # at most, of an id of Weights & Biases


def tracker_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to add to a worker's environment. Those that the user has set are left alone.

    Only rank 0 gets an id for Weights & Biases: ranks that log to a run of their own must not share one. A sweep gives
    ids itself.

    Args:
        environment: of the worker, with RANK and HOLDFAST_RUN_ID.
    """
    run_id = environment.get(Variable.RUN_ID)
    if run_id is None or environment.get("RANK") != "0" or "WANDB_SWEEP_ID" in environment:
        return {}
    run = re.sub(r"[^A-Za-z0-9_.-]", "-", run_id)[:_ID_CHARS]
    variables = {"WANDB_RUN_ID": run, "WANDB_RESUME": "allow"}
    return {name: value for name, value in variables.items() if name not in environment}
