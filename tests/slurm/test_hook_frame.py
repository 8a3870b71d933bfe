"""The frame around every hook: its limit, its end, settings and environment that are not believed."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest
from hooks_kit import (
    as_root,
    environment,
    run,
    settings,
    verdict,
)
from waiting import until

from slurm.hooks.hook import FIT, UNFIT, EnvironmentRefused, Hook, HookJob, run_hook
from slurm.hooks.places import Places, SettingsError


@as_root
class TestFrame:
    def test_a_hook_that_hangs_is_given_up_and_drains_no_node(self, places: Places, capfd) -> None:
        def hang(hook: Hook) -> int:
            time.sleep(60)
            return UNFIT

        assert run_hook("prolog", hang, places=places, env={}, limit_s=0.3) == FIT
        assert "did not end within 0.3 s" in capfd.readouterr().err

    def test_a_hook_that_slurmd_kills_goes_on_and_ends_within_its_limit(self, places: Places, tmp_path: Path) -> None:
        """Slurm kills its script's process group: at its own limit, or when slurmd is stopped."""
        said = tmp_path / "said"

        def hang(hook: Hook) -> int:
            said.with_suffix(".new").write_text(str(os.getpid()))
            said.with_suffix(".new").rename(said)
            time.sleep(600)
            return UNFIT

        script = os.fork()
        if script == 0:
            os.setpgid(0, 0)
            os._exit(run_hook("epilog", hang, places=places, env={}, limit_s=1.0))
        until(said.exists, "the hook's body")
        body = os.pidfd_open(int(said.read_text()))
        try:
            os.killpg(script, signal.SIGKILL)
            os.waitpid(script, 0)
            ended = select.poll()
            ended.register(body, select.POLLIN)
            assert not ended.poll(0), "the body was in the script's process group"
            until(lambda: ended.poll(0), "the end of the body")
        finally:
            os.close(body)

    def test_a_hook_that_is_killed_drains_no_node(self, places: Places) -> None:
        def killed(hook: Hook) -> int:
            os.kill(os.getpid(), signal.SIGKILL)
            return UNFIT

        assert run_hook("prolog", killed, places=places, env={}, limit_s=60) == FIT

    def test_a_hook_that_fails_itself_drains_no_node(self, places: Places) -> None:
        def broken(hook: Hook) -> int:
            raise ZeroDivisionError

        assert run_hook("prolog", broken, places=places, env={}, limit_s=5) == FIT
        assert "ZeroDivisionError" in Path(places.log).read_text()

    def test_settings_that_others_can_write_are_not_taken(self, places: Places, job: HookJob) -> None:
        settings(places, "drain: on\n")
        Path(places.settings_file).chmod(0o666)
        verdict(places, "critical")
        assert run("prolog", places, environment(job)) == FIT
        assert "expected a file that only root can write; the defaults apply" in Path(places.log).read_text()


@pytest.mark.parametrize("line", ["drian: on", "keep_memory_s: soon", "no colon"])
def test_a_setting_that_is_not_understood_is_named_with_its_line(places: Places, line: str) -> None:
    settings(places, f"# ours\n{line}\n")
    with pytest.raises(SettingsError, match=r"hooks.yaml:2: got .*expected a line 'key: value' with one of drain"):
        places.settings()


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_JOB_ID": "../../etc"},
        {"SLURM_JOB_ID": "7\n8"},
        {"SLURM_JOB_ID": "٧"},
        {"SLURM_JOB_ID": ""},
        {"SLURM_JOB_ID": "99999999999"},
        {"SLURM_JOB_UID": "-1"},
        {"SLURM_JOB_UID": "0x0"},
        {"SLURM_CLUSTER_NAME": "../../etc"},
        {"SLURM_CLUSTER_NAME": ""},
    ],
)
def test_what_names_no_job_is_refused(env: dict[str, str], job: HookJob) -> None:
    with pytest.raises(EnvironmentRefused, match=r"expected (a number|letters)"):
        HookJob.from_env(environment(job) | env)


def test_a_node_name_that_is_none_is_refused(places: Places) -> None:
    hook = Hook(places=places, settings=places.settings(), env={"SLURMD_NODENAME": "../n1"}, deadline_s=0)
    with pytest.raises(EnvironmentRefused, match="node name"):
        _ = hook.node
