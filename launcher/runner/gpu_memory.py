"""Memory on the node's GPUs that ended workers still hold.

The driver may free a killed process's memory some time after the process has gone, and not at all while another process
shares it. The next attempt's workers would run out of memory. So what is in use after the end of workers is compared
with the least that was ever in use on the same GPU without any. The workers have ended, so a process that still lives
on a GPU is somebody else's, as on a laptop: such a GPU is not compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from holdfast.base.deadlines import within

log = logging.getLogger(__name__)

TOLERANCE_BYTES = 512 << 20  # the driver's own share varies
NVML_S = 5.0  # for an answer; the driver of a GPU that is lost may never give one


def _import_nvml() -> Any:
    import pynvml

    return pynvml


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class GpuMemory:
    """Watches the memory of GPUs. Call order: `learn` before the first workers, `held` after the end of any.

    Where NVML cannot say anything, nothing counts as held.

    Args:
        names: the GPUs, as CUDA_VISIBLE_DEVICES names them.
        nvml: imports NVIDIA's management library.
        is_alive: whether there is a process with this pid.
    """

    def __init__(
        self,
        names: Collection[str],
        nvml: Callable[[], Any] = _import_nvml,
        is_alive: Callable[[int], bool] = _is_alive,
    ) -> None:
        self._names = names
        self._is_alive = is_alive
        self._import = nvml
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._least: dict[str, int] = {}  # bytes in use without workers
        self._is_silent = False

    async def learn(self) -> None:
        """Notes how much is in use without workers."""
        await self._ask(lambda: self._over(self._names))

    async def held(self, names: Collection[str]) -> str:
        """The GPUs, of these, on which more is in use than without workers, with the processes; "" if none is."""
        return await self._ask(lambda: self._over(names))

    def _over(self, names: Collection[str]) -> str:
        if self._nvml is None:
            nvml = self._import()
            nvml.nvmlInit()
            self._handles = {name: _handle(nvml, name) for name in self._names}
            self._nvml = nvml
        found = []
        for name in names:
            used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handles[name]).used)
            least = self._least[name] = min(used, self._least.get(name, used))
            if used - least > TOLERANCE_BYTES and not any(map(self._is_alive, pids := self._pids(name))):
                by = f" of process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}" if pids else ""
                found.append(f"GPU {name}: {(used - least) >> 20} MiB{by}")
        return "; ".join(found)

    def _pids(self, name: str) -> list[int]:
        """The processes on a GPU. NVML does not see those of another PID namespace."""
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[name])
        return sorted(process.pid for process in found)

    async def _ask(self, question: Callable[[], str]) -> str:
        """The answer of NVML; "" after it has once failed.

        A thread of its own asks, for which nobody waits at the end of this process.
        """
        if self._is_silent:
            return ""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def ask() -> None:
            found, error = "", None
            try:
                found = question()
            except Exception as failure:  # the class of NVML's errors is known only after its import
                error = failure
            with contextlib.suppress(RuntimeError):  # this process has ended its event loop meanwhile
                loop.call_soon_threadsafe(_give, answer, found, error)

        threading.Thread(target=ask, name="nvml", daemon=True).start()
        try:
            return await within(NVML_S, answer)
        except Exception as error:
            self._is_silent = True
            why = str(error) or f"no answer within {NVML_S:g} s"
            log.warning("memory that ended workers hold on this node's GPUs is not seen: NVML: %s", why)
            return ""


def _give(answer: asyncio.Future[str], found: str, error: Exception | None) -> None:
    if answer.done():  # nobody waits any more
        return
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)


def _handle(nvml: Any, name: str) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
