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
from slurm.hooks.places import Places
from slurm.hooks.settings import HookSettings, read_settings, write_settings


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


class TestSettings:
    """What people write is compiled; hooks notice when it is not."""

    def test_without_files_the_defaults_apply_without_a_word(self, places: Places) -> None:
        found, problem = read_settings(places)
        assert vars(found) == vars(HookSettings()) and problem == ""

    def test_what_was_compiled_is_read_as_it_was(self, places: Places) -> None:
        given = HookSettings(
            drain="on", keep_memory_s=1.5, local_disk="/a", reboot="/b", max_drained="3", check="prolog"
        )
        write_settings(places, given, "")
        found, problem = read_settings(places)
        assert vars(found) == vars(given) and problem == ""

    def test_a_file_that_nobody_compiled_is_told_and_not_taken(self, places: Places) -> None:
        settings(places, "drain: on\n")
        Path(places.compiled_settings).unlink()
        found, problem = read_settings(places)
        assert found.drain == "off" and "hooks.yaml is not compiled: the defaults apply; run `holdfast node" in problem

    @pytest.mark.parametrize("now", ["drain: off\n", None])
    def test_a_change_that_nobody_compiled_is_told_and_the_older_settings_stay(
        self, places: Places, now: str | None
    ) -> None:
        settings(places, "drain: on\n")
        Path(places.settings_file).unlink() if now is None else Path(places.settings_file).write_text(now)
        found, problem = read_settings(places)
        assert found.drain == "on" and "was changed after it was compiled: the older settings apply" in problem

    @pytest.mark.parametrize("damage", ["", "drain on\n", "keep_memory_s soon", "drian on"])
    def test_a_compiled_file_that_is_not_whole_is_not_taken(self, places: Places, damage: str) -> None:
        settings(places, "drain: on\n")
        Path(places.compiled_settings).write_text(damage + "\n--- compiled from:\ndrain: on\n" if damage else "")
        found, problem = read_settings(places)
        assert found.drain == "off" and "not a compiled file of this version" in problem

    def test_a_compiled_file_that_others_can_write_is_not_taken(self, places: Places) -> None:
        settings(places, "drain: on\n")
        Path(places.compiled_settings).chmod(0o666)
        found, problem = read_settings(places)
        assert found.drain == "off" and "expected a file that only root can write; the defaults apply" in problem


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
    hook = Hook(places=places, settings=HookSettings(), env={"SLURMD_NODENAME": "../n1"}, deadline_s=0)
    with pytest.raises(EnvironmentRefused, match="node name"):
        _ = hook.node
