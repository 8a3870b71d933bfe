"""Torch's static rendezvous, which only the job's hosts reach.

Torch's TCPStore serves whoever connects: each client can list, read and write all keys. So we make the socket on which
it listens.
"""

from __future__ import annotations

import logging
from typing import Any

from torch.distributed import Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from launcher.job_socket import bound_socket, keep_out_others

log = logging.getLogger(__name__)

_BACKLOG = 4096  # all workers of a large job connect at once; the kernel caps it at net.core.somaxconn


class JobRendezvous(StaticTCPRendezvous):
    """The rendezvous of an attempt's elastic agents; the first node's serves the store, to the workers as well.

    Args:
        task: the attempt as given to the warm process.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(
            task["master_addr"],
            task["master_port"],
            task["node_rank"],
            task["nodes"],
            task["run_id"],
            task["rendezvous_timeout_s"],
        )
        self._store: Store | None = None
        self._hosts = task["hosts"]

    def next_rendezvous(self) -> RendezvousInfo:
        if self.rank == 0 and self._store is None:
            self._store = self._serve()
        return super().next_rendezvous()

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
            master_listen_fd=bound.detach(),
        )
