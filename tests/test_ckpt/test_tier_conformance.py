"""What every tier promises, whatever it is made of: one suite over the shared directory, NVMe and a real S3 server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cloud_kit import azure_server, google_server
from s3_kit import s3_server
from tier_kit import BUCKETS, KINDS, WORLD, Stored, path_of, save_id, shard, stored

from ckpt.errors import CheckpointError, ConfigError, CorruptError, FormatError, NamespaceError
from ckpt.format.checksums import BLOCK_BYTES
from ckpt.format.lasting import NOTHING_ELSE, Best, Lasting
from ckpt.format.line import FIRST, NOBODY, Owner
from ckpt.format.manifest import NAME
from ckpt.format.shard_record import seal_json
from ckpt.tiers import reads
from ckpt.tiers.catalog import CatalogEntry, directory_name
from ckpt.tiers.claim import Claim
from ckpt.tiers.mark import new_mark, parse_mark
from ckpt.tiers.reads import read_blocks, read_whole, reader, verify
from ckpt.tiers.s3_client import S3Options
from ckpt.tiers.tier import Tier


@pytest.fixture(scope="module", params=KINDS)
def options(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Options]:
    """How to reach the server of a kind of bucket, which runs meanwhile."""
    if request.param == "s3":
        with s3_server(tmp_path_factory.mktemp("s3")) as running:
            yield running.options
    elif request.param in BUCKETS:
        with google_server() if request.param == "gs" else azure_server() as options:
            yield options
    else:
        yield S3Options()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, options: S3Options) -> Stored:
    return stored(request.node.callspec.params["options"], tmp_path, options)


def test_a_committed_step_reads_back_byte_for_byte_in_another_process(place: Stored) -> None:
    save = save_id(3)
    place.commit(save)
    tier = place.again("ns")
    assert tier.steps() == [save]
    manifest = tier.read_manifest(save)
    assert [entry.rank for entry in manifest.shards] == [rank for ranks in place.node_ranks for rank in ranks]
    for entry in manifest.shards:
        _, expected = shard(save, entry.rank)
        data = memoryview(bytearray(len(expected)))
        read_whole(reader(tier, save, entry), entry, data)
        assert data == expected
        part = memoryview(bytearray(100))
        tier.read(save, entry, 4900, part)
        assert part == expected[4900:]
        assert entry.offset % 4096 == 0


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 3 * BLOCK_BYTES + 5])
def test_shards_of_every_size_verify_and_give_any_of_their_blocks(
    place: Stored, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "WINDOW_BLOCKS", 2)
    save = save_id(1)
    place.commit(save, nbytes)
    for entry in place.tier.read_manifest(save).shards:
        verify(reader(place.tier, save, entry), entry)
    last = place.tier.read_manifest(save).shards[-1]
    _, expected = shard(save, last.rank, nbytes=nbytes)
    data = memoryview(bytearray(nbytes))
    wanted = [block for block in (0, 2, 3) if block * BLOCK_BYTES < nbytes]
    read_blocks(reader(place.tier, save, last), data, wanted)
    for block in range(-(-nbytes // BLOCK_BYTES)):
        span = slice(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
        assert data[span] == (expected[span] if block in wanted else bytes(len(expected[span])))


def test_nothing_counts_before_its_manifest(place: Stored) -> None:
    place.commit(save_id(3))
    places = place.write(save_id(4))
    assert place.tier.steps() == [save_id(3)]
    with pytest.raises(FileNotFoundError):
        place.tier.read_manifest(save_id(4))
    reasons = [entry.reason for entry in place.tier.catalog()]
    assert reasons == ["no manifest: the step was never committed", None]
    place.tier.commit(save_id(4), WORLD, places)
    assert place.tier.steps() == [save_id(4), save_id(3)]


def test_a_manifest_over_the_wrong_shards_is_refused_and_commits_nothing(place: Stored) -> None:
    places = place.write(save_id(4))
    _, *most = places
    wrong = [places + places, [*most, replace(places[0], record=replace(places[0].record, save=save_id(5)))], []]
    for few in wrong if place.tier.node_local else [*wrong, most]:
        with pytest.raises(CorruptError):
            place.tier.commit(save_id(4), WORLD, few)
    assert place.tier.steps() == []


def test_writing_may_be_repeated_until_the_commit_and_never_after(place: Stored) -> None:
    place.write(save_id(4))
    place.commit(save_id(4))
    with pytest.raises(CheckpointError, match="committed there already"):
        place.write(save_id(4))


def test_the_same_step_and_attempt_of_another_run_is_another_step(place: Stored) -> None:
    place.commit(save_id(4, run_id="first"))
    place.commit(save_id(4, run_id="second"))
    assert {save.run_id for save in place.tier.steps()} == {"first", "second"}


def test_a_damaged_manifest_is_passed_over_and_said_so(place: Stored, caplog: pytest.LogCaptureFixture) -> None:
    place.commit(save_id(1))
    place.commit(save_id(2))
    manifest = path_of(save_id(2), NAME)
    place.put(manifest, place.get(manifest).replace(b'"step":2', b'"step":9', 1))
    with caplog.at_level(logging.WARNING):
        assert place.tier.steps() == [save_id(1)]
    assert "does not match its checksum" in caplog.text
    with pytest.raises(CorruptError):
        place.tier.read_manifest(save_id(2))


def test_a_manifest_moved_to_another_step_is_passed_over(place: Stored) -> None:
    place.commit(save_id(1))
    place.put(path_of(save_id(9), NAME), place.get(path_of(save_id(1), NAME)))
    place.remove(path_of(save_id(1), NAME))
    assert place.tier.steps() == []


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_data_that_is_not_what_was_written_never_verifies(place: Stored, harm: str) -> None:
    save = save_id(3)
    place.commit(save, 2 * BLOCK_BYTES)
    file = path_of(save, "node-00000.data")
    data = bytearray(place.get(file))
    data[3 * BLOCK_BYTES + 7] ^= 1
    if harm == "remove":
        place.remove(file)
    else:
        place.put(file, bytes(data) if harm == "flip" else bytes(data[: 3 * BLOCK_BYTES]))
    first, second, *_ = place.tier.read_manifest(save).shards
    with pytest.raises((CorruptError, FileNotFoundError)):
        verify(reader(place.tier, save, second), second)
    with pytest.raises((CorruptError, FileNotFoundError)):
        read_whole(reader(place.tier, save, second), second, memoryview(bytearray(2 * BLOCK_BYTES)))
    if harm != "remove":
        verify(reader(place.tier, save, first), first)


def test_retention_keeps_the_newest_and_what_is_being_written(place: Stored) -> None:
    for step in (1, 2, 3, 4):
        place.commit(save_id(step))
    place.write(save_id(2, attempt=1))  # never committed, older than the newest
    place.write(save_id(5))
    assert len(place.tier.retain(2)) == 3
    assert place.tier.steps() == [save_id(4), save_id(3)]
    assert sorted(entry.step for entry in place.tier.catalog()) == [3, 4, 5]


OLD = FIRST.fork(None, number=1, began_s=0.0, seed="old", owner=Owner(name="job", script="/train.py", user="u"))
NEW = OLD.fork(2, number=2, began_s=1.5e9, seed="new", owner=NOBODY)


def test_a_step_has_its_line_and_the_newest_line_comes_first(place: Stored) -> None:
    for step in (1, 2, 4):
        place.commit(save_id(step, line=OLD))
    for step in (2, 3):  # step 2 once more, in the line that continues the other one's
        place.commit(save_id(step, attempt=1, line=NEW))
    other = place.again("ns")
    expected = [(3, NEW), (2, NEW), (2, OLD), (1, OLD), (4, OLD)]
    assert [(save.step, save.line) for save in other.steps()] == expected
    assert other.read_manifest(save_id(4, line=OLD)).save.line == OLD


def test_a_line_that_begins_is_known_to_others_before_its_first_save(place: Stored) -> None:
    for step in (1, 2, 3):
        place.commit(save_id(step, line=OLD))
    assert place.tier.lines() == []
    place.tier.begin_line(NEW)
    other = place.again("ns")
    assert other.lines() == [NEW]
    assert [save.step for save in other.steps()] == [2, 1, 3]
    assert [entry.step for entry in other.catalog()] == [3, 2, 1]
    assert place.tier.retain(1) != [] and other.lines() == [NEW]


def test_a_damaged_record_of_a_line_is_passed_over_and_said_so(place: Stored, caplog: pytest.LogCaptureFixture) -> None:
    place.commit(save_id(3, line=OLD))
    place.tier.begin_line(NEW)
    record = f"ns/line-{NEW.id}/line.json"
    place.put(record, place.get(record).replace(b'"number":2', b'"number":9', 1))
    assert place.again("ns").lines() == [] and "does not match its checksum" in caplog.text
    place.remove(record)
    assert place.again("ns").lines() == [] and [save.step for save in place.tier.steps()] == [3]


def test_retention_counts_each_line_by_itself(place: Stored) -> None:
    for step in (1, 2, 3, 4):
        place.commit(save_id(step, line=OLD))
    for step in (3, 4, 5):
        place.commit(save_id(step, attempt=1, line=NEW))
    place.write(save_id(9, line=OLD))  # another run may be writing it
    assert len(place.tier.retain(2)) == 3
    left = sorted((entry.step, entry.line_id) for entry in place.tier.catalog())
    assert left == sorted([(3, OLD.id), (4, OLD.id), (9, OLD.id), (4, NEW.id), (5, NEW.id)])


BEST = Lasting(best=Best(metric="loss", mode="min", n=2))


def test_the_metrics_of_a_step_are_in_its_manifest_and_in_every_record(place: Stored) -> None:
    place.commit(save_id(3), loss=0.25, accuracy=1.0)
    place.commit(save_id(4))
    manifest = place.again("ns").read_manifest(save_id(3))
    assert manifest.metrics == {"loss": 0.25, "accuracy": 1.0}
    assert all(entry.record.metrics == manifest.metrics for entry in manifest.shards)
    assert [dict(entry.metrics) for entry in place.tier.catalog()] == [{}, {"loss": 0.25, "accuracy": 1.0}]


def test_milestones_and_the_best_steps_stay_besides_the_newest(place: Stored) -> None:
    for step, loss in ((1, 0.5), (2, 0.9), (3, 0.1), (4, 0.3), (5, 0.7), (6, 0.6)):
        place.commit(save_id(step), loss=loss)
    place.commit(save_id(7))  # has no metric: it stays as the newest alone
    place.tier.retain(1, lasting=replace(BEST, every_steps=5))
    assert [save.step for save in place.tier.steps()] == [7, 5, 4, 3]
    place.commit(save_id(8), loss=0.2)
    place.tier.retain(1, lasting=BEST)
    assert [save.step for save in place.tier.steps()] == [8, 3]


def manifests_read(place: Stored, patch: pytest.MonkeyPatch, lasting: Lasting) -> set[int]:
    """The steps whose manifests `retain` reads to choose what goes; it removes nothing."""
    get, read = type(place.tier)._get, set()

    def noted(self: Tier, path: str, max_bytes: int) -> bytes:
        if path.endswith(NAME):
            read.add(int(path.split(".")[0].removeprefix("step-")))
        return get(self, path, max_bytes)

    with patch.context() as patched:
        patched.setattr(type(place.tier), "_get", noted)
        assert place.tier.retain(2, lasting=lasting) == []
    return read


def test_retention_reads_manifests_of_milestones_once(place: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    every_step = Lasting(every_steps=1)
    for step in range(1, 7):
        place.commit(save_id(step))
    assert manifests_read(place, monkeypatch, every_step) == {1, 2, 3, 4, 5, 6}
    assert manifests_read(place, monkeypatch, every_step) == {5, 6}
    place.commit(save_id(7))
    assert manifests_read(place, monkeypatch, every_step) == {5, 6, 7}


def test_a_known_milestone_is_read_again_before_it_justifies_a_removal(
    place: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 7):
        place.commit(save_id(step))
    milestones = Lasting(every_steps=2)
    assert len(place.tier.retain(2, lasting=milestones)) == 2  # 2 and 4 are known, 5 and 6 are the newest
    for step in (5, 6):
        place.tier.quarantine(directory_name(save_id(step)), "")
    place.put(path_of(save_id(4), NAME), b"damaged")
    place.tier.retain(1, lasting=Lasting(every_steps=100))
    assert [save.step for save in place.tier.steps()] == [2]


def test_a_pinned_step_stays_until_it_is_unpinned(place: Stored) -> None:
    for step in (1, 2, 3):
        place.commit(save_id(step, line=OLD))
    name = directory_name(save_id(1, line=OLD))
    place.tier.pin(save_id(1, line=OLD), "for the paper")
    other = place.again("ns")
    assert other.pins() == {name} and other.pin_note(name) == "for the paper"
    assert len(place.tier.retain(1)) == 1 and [save.step for save in other.steps()] == [3, 1]
    place.commit(save_id(9, line=FIRST.fork(None, number=5, began_s=2e9, seed="anew", owner=NOBODY)))
    place.tier.retain(1, left=True)
    assert [save.step for save in other.steps()] == [9, 1], "though its line was left"
    other.unpin(name)
    assert place.tier.pins() == set() and other.pin_note(name) == ""
    assert place.tier.retain(1, left=True) == [name]


def test_a_step_that_has_gone_is_not_pinned(place: Stored) -> None:
    place.commit(save_id(1))
    with pytest.raises(ConfigError, match="was removed before it was pinned"):
        place.tier.pin(save_id(2), "")
    assert place.tier.pins() == set() and place.tier.steps() == [save_id(1)]


def test_a_step_that_is_pinned_while_it_is_removed_comes_back(place: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        place.commit(save_id(step))
    superfluous = type(place.tier)._superfluous

    def late(*arguments: Any, **more: Any) -> list[CatalogEntry]:
        going = superfluous(*arguments, **more)
        place.again("ns").pin(save_id(2), "")  # retention has chosen the step, and has not removed it yet
        return going

    monkeypatch.setattr(type(place.tier), "_superfluous", late)
    assert place.tier.retain(1) == [directory_name(save_id(1))]
    assert place.tier.steps() == [save_id(3), save_id(2)]
    for entry in place.tier.read_manifest(save_id(2)).shards:
        verify(reader(place.tier, save_id(2), entry), entry)


def test_what_lasts_in_a_place_is_known_without_its_job(place: Stored) -> None:
    assert place.tier.read_lasting() == NOTHING_ELSE
    place.tier.write_lasting(replace(BEST, every_steps=500))
    assert place.again("ns").read_lasting() == replace(BEST, every_steps=500)
    place.tier.write_lasting(NOTHING_ELSE)
    assert place.again("ns").read_lasting() == NOTHING_ELSE
    place.put("ns/lasting.json", b"{}")
    with pytest.raises(CorruptError):
        place.tier.read_lasting()


def test_a_step_of_another_format_is_neither_damaged_nor_ever_removed(place: Stored) -> None:
    place.commit(save_id(1))
    place.commit(save_id(2))
    path, manifest = path_of(save_id(1), NAME), place.tier.read_manifest(save_id(1))
    place.put(path, seal_json({"format": 3, "since": "0.9.0", "namespace": "ns"}))
    (entry,) = [entry for entry in place.again("ns").catalog() if entry.step == 1]
    assert entry.foreign and entry.is_lost and not entry.damaged
    assert entry.reason is not None and "written by Holdfast 0.9.0 or newer, in format 3" in entry.reason
    with pytest.raises(FormatError, match=r"written by Holdfast 0\.9\.0 or newer"):
        place.tier.read_manifest(save_id(1))
    place.commit(save_id(3))
    assert len(place.tier.retain(1)) == 1
    assert [entry.step for entry in place.tier.catalog()] == [3, 1]
    place.put(path, seal_json({**manifest.to_json(), "format": 1, "since": 7}))
    assert "written by Holdfast of another version, in format 1" in str([e.reason for e in place.tier.catalog()])


def test_retention_without_a_committed_step_removes_nothing(place: Stored) -> None:
    place.write(save_id(1))
    assert place.tier.retain(1) == []
    assert len(list(place.tier.catalog())) == 1


def test_retention_leaves_what_another_run_may_be_writing(place: Stored) -> None:
    place.commit(save_id(5))
    place.commit(save_id(9))
    place.write(save_id(7, run_id="other"))
    place.tier.retain(2)
    assert sorted(entry.step for entry in place.tier.catalog()) == [5, 7, 9]
    place.tier.retain(1)
    assert [entry.step for entry in place.tier.catalog()] == [9]


def test_steps_of_more_than_ten_digits_are_found_and_kept_by_their_number(place: Stored) -> None:
    steps = [9_999_999_999, 10_000_000_000, (1 << 62) - 1]  # of a script that counts tokens
    for step in steps:
        place.commit(save_id(step))
    assert [save.step for save in place.again("ns").steps()] == steps[::-1]
    assert len(place.tier.retain(1)) == 2
    assert place.tier.steps() == [save_id(steps[-1])]


def test_steps_that_others_have_not_committed_do_not_push_out_those_that_all_have(place: Stored) -> None:
    for step in (1, 2, 3, 4):
        place.commit(save_id(step))
    place.tier.retain(2, complete={save_id(1), save_id(2), save_id(4)})
    assert place.tier.steps() == [save_id(4), save_id(2)]
    place.tier.retain(2, complete=set())
    assert place.tier.steps() == [save_id(4), save_id(2)]


def test_a_place_has_one_namespace_and_says_since_when(place: Stored) -> None:
    place.commit(save_id(1))
    assert place.again("ns").prepare() == place.tier.prepare() > 0
    assert place.again("other").steps() == []
    place.put("ns/holdfast.json", new_mark("zz"))
    for refused in (place.again("ns").prepare, place.again("ns").check):
        with pytest.raises(NamespaceError, match="belongs to namespace 'zz'"):
            refused()


def test_a_damaged_mark_keeps_nobody_from_the_steps_and_is_written_anew(place: Stored) -> None:
    """A mark whose damage names another namespace or user is no exception."""
    place.commit(save_id(1))
    whole = place.get("ns/holdfast.json")
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    others = [whole.replace(b'"ns"', b'"nt"'), whole.replace(b'"uid":', b'"uid":1')]
    for damaged in (*flipped[:: len(flipped) // 8], *others, b"", b"[]", b"null", whole[:20]):
        place.put("ns/holdfast.json", damaged)
        place.again("ns").check()
        assert place.again("ns").steps() == [save_id(1)], damaged
        assert place.get("ns/holdfast.json") == damaged, "a reader writes nothing"
        place.again("ns").prepare()
        assert parse_mark(place.get("ns/holdfast.json"), "").namespace == "ns", damaged


def test_a_place_with_other_things_in_it_is_refused(place: Stored) -> None:
    place.put("thesis/chapter-1.tex", b"not ours")
    with pytest.raises(NamespaceError, match="holds other"):
        place.again("thesis").prepare()


def test_a_claim_is_read_by_others_and_replaced_at_once(place: Stored) -> None:
    assert place.tier.read_claim() is None
    first = Claim(run_id="r", attempt=0, nonce="n", user="u", host="h", job="7", since_s=1.5e9)
    place.tier.write_claim(first)
    assert place.again("ns").read_claim() == first
    place.tier.write_claim(replace(first, beat=1))
    assert place.again("ns").read_claim() == replace(first, beat=1)
    place.put("ns/owner.json", b"{}")
    with pytest.raises(CorruptError, match=r"owner\.json: cannot be read"):
        place.tier.read_claim()


def test_what_is_written_is_limited_in_rate(place: Stored) -> None:
    taken = []

    class Meter:
        def take(self, nbytes: int) -> None:
            taken.append(nbytes)

    inner = getattr(place.tier, "_bucket", place.tier)
    inner._throttle = Meter()
    place.write(save_id(1), 3 * BLOCK_BYTES)
    assert sum(taken) >= 2 * len(place.node_ranks) * 3 * BLOCK_BYTES
    assert max(taken) <= 16 << 20 if place.kind != "s3" else max(taken) <= 32 << 20
