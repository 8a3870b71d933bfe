"""holdfast ckpt rebuild: from the directories of the survivors alone, every loss within the promise, none beyond."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from agent_kit import NAMESPACE, World, config, content, lose, run
from parity_kit import NODES, SCHEMES, of, saved
from test_recover import damage
from verb_kit import ckpt

from ckpt.format.shard_record import read_record
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.quarantine import note_quarantined

LENGTHS = [0, 9000, 1, 300, 0, 7, 5000, 63]


def data(rank, step):
    return content(rank, step, LENGTHS[rank])


def rebuild(*arguments):
    return ckpt("rebuild", *arguments)


def snapshot(directories):
    return {path: path.read_bytes() for directory in directories for path in directory.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("lost", [c for n in range(1, 4) for c in combinations(NODES, n)], ids="".join)
def test_every_loss(tmp_path, name, lost):
    run(lambda: saved(tmp_path, of(name), data=data))
    lose(tmp_path, *lost)
    left = [tmp_path / node for node in NODES if node not in lost]
    before = snapshot(left)
    target = tmp_path / "target"
    result = rebuild(*left, "--into", target, "--json")
    if len(lost) <= SCHEMES[name][1]:
        assert result.exit_code == 0, result.output
        value = json.loads(result.stdout)
        ranks = [2 * NODES.index(node) + i for node in sorted(lost) for i in range(2)]
        assert (value["step"], [row["rank"] for row in value["rebuilt"]]) == (20, ranks)
        for path in target.glob("*.json"):
            record = read_record(target, path.stem)
            assert path.with_suffix(".data").read_bytes() == data(record.rank, 20)
            assert path.stat().st_mode & 0o777 == path.with_suffix(".data").stat().st_mode & 0o777 == 0o600
        assert len(list(target.glob("copy-*.json"))) == len(ranks)
        assert ckpt("verify", str(target)).exit_code == 0
    else:
        assert result.exit_code == 1
        assert "no step can be completed: step 20 of attempt 0: rank" in result.stderr
        which = f"set a, b, c, d without {', '.join(lost)}: "
        assert which in result.stderr or "no parity with a copy of its record is left" in result.stderr
        assert not list(target.iterdir())
    assert snapshot(left) == before


def test_agents_that_start_on_the_target_take_it_up(tmp_path):
    async def restore():
        async with World(tmp_path, ["a", "x", "c", "d"], 1, of("xor"), ranks_per_node=2) as world:
            assert (await world.plan())["step"] == 20
            assert await world.contents(8) == [data(rank, 20) for rank in range(8)]
            assert not [event for monitor in world.monitors for event in monitor.seen("problem")]

    run(lambda: saved(tmp_path, of("xor"), data=data))
    lose(tmp_path, "b")
    assert rebuild(*(tmp_path / n for n in "acd"), "--into", tmp_path / "x").exit_code == 0
    for node in "acd":
        for path in (tmp_path / node).glob("parity-*"):
            path.unlink()
    run(restore)


def test_a_step_committed_to_a_lower_tier_is_loaded_by_any_run(tmp_path, monkeypatch):
    async def restore():
        async with World(tmp_path, ["x"], 0, config(tmp_path / "shared")) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"], plan["world_size"]) == (20, "shared", 8)
            assert await world.contents(8) == [data(rank, 20) for rank in range(8)]

    run(lambda: saved(tmp_path, of("xor"), data=data))
    lose(tmp_path, "b")
    shared = tmp_path / "shared"
    for made in ([2, 3], []):
        again = rebuild(*(tmp_path / n for n in "acd"), *shared.parent.glob("made"), "--into", tmp_path / "made",
                        "--commit-to", shared, "--json")  # fmt: skip
        value = json.loads(again.stdout)
        assert [row["rank"] for row in value["rebuilt"]] == made
        assert value["committed_to"] == str(shared / NAMESPACE)
    assert ckpt("verify", str(shared)).exit_code == 0
    monkeypatch.setattr("agent_kit.RUN_ID", "run-2")
    run(restore)


def test_a_damaged_survivor_counts_as_lost_and_an_older_step_is_taken_and_said(tmp_path):
    run(lambda: saved(tmp_path, of("xor"), data=data))
    lose(tmp_path, "b")
    damage(tmp_path / "a" / "own-1-1.data")
    left = [tmp_path / node for node in "acd"]
    result = rebuild(*left, "--into", tmp_path / "x")
    assert result.exit_code == 0
    assert "passed over: step 20" in result.stdout and "step 10: 2 of 8 shards rebuilt" in result.stdout
    assert rebuild(*left, "--into", tmp_path / "y", "--step", 20).exit_code == 1


def test_a_step_that_a_restore_has_quarantined_is_rebuilt_only_by_its_number(tmp_path):
    run(lambda: saved(tmp_path, of("xor"), data=data))
    lose(tmp_path, "b")
    left = [tmp_path / node for node in "acd"]
    saves = {read_record(tmp_path / "a", path.stem).save for path in (tmp_path / "a").glob("own-*.json")}
    newest = max(saves, key=lambda save: save.step)
    note_quarantined(tmp_path / "c", directory_name(newest), "the script has gone back")
    result = rebuild(*left, "--into", tmp_path / "x")
    assert result.exit_code == 0 and "step 10: 2 of 8 shards rebuilt" in result.stdout
    assert "step 20 of attempt 0: quarantined: the script has gone back; to take it: --step" in result.stdout
    assert "step 20: 2 of 8 shards rebuilt" in rebuild(*left, "--into", tmp_path / "y", "--step", 20).stdout


def test_a_damaged_shard_of_a_node_that_is_left_is_made_again_beside_it(tmp_path):
    run(lambda: saved(tmp_path, of("xor"), data=data))
    damage(tmp_path / "a" / "own-1-1.data")
    before = snapshot([tmp_path / "a"])
    result = rebuild(*(tmp_path / node for node in NODES), "--into", tmp_path / "a", "--json")
    assert [row["rank"] for row in json.loads(result.stdout)["rebuilt"]] == [1]
    after = snapshot([tmp_path / "a"])
    assert before.items() <= after.items()
    again = rebuild(*(tmp_path / node for node in NODES), "--into", tmp_path / "a", "--json")
    assert json.loads(again.stdout)["rebuilt"] == []


def test_a_copy_is_as_good_as_parity(tmp_path):
    run(lambda: saved(tmp_path, config()))
    lose(tmp_path, "b")
    result = rebuild(*(tmp_path / node for node in "acd"), "--into", tmp_path / "x", "--json")
    assert (json.loads(result.stdout)["step"], json.loads(result.stdout)["rebuilt"]) == (20, [])


def test_verify_and_ls_know_parity(tmp_path):
    run(lambda: saved(tmp_path, of("xor"), steps=(10,)))
    (row,) = json.loads(ckpt("ls", str(tmp_path / "a"), "--json").stdout)
    assert (row["shards"], row["bytes"], row["parity_bytes"]) == (2, 10_000, 3_392)
    assert "2 + parity" in ckpt("ls", str(tmp_path / "a")).stdout
    damage(tmp_path / "a" / "parity-0.data")
    result = ckpt("verify", str(tmp_path / "a"))
    assert result.exit_code == 1 and "DAMAGED parity of a in" in result.stdout


def test_a_directory_above_the_nodes_is_answered_with_those_that_are_wanted(tmp_path):
    run(lambda: saved(tmp_path, of("xor"), steps=(10,)))
    result = rebuild(tmp_path, "--into", tmp_path / "x")
    assert result.exit_code == 2 and "expected nodes' memory directories" in result.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["missing", "empty", "no such step"])
def test_directories_without_anything_are_a_usage_error_in_one_line(tmp_path, kind):
    path, more = tmp_path / "x", []
    if kind != "missing":
        path.mkdir(mode=0o700)
    if kind == "no such step":
        run(lambda: saved(tmp_path, of("xor"), ["x", "b"], 1, (10,)))
        more = ["--step", "99"]
    result = rebuild(path, "--into", tmp_path / "y", *more)
    assert result.exit_code == 2
    assert result.stderr.startswith("holdfast: error: ") and len(result.messages) == 1


@pytest.mark.parametrize("arguments", [["s3://bucket/prefix", "--into", "DIR"], ["DIR", "--into", "s3://bucket/x"]])
def test_a_bucket_has_nothing_to_rebuild_from_and_says_what_to_do_instead(tmp_path, arguments):
    into = tmp_path / "into"
    result = rebuild(*(str(into) if word == "DIR" else word for word in arguments))
    url = next(word for word in arguments if word.startswith("s3:"))
    assert result.exit_code == 2 and result.stdout == "" and len(result.messages) == 1
    assert result.stderr.startswith(f"holdfast: error: {url}: is in a bucket. Parity exists only in nodes' memory")
    assert "`holdfast ckpt verify`" in result.stderr and not into.exists()
