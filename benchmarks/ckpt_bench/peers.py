"""Other projects that hold checkpoints in memory, where they are installed: DLRover's flash checkpoint.

It runs in a process of its own, which this module is the program of: it configures logging, and starts a process that
would write the checkpoint to storage. Its sockets and its memory are named after TORCHELASTIC_RUN_ID.

NVIDIA's resiliency extension refuses tensors that are not on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ckpt_bench.figures import timed_s

DLROVER, NVRX = "DLRover's flash checkpoint", "NVRx"
NVRX_NEEDS = "it takes GPU tensors only"
_SOCKETS = Path("/tmp/ckpt_sock")  # where DLRover has a folder for each run


class Dlrover:
    """DLRover's checkpointer with a state of its own.

    Args:
        nbytes: size of the state, made as for the other measurements.
        memory: directory for its files.

    Attributes:
        missing: why nothing can be measured; empty if it can.
    """

    def __init__(self, nbytes: int, memory: Path) -> None:
        self.missing = "" if importlib.util.find_spec("dlrover") else "it is not installed"
        self._run_id = f"holdfast-bench-{os.getpid()}"
        self._process: subprocess.Popen[str] | None = None
        if not self.missing:
            path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
            environment = {**os.environ, "PYTHONPATH": path, "TORCHELASTIC_RUN_ID": self._run_id}
            argv = [sys.executable, "-m", "ckpt_bench.peers", str(nbytes), str(memory)]
            self._process = subprocess.Popen(
                argv, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self._ask("save")  # the first takes new memory

    def save_s(self) -> float | None:
        """Seconds for which a save blocks; None if it cannot be measured."""
        return self._ask("save")

    def load_s(self) -> float | None:
        """Seconds to load and to copy into the state's tensors. Its memory is already mapped, and is not verified."""
        return self._ask("load")

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None
        shutil.rmtree(_SOCKETS / self._run_id, ignore_errors=True)

    def _ask(self, what: str) -> float | None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            return float(process.stdout.readline())
        except (OSError, ValueError):
            process.wait()
            self.missing, self._process = f"its process failed with exit code {process.returncode}", None
            return None


def main(nbytes: int, memory: str) -> None:
    """Answers each line, "save" or "load", with its seconds, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what it prints is no answer
    from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

    from ckpt_bench.run import make_state

    state, step = make_state(nbytes), 0
    checkpointer = DdpCheckpointer(memory)

    def save() -> None:
        checkpointer.save_checkpoint(step, dict(state), storage_type=StorageType.MEMORY)

    def load() -> None:
        loaded = checkpointer.load_checkpoint()
        for name, tensor in state.items():
            tensor.copy_(loaded[name])

    for line in sys.stdin:
        step += 1
        print(timed_s(save if line.strip() == "save" else load), file=answers, flush=True)
    shared = checkpointer._engine._shm_handler.shared_memory
    if shared is not None:
        shared.unlink()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
