"""Reads a user's requests to a running job from files in its folder, as inputs of the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from launcher.core import inputs
from launcher.core.inputs import Input
from launcher.job.scale_request import ScaleRequest
from launcher.job.stop_request import StopRequest

LOOK_S = 1.0


async def bring_in_requests(job_dir: Path, bring_in: Callable[[Input], None]) -> None:
    """Read the requests repeatedly and give them to the core. In a thread: the file system may be slow."""
    seen: StopRequest | None = None
    size: ScaleRequest | None = None
    while True:
        request = await asyncio.to_thread(StopRequest.read, job_dir)
        if request is not None and request != seen and not request.is_served:
            seen = request
            halt = inputs.HaltAsked(at_step=request.at_step or 0, at_s=request.at_s or 0.0)
            bring_in(halt)
        wanted = await asyncio.to_thread(ScaleRequest.read, job_dir)
        if wanted is not None and wanted != size:
            size = wanted
            bring_in(inputs.ScaleAsked(nodes=wanted.nodes))
        await asyncio.sleep(LOOK_S)
