"""`python -m ckpt.agent`: the agent of an active node. Its environment has its configuration (HOLDFAST_*)."""

from __future__ import annotations

import logging
import os
import signal
import sys

from ckpt.agent.agent import run_agent
from ckpt.agent.process.fabric import mpi_settings
from ckpt.agent.process.launch import UNTIL_UNUSED
from ckpt.agent.process.lifetime import MemoryDirectory, TerminatedLate, leave_within, yield_to_training
from ckpt.agent.rpc.transport import MpiTransport, SoloTransport, Transport
from ckpt.config import Place, config_from_env
from ckpt.errors import CheckpointError
from ckpt.timeouts import AgentDeadlines


def main(*, forked: bool = False) -> int:
    """Returns the exit code: 0 after a shutdown, 1 if the agent could not start."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals every process of a step; only a monitor stops the agent
    os.umask(0o077)
    deadlines = AgentDeadlines()
    terminated = TerminatedLate(deadlines.last_s)
    try:
        place, config = Place.from_env(os.environ), config_from_env(os.environ)
        if place.generation:
            yield_to_training()  # training runs meanwhile
        form = f"%(asctime)s agent {place.node} %(levelname)s %(message)s"
        logging.basicConfig(level=logging.INFO, format=form, stream=sys.stderr)
        memory = MemoryDirectory(place.ram_dir, deadlines.world_s)
        transport: Transport = SoloTransport()
        if len(place.members) > 1:
            os.environ.update(mpi_settings(os.environ))
            with leave_within(deadlines.world_s, f"agents of {', '.join(place.members)} to meet", exit_code=1):
                transport = MpiTransport(place.members, place.node)
        terminated.ignore()
        until_unused = UNTIL_UNUSED in sys.argv[1:]
        run_agent(place, config, transport, deadlines, memory, until_unused=until_unused, forked=forked)
    except (CheckpointError, OSError) as error:
        print(f"ckpt.agent: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
