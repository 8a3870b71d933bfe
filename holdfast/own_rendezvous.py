"""Lets a script open process groups at an address of its own, also in the processes of torch.multiprocessing.spawn.

Under torch elastic, every process takes the agent's store for the one at its address, and rank 0 starts none. At
another port nobody listens, so the ranks wait for the whole timeout, under torchrun too.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module
from typing import Any

_KEY = "TORCHELASTIC_USE_AGENT_STORE"


def serve_other_ports(agent_port: int) -> None:
    """From now on, the agent's store stands for its own port only."""
    rendezvous: Any = import_module("torch.distributed.rendezvous")
    spawn: Any = import_module("torch.multiprocessing.spawn")
    create: Any = rendezvous._create_c10d_store

    @functools.wraps(create)
    def at_its_port(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if port == agent_port or os.environ.get(_KEY) != "True":
            return create(hostname, port, *args, **kwargs)
        os.environ[_KEY] = "False"
        try:
            return create(hostname, port, *args, **kwargs)
        finally:
            os.environ[_KEY] = "True"

    rendezvous._create_c10d_store = at_its_port
    spawn._wrap = _Spawned(agent_port, spawn._wrap)


class _Spawned:
    """Torch's function for spawned processes. A process that unpickles it heeds the port too."""

    def __init__(self, agent_port: int, run: Any) -> None:
        self._agent_port = agent_port
        self._run = run

    def __call__(self, *arguments: Any) -> None:
        self._run(*arguments)

    def __reduce__(self) -> Any:
        return _in_child, (self._agent_port,)


def _in_child(agent_port: int) -> Any:
    serve_other_ports(agent_port)
    return sys.modules["torch.multiprocessing.spawn"]._wrap
