"""NCCL's network: what its log says (lines as real clusters wrote them), what is set with EFA, and the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.env.env_lint import remarks
from launcher.env.fabric import NETWORK_NAME, efa_devices, fabric_environment, read_nccl_log, wrong
from launcher.runner.network import NetworkWatch, nccl_log_pattern
from lifecycle import Expected, expected

LOGS = Path(__file__).with_name("nccl_logs")
P5EN = Expected(instance="p5en.48xlarge", gpus=8, efa=16)


@pytest.mark.parametrize(
    ("log", "network", "provider", "nics", "plugin"),
    [
        ("p5en_libfabric", "Libfabric", "efa", 16, "1.13.2-aws"),
        ("p5_efa_direct", "Libfabric", "efa", 32, "1.17.1"),
        ("p4d_one_card", "Libfabric", "efa", 1, None),
        ("aws_libfabric_1.5", "AWS Libfabric", "efa", 1, "1.5.0aws"),
        ("socket_no_plugin", "Socket", None, None, None),
        ("socket_no_provider", "Socket", None, None, "1.14.0"),
        ("libfabric_over_tcp", "AWS Libfabric", "tcp", 2, "1.21.1"),
    ],
)
def test_a_log_says_which_network_and_how_many_cards(
    log: str, network: str, provider: str | None, nics: int | None, plugin: str | None
) -> None:
    observed = read_nccl_log((LOGS / f"{log}.log").read_text())
    assert (observed.network, observed.provider, observed.nics, observed.plugin) == (network, provider, nics, plugin)


@pytest.mark.parametrize(
    ("log", "hardware", "verdict"),
    [
        ("p5en_libfabric", P5EN, None),
        ("p5_efa_direct", expected("p5.48xlarge"), None),
        ("p5_efa_direct", None, None),
        ("aws_libfabric_1.5", None, None),
        ("p4d_one_card", expected("p4d.24xlarge"), "NCCL found 1 EFA cards, expected 4 on p4d.24xlarge"),
        ("socket_no_plugin", P5EN, "NCCL uses network Socket, expected libfabric over EFA: NET/Plugin : dlerror="),
        ("socket_no_provider", None, "expected libfabric over EFA: NET/OFI Could not find any optimal provider"),
        ("libfabric_over_tcp", P5EN, "NCCL uses libfabric's provider tcp, expected efa"),
    ],
)
def test_the_verdict_names_what_is_used_what_is_expected_and_why(
    log: str, hardware: Expected | None, verdict: str | None
) -> None:
    said = wrong(read_nccl_log((LOGS / f"{log}.log").read_text()), hardware)
    assert (said is None) if verdict is None else (said is not None and verdict in said)


@given(st.text(max_size=400))
def test_no_log_breaks_the_reader(text: str) -> None:
    observed = read_nccl_log(text)
    assert observed.nics is None or observed.nics >= 0


@pytest.fixture
def efa_node(tmp_path: Path) -> Path:
    """The root of a file system as on a node with two EFA cards, another maker's card, and the plugin."""
    for device, vendor in (("rdmap86s0", "0x1d0f"), ("rdmap87s0", "0x1d0f"), ("mlx5_0", "0x15b3")):
        folder = tmp_path / "sys/class/infiniband" / device / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
    plugin = tmp_path / "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    return tmp_path


LOGGING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": "/log/nccl-n1.%p.log"}


@pytest.mark.parametrize(
    ("mode", "environment", "is_set"),
    [
        ("require", {}, {**LOGGING, "NCCL_NET_PLUGIN": "ofi", "NCCL_NET": NETWORK_NAME}),
        ("prefer", {}, {**LOGGING, "NCCL_NET_PLUGIN": "ofi"}),
        ("any", {}, {}),
        ("prefer", {"NCCL_DEBUG": "WARN", "NCCL_NET_PLUGIN": "x"}, {k: LOGGING[k] for k in list(LOGGING)[1:]}),
    ],
)
def test_on_a_node_with_efa_little_is_set_and_the_users_values_win(
    mode: str, environment: dict[str, str], is_set: dict[str, str], efa_node: Path
) -> None:
    assert efa_devices(efa_node) == ("rdmap86s0", "rdmap87s0")
    assert fabric_environment(mode, environment, LOGGING["NCCL_DEBUG_FILE"], efa_node) == is_set


def test_a_plugin_that_has_not_the_name_is_left_to_nccl(efa_node: Path) -> None:
    """Before 1.15 it was called libnccl-net.so only: asked for as `ofi`, NCCL would find none."""
    plugin = efa_node / "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
    plugin.rename(plugin.with_name("libnccl-net.so"))
    assert "NCCL_NET_PLUGIN" not in fabric_environment("require", {}, "log", efa_node)
    moved = efa_node / "shared" / "libnccl-net-ofi.so"
    moved.parent.mkdir()
    moved.touch()
    found = fabric_environment("require", {"LD_LIBRARY_PATH": "/usr/lib:/shared"}, "log", efa_node)
    assert found["NCCL_NET_PLUGIN"] == "ofi"


@pytest.mark.parametrize("mode", ["require", "prefer", "any"])
def test_on_a_node_without_efa_nothing_is_set(mode: str, tmp_path: Path) -> None:
    assert fabric_environment(mode, {}, "log", tmp_path) == {}


def test_a_watch_tells_once_of_the_first_worker_with_a_wrong_network(tmp_path: Path) -> None:
    pattern = nccl_log_pattern(tmp_path, "n1")
    watch = NetworkWatch([7, 8], pattern, P5EN)
    assert watch.look() is None  # no log yet
    good = (LOGS / "p5en_libfabric.log").read_text()
    (tmp_path / "nccl-n1.7.log").write_text(good[: len(good) // 2])
    assert watch.look() is None  # not said yet
    (tmp_path / "nccl-n1.7.log").write_text(good)
    assert watch.look() is None
    (tmp_path / "nccl-n1.8.log").write_text((LOGS / "socket_no_provider.log").read_text())
    said = watch.look()
    assert said is not None and said.startswith("NCCL uses network Socket") and "nccl-n1.8.log" in said
    assert watch.look() is None


@pytest.mark.parametrize(
    ("environment", "has_efa", "verdicts"),
    [
        ({}, True, []),
        ({"NCCL_NET": "AWS Libfabric", "NCCL_DEBUG": "INFO", "FI_EFA_USE_HUGE_PAGE": "0"}, True, []),
        ({"RDMAV_FORK_SAFE": "1"}, False, [("RDMAV_FORK_SAFE", "harmful")]),
        (
            {"FI_EFA_FORK_SAFE": "1", "FI_PROVIDER": "efa"},
            True,
            [("FI_EFA_FORK_SAFE", "stale"), ("FI_PROVIDER", "stale")],
        ),
        ({"FI_PROVIDER": "tcp", "NCCL_NET": "Socket"}, True, [("FI_PROVIDER", "harmful"), ("NCCL_NET", "harmful")]),
        ({"FI_PROVIDER": "tcp", "NCCL_NET": "Socket"}, False, []),
        ({"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}, True, [("NCCL_PROTO", "harmful"), ("NCCL_ALGO", "stale")]),
        ({"NCCL_P2P_DISABLE": "0", "CUDA_LAUNCH_BLOCKING": "1"}, False, [("CUDA_LAUNCH_BLOCKING", "harmful")]),
        ({"NCCL_SOCKET_IFNAME": "^docker,lo,veth"}, True, []),
    ],
)
def test_stale_and_harmful_variables_are_told_apart(
    environment: dict[str, str], has_efa: bool, verdicts: list[tuple[str, str]]
) -> None:
    said = remarks(environment, has_efa=has_efa)
    assert [(remark.variable, remark.severity) for remark in said] == verdicts
    assert all(remark.reason for remark in said)
