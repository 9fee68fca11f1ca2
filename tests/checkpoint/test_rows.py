"""Tables in checkpoints: what was written in many files, by many servers, comes back as one table."""

import argparse
import re
import shutil
import tempfile
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saving import ENTRIES
from saving_tables import DENSE, Servers, Table, entry_of, make_spec

from elasticflow import checkpoint
from elasticflow.api import Adagrad
from elasticflow.checkpoint.manifest import decode, encode
from elasticflow.cli import checkpoints
from elasticflow.embedding import Uniform
from elasticflow.errors import CheckpointError
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.step.rows import NUM_BUCKETS, bounds
from elasticflow.storage import DirectoryStorage

IDS = st.lists(st.integers(-3, 30) | st.integers(-(1 << 63), (1 << 63) - 1), max_size=12, unique=True)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def check_tables(storage, manifest, tables):
    """That all of the tables, as of the checkpoint's step, is in it."""
    found = dict(checkpoint.tensors(storage, manifest, slots=True))
    for name, table in tables.items():
        expected = table.expected(name, manifest.step)
        assert {key for key in found if key.startswith(f"{name}.")} == expected.keys()
        for key, array in expected.items():
            assert same(found[key], array), key


def digest_at_once(tables, step):
    """Of a checkpoint that one server writes, of whole tables."""
    with tempfile.TemporaryDirectory() as folder:
        storage = DirectoryStorage(folder)
        return checkpoint.digest(storage, Servers(storage, tables, 1).save(step))


def row_files(storage):
    """The paths of all that there are."""
    return {f"rows/{f}/{name}" for f in storage.list("rows") for name in storage.list(f"rows/{f}")}


def two_tables():
    return {
        "words": Table(make_spec(3)),
        "users": Table(make_spec(2, rows=1000, min_count=2, evict_after_steps=15)),
    }


def train(tables, steps, seed=0, num_ids=20):
    chance = np.random.default_rng(seed)
    for step in steps:
        for table in tables.values():
            table.update(np.unique(chance.integers(0, 60, num_ids)), step, chance)


@pytest.fixture
def servers(storage):
    """Two of them; checkpoints of steps 10, whole, and 20, a delta."""
    servers = Servers(storage, two_tables())
    train(servers.tables, range(1, 11))
    servers.save(10)
    train(servers.tables, range(11, 21), num_ids=1)
    servers.save(20, whole=False)
    return servers


class TestRoundTrip:
    def test_a_chain_comes_back_as_one_table(self, storage, servers):
        manifest = checkpoint.load_manifest(storage, 20)
        assert [[file.whole for file in part.rows] for part in manifest.parts] == [[True, False]] * 2
        check_tables(storage, manifest, servers.tables)
        assert checkpoint.verify(storage, 20) == []
        plain = dict(checkpoint.tensors(storage, manifest))
        assert list(plain) == ["w", "words.ids", "words.rows", "users.ids", "users.rows"]

    def test_a_server_reads_each_bucket_as_it_was_written(self, storage, servers):
        manifest = checkpoint.load_manifest(storage, 10)
        layout = manifest.layout()
        with checkpoint.Reader(storage, manifest) as reader:
            for chunk in layout.chunks:
                table = layout.table_of(chunk)
                if table is None:
                    with pytest.raises(CheckpointError, match=f"no rows of chunk {chunk.number}"):
                        next(reader.read_rows(chunk.number))
                else:
                    (arrays,) = reader.read_rows(chunk.number)
                    smallest, largest = bounds(chunk.start, chunk.stop)
                    assert all(smallest <= key <= largest for key in arrays["keys"].tolist())
                    assert all(array.ctypes.data % 64 == 0 for array in arrays.values() if len(array))
                    assert ("counts" in arrays) == (table == 1)

    @pytest.mark.parametrize("num_servers", [1, 3, 64, 70])
    def test_any_number_of_servers_writes_the_same(self, storage, servers, num_servers, tmp_path):
        (tmp_path / "other").mkdir()
        other = DirectoryStorage(tmp_path / "other")
        manifest = Servers(other, servers.tables, num_servers).save(20)
        assert checkpoint.verify(other, 20) == []
        whole = checkpoint.load_manifest(storage, 20)
        assert checkpoint.digest(other, manifest) == checkpoint.digest(storage, whole)

    def test_a_table_alone(self, storage):
        servers = Servers(storage, {"words": Table(make_spec(3))}, 2, dense=())
        manifest = servers.save(0)
        assert checkpoint.newest_intact(storage)[0].parts == manifest.parts
        found = dict(checkpoint.tensors(storage, manifest))
        assert found["words.ids"].shape == (0,) and found["words.rows"].shape == (0, 3)

    def test_a_copy_goes_on_alone(self, storage, servers, tmp_path):
        (tmp_path / "copy").mkdir()
        target, manifest = DirectoryStorage(tmp_path / "copy"), checkpoint.load_manifest(storage, 20)
        checkpoint.copy(storage, manifest, target)
        assert checkpoint.verify(target, 20) == []
        assert checkpoint.digest(target, manifest) == checkpoint.digest(storage, manifest)

    def test_the_file_is_plain_hdf5(self, storage, servers):
        h5py = pytest.importorskip("h5py")
        manifest = checkpoint.load_manifest(storage, 10)
        with h5py.File(storage.root / manifest.parts[0].rows[0].path) as file:
            for number, named in manifest.parts[0].rows[0].chunks.items():
                for name, array in named.items():
                    assert file[f"{number}/{name}"].shape == array.shape

    def test_the_same_rows_make_the_same_file(self, storage, servers):
        paths = [f"rows/step-{step:010d}/generation-1-server-1.h5" for step in (10, 20)]
        before = [(storage.root / path).read_bytes() for path in paths]
        again = [checkpoint.load_manifest(storage, 10).files[paths[0]], len(before[1])]
        assert [len(data) for data in before] == again
        file = storage.root / paths[1]
        storage.remove("checkpoints/step-0000000020")
        servers.chains[1], servers.since[1] = servers.chains[1][:1], 10
        servers.write_rows(1, 20, whole=False)  # replaces what no checkpoint names
        assert file.read_bytes() == before[1]

    def test_format_2_had_no_tables(self, storage):
        servers = Servers(storage, {})
        manifest = servers.manifest(5, servers.parts(5), format=2)
        checkpoint.commit(storage, manifest)
        loaded = checkpoint.load_manifest(storage, 5)
        assert (loaded.format, loaded.tables, loaded.parts) == (2, (), manifest.parts)


class TestAnyHistory:
    actions = st.lists(
        st.one_of(
            st.tuples(st.just("train"), IDS),
            st.tuples(st.just("rest"), st.integers(1, 9)),
            st.tuples(st.just("save"), st.sampled_from([None, True, False])),
            st.tuples(st.just("give up"), st.integers(0, 3)),
            st.tuples(st.just("restart"), st.integers(1, 5)),
            st.tuples(st.just("go back"), st.integers(1, 5)),
            st.tuples(st.just("prune"), st.integers(1, 3)),
        ),
        max_size=25,
    )

    @settings(max_examples=40)
    @given(actions, st.integers(0, 6), st.integers(1, 3), st.integers(1, 4))
    def test_every_checkpoint_is_what_a_dict_says(self, actions, evict_after_steps, min_count, num_servers):
        """Through deltas, checkpoints that were given up, other servers, lost steps, and removals."""
        spec = make_spec(2, min_count=min_count, evict_after_steps=evict_after_steps)
        table, chance = Table(spec), np.random.default_rng(0)
        with tempfile.TemporaryDirectory() as folder:
            storage = DirectoryStorage(folder)
            servers, step, digests, saved = Servers(storage, {"t": table}, num_servers), 0, {}, None
            for action, value in [*actions, ("save", None), ("prune", 3)]:
                step += value if action == "rest" else 1
                if action == "train":
                    table.update(value, step, chance)
                elif action == "save":
                    saved = servers.save(step, value if value or all(servers.chains) else None)
                    check_tables(storage, saved, servers.tables)
                    digests[step] = checkpoint.digest(storage, saved)
                    before = dict(table.rows), dict(table.candidates)
                elif action == "give up":
                    for server in range(min(value, len(servers.shares))):
                        servers.write_rows(server, step)
                elif action == "restart" and saved:
                    servers.start(value, saved)
                elif action == "go back" and saved:
                    step, table.rows, table.candidates = saved.step, *map(dict, before)
                    servers.start(value, saved)
                elif action == "prune":
                    checkpoint.prune(storage, value)
                    self.check_all(storage, digests)
            checkpoint.discard_unfinished(storage)
            assert digests[step - 1] == digest_at_once(servers.tables, step - 1)
            assert row_files(storage) == self.check_all(storage, digests)

    def check_all(self, storage, digests):
        """That all that is committed is whole, and what it was. Returns the row files that it needs."""
        needed = set()
        for step in checkpoint.commits(storage):
            assert checkpoint.verify(storage, step) == []
            manifest = checkpoint.load_manifest(storage, step)
            assert checkpoint.digest(storage, manifest) == digests[step]
            needed.update(path for path in manifest.files if path.startswith("rows/"))
        return needed


class TestLastWords:
    """Of a key, as a row or as a candidate, the newest file of the chain is right."""

    def test_a_candidate_becomes_a_row_and_a_row_a_candidate(self, storage):
        table = Table(make_spec(2, min_count=2, evict_after_steps=5))
        servers, chance = Servers(storage, {"t": table}), np.random.default_rng(0)
        for step, ids in ((1, [1, 2]), (2, [2])):
            table.update(ids, step, chance)
        servers.save(2)
        found = dict(checkpoint.tensors(storage, checkpoint.load_manifest(storage, 2), slots=True))
        assert (found["t.ids"].tolist(), found["t.candidates"].tolist()) == ([2], [1])
        for step, ids in ((3, [1]), (9, [2])):
            table.update(ids, step, chance)
        manifest = servers.save(9, whole=False)
        found = dict(checkpoint.tensors(storage, manifest, slots=True))
        assert found["t.ids"].tolist() == [], "1 was seen at step 3, which step 10 does not know any more"
        assert (found["t.candidates"].tolist(), found["t.counts"].tolist()) == ([2], [1])

    def test_what_no_later_step_sees_is_not_there(self, storage):
        table = Table(make_spec(2, evict_after_steps=5))
        servers = Servers(storage, {"t": table})
        table.update([1], 4, np.random.default_rng(0))
        servers.save(4)
        for step, ids in ((9, [1]), (10, [])):  # a read of step 9 + 1 sees a row of 5 or later
            manifest = servers.save(step - 1, whole=False) if step == 9 else servers.save(step, whole=False)
            assert dict(checkpoint.tensors(storage, manifest))["t.ids"].tolist() == ids


def test_the_digest_notices_every_array(storage):
    tables = two_tables()
    train(tables, range(1, 11))
    before = digest_at_once(tables, 10)
    (key, (state, seen)), other = next(iter(tables["words"].rows.items())), tables["users"]
    for number in range(len(state)):
        changed = state.copy()
        changed[number, -1] += 1
        tables["words"].rows[key] = (changed, seen)
        assert digest_at_once(tables, 10) != before
    tables["words"].rows[key] = (state, seen - 1)
    assert digest_at_once(tables, 10) != before
    tables["words"].rows[key] = (state, seen)
    other.candidates[5] = (1, 10)
    counted = digest_at_once(tables, 10)
    other.candidates[5] = (1, 9)
    assert len({before, counted, digest_at_once(tables, 10)}) == 3
    del other.candidates[5]
    assert digest_at_once(tables, 10) == before


class TestChains:
    def test_who_takes_over_names_its_buckets_alone(self, storage, servers):
        manifest = checkpoint.load_manifest(storage, 20)
        layout = manifest.layout()
        for shares in (spread(layout, 1), spread(layout, 3), spread(layout, 5)):
            for share in shares:
                buckets = {number for number in share if layout.table_of(layout.chunks[number]) is not None}
                chain = checkpoint.chain_of(manifest, share)
                assert set().union(*(file.chunks for file in chain)) == buckets
                assert [file.step for file in chain] == sorted(file.step for file in chain)
        both = checkpoint.chain_of(manifest, range(1000))
        assert both == tuple(sorted((f for part in manifest.parts for f in part.rows), key=lambda f: f.file))
        assert all(file.frame for file in both)

    def test_a_file_that_two_servers_name_can_be_joined_again(self, storage, servers):
        whole = checkpoint.load_manifest(storage, 20)
        servers.start(3, whole)
        train(servers.tables, range(21, 31))
        manifest = servers.save(30, whole=False)
        assert checkpoint.verify(storage, 30) == []
        chain = checkpoint.chain_of(manifest, range(1000))
        assert [(f.file, f.chunks) for f in chain] == [
            (f.file, f.chunks) for f in checkpoint.chain_of(whole, range(1000))
        ] + [(f.file, f.chunks) for part in manifest.parts for f in part.rows if f.step == 30]

    def test_one_gets_whole_when_deltas_are_larger_or_many(self, storage, servers):
        (whole, delta) = servers.chains[0]
        size = whole.array_bytes
        assert checkpoint.should_be_whole((), 0)
        assert not checkpoint.should_be_whole((whole,), size)
        assert checkpoint.should_be_whole((whole,), size + 1)
        assert checkpoint.should_be_whole((whole, delta), size - delta.array_bytes + 1)
        later = [msgspec.structs.replace(delta, step=step, chunks={}) for step in range(7)]
        assert not checkpoint.should_be_whole((whole, *later[:6]), 0)
        assert checkpoint.should_be_whole((whole, *later), 0)
        assert not checkpoint.should_be_whole((whole, *later[:6], later[5]), 0), "of two servers"

    def test_a_file_of_nothing_is_not_named(self, storage, servers):
        chain = servers.chains[0]
        servers.write_rows(0, 30, whole=False)
        assert servers.chains[0] == chain

    def test_many_whole_files_of_others_are_one_in_each_chain(self, storage, servers):
        manifest = Servers(storage, servers.tables, 16).save(30)
        servers.start(1, manifest)
        assert len(servers.chains[0]) == 16 and not checkpoint.should_be_whole(servers.chains[0], 1)

    def test_chains_grow_no_longer_than_that(self, storage):
        table = Table(make_spec(1))
        servers, chance = Servers(storage, {"t": table}, 1), np.random.default_rng(0)
        table.update(range(2000), 1, chance)
        lengths = []
        for step in range(1, 20):
            table.update([step], step, chance)
            servers.save(step)
            lengths.append(len(servers.chains[0]))
        assert lengths == [*range(1, 9), *range(1, 9), 1, 2, 3]


class TestRefused:
    def refuse(self, servers, text, change, **changes):
        manifest = checkpoint.load_manifest(servers.storage, 20)
        parts = change(manifest.parts)
        with pytest.raises(CheckpointError, match=text):
            checkpoint.commit(servers.storage, msgspec.structs.replace(manifest, parts=parts, **changes))

    def change_file(self, which, **changes):
        def change(parts):
            rows = list(parts[0].rows)
            rows[which] = msgspec.structs.replace(rows[which], **changes)
            return (msgspec.structs.replace(parts[0], rows=tuple(rows)), *parts[1:])

        return change

    def change_array(self, name, **changes):
        def change(parts):
            chunks = {
                number: {
                    n: msgspec.structs.replace(a, **changes) if n == name else a for n, a in named.items()
                }
                for number, named in parts[0].rows[0].chunks.items()
            }
            return self.change_file(0, chunks=chunks)(parts)

        return change

    def test_chains_that_are_none(self, servers):
        def rows(make):
            return lambda parts: (msgspec.structs.replace(parts[0], rows=make(*parts[0].rows)), *parts[1:])

        self.refuse(servers, "of no server", rows(lambda whole, delta: ()))
        self.refuse(servers, "one whole file, and deltas", rows(lambda whole, delta: (delta, whole)))
        self.refuse(servers, "one whole file, and deltas", rows(lambda whole, delta: (whole, whole)))
        self.refuse(servers, "must ascend", rows(lambda whole, delta: (whole, delta, delta)))
        self.refuse(servers, "of several", lambda parts: (*parts, self.twin(parts[0])))

    @staticmethod
    def twin(part):
        return msgspec.structs.replace(part, file="twin.h5", chunks={})

    @pytest.mark.parametrize(
        "name",
        [
            "../checkpoints/step-0000000020/generation-1-server-0.h5",
            "step-0000000020/../../x.h5",
            "step-0000000020",
            "step-0000000020/",
            "/step-0000000020/x.h5",
            "step-0000000010/x.h5",
            "x.h5",
            "step-0000000020/a/b.h5",
            "step-0000000020/manifest.json",
        ],
    )
    def test_names_that_lead_elsewhere(self, servers, name):
        self.refuse(servers, "no such name", self.change_file(1, file=name))

    def test_files_of_later_or_that_are_not_what_was_told(self, servers):
        later = self.change_file(1, file="step-0000000021/x.h5", step=21)
        self.refuse(servers, "not before 20", later)
        self.refuse(servers, "its server wrote 7", self.change_file(0, num_bytes=7))
        missing = self.change_file(1, file="step-0000000020/x.h5")
        self.refuse(servers, "rows/step-0000000020/x.h5: FileNotFoundError", missing)

    def test_arrays_that_do_not_fit(self, servers):
        self.refuse(servers, "'keys' is float64", self.change_array("keys", dtype="float64"))
        self.refuse(servers, "'seen' is object", self.change_array("seen", dtype="object"))
        self.refuse(servers, "'value' is float32 of shape", self.change_array("value", shape=(1 << 40, 3)))
        self.refuse(servers, "its table", self.change_array("seen", dtype="int64"))

    def test_tables_that_are_not_those_of_the_entries(self, servers):
        def same(parts):
            return parts

        words, users = (table.spec for table in servers.tables.values())
        for tables in ((), (words,), (users, words)):
            self.refuse(servers, r"tables of \(rows, dim\)", same, tables=tables)
        counted = msgspec.structs.replace(words, min_count=2)
        self.refuse(servers, "is not of TableSpec", same, tables=(counted, users))

    def test_arrays_are_looked_at_before_they_are_written(self, storage, servers):
        chunk, good = next(each for each in servers.buckets(0, -1, 20) if len(each[1]["keys"]) > 1)
        bad = {
            "must ascend": {"keys": good["keys"][::-1].copy()},
            "within bucket": {"keys": good["keys"] ^ np.uint64(1 << 63)},
            "'value' is float64": {"value": good["value"].astype("float64")},
            "'exp_avg' is float32 of shape": {"exp_avg": good["exp_avg"][1:]},
            "'seen' is float32": {"seen": good["seen"].astype("float32")},
            "contiguous": {"value": np.asfortranarray(good["value"])},
            "no '/'": {"a/b": good["value"]},
            "the arrays are": {"counts": good["seen"]},
        }
        before = storage.list("rows")
        for text, changes in bad.items():
            with pytest.raises(CheckpointError, match=re.escape(text)):
                name = checkpoint.row_file_name(30, 1, "x")
                checkpoint.write_rows(storage, name, [(chunk, {**good, **changes})], step=30, whole=True)
        assert storage.list("rows") == before

    def test_a_file_that_a_checkpoint_may_need_is_not_replaced(self, storage, servers):
        path = storage.root / "rows/step-0000000010/generation-1-server-0.h5"
        before = path.read_bytes()
        with pytest.raises(CheckpointError, match="FileExistsError"):
            servers.write_rows(0, 10, whole=True)
        assert path.read_bytes() == before


def test_a_part_with_rows_travels_in_a_message(storage, servers):
    part = msgspec.structs.replace(servers.parts(30)[0], file="x.h5")
    assert part.rows
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=checkpoint.Part) == part


def test_the_manifest_with_tables_comes_back(storage, servers):
    manifest = checkpoint.load_manifest(storage, 20)
    other = make_spec(3, initializer=Uniform(-1, 1), optimizer=Adagrad(lr=0.3))
    manifest = msgspec.structs.replace(manifest, tables=(other, manifest.tables[1]))
    assert decode(encode(manifest), 20) == manifest


def test_sizes_are_told_without_the_files(storage, servers):
    sizes = checkpoint.table_sizes(checkpoint.load_manifest(storage, 10))
    found = dict(checkpoint.tensors(storage, checkpoint.load_manifest(storage, 10)))
    for name, size in sizes.items():
        assert (size.most_rows, size.is_exact) == (len(found[f"{name}.ids"]), True)
    later = checkpoint.table_sizes(checkpoint.load_manifest(storage, 20))
    assert not later["words"].is_exact and later["words"].num_bytes > sizes["words"].num_bytes


class TestCheckModel:
    entries = (*DENSE, entry_of("t", make_spec(3)))

    def check(self, storage, spec, entries=None, name="t"):
        manifest = Servers(storage, {"t": Table(make_spec(3))}).manifest(5, ())
        entries = (*DENSE, entry_of(name, spec)) if entries is None else entries
        tables = tuple(spec for entry in entries if entry.rule is Rule.ROWS)
        checkpoint.check_model(manifest, Layout(entries), tables)

    def test_the_same_passes(self, storage):
        self.check(storage, make_spec(3))

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            (dict(optimizer=Adagrad(lr=0.5)), "table 't' has optimizer None .* Adagrad.* in the model"),
            (dict(initializer=Uniform()), r"table 't' has initializer Constant\(value=0.0\) .* Uniform"),
            (dict(min_count=2), "table 't' has min_count 1 in the checkpoint, 2 in the model"),
            (dict(evict_after_steps=9), "table 't' has evict_after_steps 0 in the checkpoint, 9"),
            (dict(rows=10), "'t' is a table of any rows of 3 in the checkpoint, a table of 10 rows of 3"),
            (dict(dim=4), "'t' is a table of any rows of 3 .* a table of any rows of 4 in the model"),
        ],
    )
    def test_all_that_is_set_of_a_table_counts(self, storage, changes, text):
        with pytest.raises(CheckpointError, match=f"of another model .*{text}"):
            self.check(storage, make_spec(**{"dim": 3} | changes))

    def test_other_tables(self, storage):
        with pytest.raises(CheckpointError, match="'t' is missing in the model"):
            self.check(storage, make_spec(3), DENSE)
        with pytest.raises(CheckpointError, match="'u' of the model is not in the checkpoint"):
            self.check(storage, make_spec(3), name="u")
        vector = Entry("t", (3,), "float32", Rule.UPDATE)
        with pytest.raises(
            CheckpointError, match="a table of any rows of 3 in the checkpoint, a float32 par"
        ):
            self.check(storage, make_spec(3), (*DENSE, vector))

    def test_metrics_before_a_table_would_number_its_buckets_otherwise(self, storage):
        with pytest.raises(CheckpointError, match="cost and metrics"):
            table = entry_of("t", make_spec(3))
            self.check(storage, make_spec(3), (*DENSE[:1], table, DENSE[1]))


def test_there_are_as_many_chunks_as_buckets():
    layout = Layout((*ENTRIES, entry_of("t", make_spec(3))))
    assert len(layout.chunks) - len(checkpoint.kept_chunks(layout)) == NUM_BUCKETS + 1


class TestRemoval:
    @pytest.fixture
    def servers(self, storage):
        """Checkpoints of 10 (whole), 20 (delta), 30 (whole); row files of 25, given up, and of 40."""
        servers = Servers(storage, two_tables())
        train(servers.tables, range(1, 11))
        servers.save(10)
        train(servers.tables, range(11, 21), num_ids=1)
        servers.save(20, whole=False)
        train(servers.tables, range(21, 31))
        chains, since = list(servers.chains), list(servers.since)
        servers.write_rows(0, 25)
        servers.chains, servers.since = chains, since
        servers.generation = 2
        servers.save(30, whole=True)
        servers.write_rows(1, 40, whole=False)
        return servers

    def steps(self, storage):
        return [int(folder.removeprefix("step-")) for folder in storage.list("rows")]

    def test_row_files_go_once_no_checkpoint_needs_them(self, storage, servers):
        assert self.steps(storage) == [10, 20, 25, 30, 40]
        checkpoint.prune(storage, keep=3)
        assert self.steps(storage) == [10, 20, 30, 40], "25 was given up"
        checkpoint.prune(storage, keep=2)
        assert self.steps(storage) == [10, 20, 30, 40], "20 is a delta of 10"
        checkpoint.prune(storage, keep=1)
        assert self.steps(storage) == [30, 40]
        assert checkpoint.verify(storage, 30) == []

    def test_later_checkpoints_stay_and_what_they_need(self, storage, servers):
        servers.save(50, whole=False)
        checkpoint.prune(storage, keep=1, upto_step=20)
        assert self.steps(storage) == [10, 20, 25, 30, 40, 50], "those of 20 and later may be in use"
        checkpoint.prune(storage, keep=1, upto_step=30)
        assert [checkpoint.verify(storage, step) for step in (30, 50)] == [[], []]
        assert self.steps(storage) == [30, 40, 50]

    def test_what_others_wrote_for_the_same_step(self, storage, servers):
        """Of the newest step it may be what the next checkpoint goes on from."""
        storage.remove("checkpoints/step-0000000030")
        lost, newest = (f"rows/step-{step:010d}/generation-9-server-0.h5" for step in (20, 30))
        for name in (lost, newest):
            (storage.root / name).write_bytes(b"by another generation")
        checkpoint.commit(storage, servers.manifest(30, servers.parts(30)))
        partial = storage.root / "rows/step-0000000020/.x.h5.12.partial"
        partial.write_bytes(b"killed")
        (storage.root / "rows/step-0000000020/notes.txt").write_text("a person's")
        in_work = storage.root / "rows/step-0000000040/.x.h5.12.partial"
        in_work.write_bytes(b"in work")
        checkpoint.prune(storage, keep=3)
        assert not storage.exists(lost) and storage.exists(newest)
        assert not partial.exists() and in_work.exists()
        assert storage.list("rows/step-0000000020")[-1] == "notes.txt"
        assert [checkpoint.verify(storage, step) for step in (10, 20, 30)] == [[]] * 3

    @pytest.mark.parametrize("step", [20, 30])
    @pytest.mark.parametrize("data", [b"{", b"", b'{"sha256": "", "manifest": {"format": 9}}'])
    def test_a_manifest_that_cannot_be_read_may_need_any(self, storage, servers, step, data):
        (storage.root / f"checkpoints/step-{step:010d}/manifest.json").write_bytes(data)
        checkpoint.prune(storage, keep=2)
        checkpoint.discard_unfinished(storage)
        assert self.steps(storage) == [10, 20, 25, 30, 40]
        checkpoint.prune(storage, keep=1)
        assert self.steps(storage) == ([30, 40] if step == 20 else [10, 20, 25, 30, 40])

    def test_a_manifest_that_the_storage_does_not_give(self, storage, servers, monkeypatch):
        def refuse(name):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(storage, "open", refuse)
        for remove in (
            lambda: checkpoint.prune(storage, keep=2),
            lambda: checkpoint.discard_unfinished(storage),
        ):
            with pytest.raises(CheckpointError, match="Input/output error"):
                remove()
        assert self.steps(storage) == [10, 20, 25, 30, 40]

    def test_what_was_not_committed_goes_at_the_start_of_a_run(self, storage, servers):
        checkpoint.discard_unfinished(storage, keep=range(25, 1000))
        assert self.steps(storage) == [10, 20, 25, 30, 40]
        checkpoint.discard_unfinished(storage, keep={40})
        assert self.steps(storage) == [10, 20, 30, 40]
        assert checkpoint.discard_unfinished(storage) == []
        assert self.steps(storage) == [10, 20, 30]

    def test_a_step_comes_again_after_damage(self, storage, servers):
        """The newest whole one is of step 20; the run goes on with a generation 2, and comes to 30 again."""
        damaged = storage.root / "rows/step-0000000030/generation-2-server-0.h5"
        damaged.write_bytes(damaged.read_bytes()[:-1])
        manifest, damages = checkpoint.newest_intact(storage)
        assert manifest.step == 20
        assert [damage.split(" ")[0] for damage in damages] == [
            "rows/step-0000000030/generation-2-server-0.h5"
        ]
        checkpoint.discard_unfinished(storage)
        storage.remove(checkpoint.folder_of(30))
        servers.generation = 1
        servers.start(2, manifest)
        servers.save(30)
        assert checkpoint.verify(storage, 30) == []
        checkpoint.prune(storage, keep=1)
        check_tables(storage, checkpoint.load_manifest(storage, 30), servers.tables)

    def test_before_the_first_checkpoint(self, storage):
        servers = Servers(storage, two_tables())
        servers.write_rows(0, 10)
        checkpoint.prune(storage, keep=1)
        assert self.steps(storage) == [10]
        checkpoint.discard_unfinished(storage)
        assert self.steps(storage) == []

    def test_killed_between_any_two_removals(self, storage, servers, tmp_path):
        """Whatever it has removed: what is committed is whole, and the next one does the rest."""

        class KilledError(Exception):
            pass

        digest = checkpoint.digest(storage, checkpoint.load_manifest(storage, 30))
        for allowed in range(100):
            root = tmp_path / str(allowed)
            shutil.copytree(storage.root, root)
            killed, removed = DirectoryStorage(root), []

            def remove(name, removed=removed, allowed=allowed, remove=killed.remove):
                if len(removed) == allowed:
                    raise KilledError
                removed.append(name)
                remove(name)

            killed.remove = remove
            with suppress(KilledError):
                checkpoint.prune(killed, keep=1)
            again = DirectoryStorage(root)
            for step in checkpoint.commits(again):
                assert checkpoint.verify(again, step) == []
            checkpoint.prune(again, keep=1)
            assert self.steps(again) == [30, 40]
            assert checkpoint.digest(again, checkpoint.load_manifest(again, 30)) == digest
            if len(removed) < allowed:
                break
        assert allowed > 6


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".h5"])
def test_exports_have_ids_and_rows(storage, servers, tmp_path, ending):
    path = tmp_path / f"model{ending}"
    checkpoint.export(storage, checkpoint.load_manifest(storage, 20), path)
    if ending == ".npz":
        with np.load(path) as file:
            found = dict(file)
    elif ending == ".safetensors":
        found = pytest.importorskip("safetensors.numpy").load_file(path)
    else:
        with pytest.importorskip("h5py").File(path) as file:
            found = {name: file[name][()] for name in file}
    assert found.keys() == {"w", "words.ids", "words.rows", "users.ids", "users.rows"}
    for name, table in servers.tables.items():
        expected = table.expected(name, 20)
        assert same(found[f"{name}.ids"], expected[f"{name}.ids"])
        assert same(found[f"{name}.rows"], expected[f"{name}.rows"])


def test_the_command_line_shows_tables(storage, servers, capsys):
    arguments = argparse.Namespace(dir=str(storage.root), step=20, trust=False, json=False)
    assert checkpoints.show(arguments) == checkpoints.list_(arguments) == checkpoints.verify(arguments) == 0
    text = capsys.readouterr().out
    sizes = checkpoint.table_sizes(checkpoint.load_manifest(storage, 20))
    for name, dim in (("words", 3), ("users", 2)):
        size = sizes[name]
        line = f"  {name}  table  at most {size.most_rows} rows of {dim}  float32  {size.num_bytes:,} bytes\n"
        assert line in text
    assert re.search(
        r"  rows/step-0000000010/generation-1-server-0.h5  whole  64 buckets  [\d,]+ bytes", text
    )
    assert "step 20  epoch 2  6 files  " in text and "step 20: whole" in text
