"""Torch's static rendezvous, reachable only from the job's hosts.

Torch's TCPStore serves every client, and each client can list, read and write all keys. So this module creates the
socket on which it listens.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import Any

import torch
from torch.distributed import Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from launcher.connections.job_socket import bound_socket, keep_out_others

log = logging.getLogger(__name__)

_BACKLOG = 4096  # all workers of a large job connect at once; the kernel limits it to net.core.somaxconn
# If nothing listens yet, torch's client tries again after half a second, and then at longer intervals.
_LOOKS_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.05
# torch's server over libuv refuses a socket that it has not made (seen in 2.6). Its older server takes one in every
# release, and serves the same clients.
_LIBUV_SINCE = (2, 8)


class JobRendezvous(StaticTCPRendezvous):
    """The rendezvous of an attempt's elastic agents. The first node's agent serves the store, also to the workers.

    Args:
        task: the attempt as given to the warm process.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(
            task["master_addr"],
            task["master_port"],
            task["node_rank"],
            task["nodes"],
            f"{task['run_id']}-{task['attempt']}",
            task["rendezvous_timeout_s"],
        )
        self._store: Store | None = None
        self._hosts = task["hosts"]

    def next_rendezvous(self) -> RendezvousInfo:
        if self.rank == 0 and self._store is None:
            self._store = self._serve()
        elif self._store is None:
            self._wait_for_the_first()
        return super().next_rendezvous()

    def _wait_for_the_first(self) -> None:
        """Waits until the first node listens. If that takes long, torch waits and reports it."""
        until_s, pause_s = time.monotonic() + _LOOKS_S, _FIRST_PAUSE_S
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                socket.create_connection((self.master_addr, self.master_port), left_s).close()
                return
            except OSError:
                time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _serve(self) -> TCPStore:
        bound = bound_socket(self.master_addr, self.master_port)
        try:
            keep_out_others(bound, self._hosts)
        except OSError as error:
            log.warning("torch's rendezvous accepts connections from every host: no socket filter here: %s", error)
        bound.listen(_BACKLOG)
        return TCPStore(
            self.master_addr,
            self.master_port,
            self.world_size,
            is_master=True,
            timeout=self.timeout,
            multi_tenant=True,
            use_libuv=torch.__version__ >= _LIBUV_SINCE,
            master_listen_fd=bound.detach(),
        )
