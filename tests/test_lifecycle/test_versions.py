"""Which versions belong together: the table is whole, and the resolver names a conflict with its reason."""

from __future__ import annotations

import json

import pytest

from launcher.cli import main
from lifecycle.versions import Installed, VersionError, ordered, pin, resolve, table


def test_versions_compare_by_their_numbers() -> None:
    assert ordered("2.1.0amzn5.0") == ordered("2.1") < ordered("2.4.0amzn5.0") < ordered("2.10.0")
    assert ordered("2.9.1+cu128") == (2, 9, 1) == ordered("v2.9.1")
    for bad in ("", "latest", "x1"):
        with pytest.raises(VersionError, match="expected one that begins with numbers"):
            ordered(bad)


def test_every_torch_of_the_table_has_an_nccl_the_plugin_works_with() -> None:
    for torch in table()["torch"]:
        pinned = pin(torch)
        assert ordered(pinned.nccl) >= ordered(table()["rules"]["nccl_min"])
        assert pinned.efa_sha256, "the default installer is one whose checksum is known"
        assert resolve(Installed(torch=torch)).conflicts == ()


def test_every_installer_of_the_table_fits_its_own_rules_and_newer_brings_newer() -> None:
    rows = list(table()["efa"].items())
    for version, row in rows:
        found = Installed(efa=version, plugin=row["plugin"], libfabric=row["libfabric"], torch_nccl="2.27.5")
        assert resolve(found, efa=version).conflicts == ()
    assert [ordered(version) for version, _ in rows] == sorted((ordered(version) for version, _ in rows), reverse=True)
    assert [ordered(row["plugin"]) for _, row in rows] == sorted((ordered(r["plugin"]) for _, r in rows), reverse=True)


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (Installed(torch_nccl="2.14.3"), "NCCL 2.14.3: aws-ofi-nccl needs 2.17.1 or newer"),
        (Installed(torch="2.9.1+cu128", system_nccl="2.21.5"), "system NCCL 2.21.5 shadows the NCCL 2.27.5"),
        (Installed(plugin="1.5.0"), "needs NCCL_PROTO=simple"),
        (Installed(plugin="1.6.0"), "older than 1.7.0"),
        (Installed(plugin="1.15.0", libfabric="1.18.0"), "libfabric 1.18.0: aws-ofi-nccl 1.15.0 needs 1.22.0"),
        (Installed(efa="1.42.0"), "aws-ofi-nccl is not: NCCL would use sockets"),
    ],
)
def test_a_conflict_is_named_with_its_reason(installed: Installed, said: str) -> None:
    (conflict,) = resolve(installed).conflicts
    assert said in conflict


def test_what_torch_says_of_its_nccl_counts_more_than_the_table() -> None:
    verdict = resolve(Installed(torch="2.99.0", torch_nccl="2.40.1"))
    assert (verdict.pinned.torch, verdict.pinned.nccl, verdict.conflicts) == ("2.99.0", "2.40.1", ())


def test_a_torch_or_installer_that_the_table_lacks_is_said() -> None:
    with pytest.raises(VersionError, match=r"got '2.9.7', expected one of .*; the table has 2.9.1"):
        resolve(Installed(torch="2.9.7"))
    with pytest.raises(VersionError, match="EFA installer: got '9'"):
        pin(efa="9")


def test_the_files_that_provisioning_fetches_are_listed_for_a_mirror(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "versions", "--files", "--efa", "1.49.0"]) == 0
    rows = [line.split(" ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == list(table()["artifacts"])
    assert rows[0][1:3] == [table()["efa"]["1.49.0"]["sha256"], "aws-efa-installer-1.49.0.tar.gz"]
    assert all(url.endswith(f"/{file}") and "{" not in url for _, _, file, url in rows)
    assert len({file for _, _, file, _ in rows}) == len(rows), "a mirror has them side by side"
    assert any(sum_ == "-" for _, sum_, _, _ in rows)

    assert main(["node", "versions", "--files", "--json"]) == 0
    assert [row["artifact"] for row in json.loads(capsys.readouterr().out)] == [row[0] for row in rows]
    assert main(["node", "versions", "--files", "--efa", "9"]) == 2
