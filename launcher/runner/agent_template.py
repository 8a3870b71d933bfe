"""Controls the node's template, from which checkpoint agents are forked (ckpt.agent.template)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from pathlib import Path

from ckpt.agent.process.launch import RESERVE, template
from holdfast.base.environment import Variable

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class AgentTemplate:
    """Keeps a template running as long as run() runs. Without a template agents start too, but more slowly.

    Args:
        ram_dir: the node's memory directory.
    """

    def __init__(self, ram_dir: Path) -> None:
        self._ram_dir = ram_dir
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Replaces a template that ends. The longer it ran, the sooner."""
        pause_s = _FIRST_PAUSE_S
        environment = os.environ | {Variable.RAM_DIR: str(self._ram_dir)} | RESERVE
        while True:
            since_s = time.monotonic()
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    *template(os.getpid()), stdin=asyncio.subprocess.DEVNULL, env=environment
                )
                reason = f"ended with code {await process.wait()}"
            except OSError as error:
                reason = f"cannot be started: {error}"
            lived_s = time.monotonic() - since_s
            pause_s = _FIRST_PAUSE_S if lived_s > _LONGEST_PAUSE_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            log.warning("the template of the checkpoint agents %s; another in %g s", reason, pause_s)
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """Ends the template. Call it after cancelling run()."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
