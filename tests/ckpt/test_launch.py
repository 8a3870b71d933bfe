"""What the agents' launcher exports."""

from __future__ import annotations

from ckpt.agent.launch import environment


def test_mpi_opens_no_one_sided_transport_unless_the_user_asks_for_it() -> None:
    assert environment(env={})["OMPI_MCA_btl"] == "^ofi"
    assert environment(env={"OMPI_MCA_btl": "self,tcp"})["OMPI_MCA_btl"] == "self,tcp"


def test_on_one_machine_agents_use_the_loopback_interface_whatever_the_user_has_set() -> None:
    settings = environment(loopback=True, env={"OMPI_MCA_btl": "^tcp"})
    assert settings["OMPI_MCA_btl"] == "self,tcp" and settings["OMPI_MCA_btl_tcp_if_include"] == "lo"
