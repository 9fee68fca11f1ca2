import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saving import ENTRIES, SLOTS, make_manifest, make_model, save, write_parts

from elasticflow import checkpoint
from elasticflow.errors import CheckpointError
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.storage import DirectoryStorage

BIG = (Entry("table", (300_000, 8), "float32", Rule.UPDATE), *ENTRIES)
"""More than one chunk of full length, and tensors that begin inside a chunk."""


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("num_servers", [1, 2, 3, 5, 40])
def test_any_number_of_servers_writes_what_any_other_number_reads(storage, model, num_servers):
    save(storage, model, num_servers=num_servers)
    manifest = checkpoint.load_manifest(storage, 1200)
    layout = manifest.layout()
    for numbers in spread(layout, 3):
        with checkpoint.Reader(storage, manifest) as reader:
            for number in set(numbers) & {chunk.number for chunk in checkpoint.kept_chunks(layout)}:
                arrays, expected = reader.read_chunk(number), model.chunk(number)
                assert arrays.keys() == expected.keys()
                assert all(same(arrays[name], expected[name]) for name in expected)
                assert all(array.ctypes.data % 64 == 0 for array in arrays.values())
    assert checkpoint.verify(storage, 1200) == []


@pytest.mark.parametrize("entries", [ENTRIES, BIG])
def test_tensors_come_by_name_in_the_models_order(storage, entries):
    model = make_model(entries)
    manifest = save(storage, model, num_servers=3)
    plain = dict(checkpoint.tensors(storage, manifest))
    assert list(plain) == [entry.name for entry in entries if entry.rule is not Rule.REPORT]
    everything = dict(checkpoint.tensors(storage, manifest, slots=True))
    parameters = [entry.name for entry in entries if entry.rule is Rule.UPDATE]
    assert everything.keys() - plain.keys() == {f"{p}#{slot}" for p in parameters for slot in SLOTS}
    for name, array in everything.items():
        assert same(array, model.tensor(name)), name
    assert all(same(plain[name], everything[name]) for name in plain)


def test_the_manifest_comes_back(storage, model):
    manifest = save(storage, model)
    loaded = checkpoint.load_manifest(storage, 1200)
    assert loaded.optimizer.pop("betas") == list(manifest.optimizer.pop("betas"))
    assert loaded == manifest
    assert loaded.layout().signature == model.layout.signature
    assert loaded.folder == "checkpoints/step-0000001200"
    assert sorted(storage.list(loaded.folder)) == [
        "generation-1-server-0.h5",
        "generation-1-server-1.h5",
        "manifest.json",
    ]


def test_a_part_travels_in_a_message(storage, model):
    for part in write_parts(storage, model, 1, 2):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=checkpoint.Part) == part


def test_the_file_is_plain_hdf5(storage, model):
    h5py = pytest.importorskip("h5py")
    manifest = save(storage, model, num_servers=1)
    with h5py.File(storage.root / manifest.folder / "generation-1-server-0.h5") as file:
        assert same(file["0/exp_avg"][()], model.chunk(0)["exp_avg"])
        assert file["0/value"].chunks is None, "contiguous"


def test_hdf5_is_imported_when_used():
    code = (
        "import sys, elasticflow.checkpoint; sys.exit('h5py' in sys.modules or 'safetensors' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


names = st.text("abc./_01é", min_size=1, max_size=6)
shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
dtypes = st.sampled_from(["float32", "float64", "float16", "int64", "uint8", "bool"])
rules = st.sampled_from([Rule.UPDATE, Rule.MEAN, Rule.FIRST])
any_entries = st.lists(
    st.builds(Entry, names, shapes, dtypes, rules), min_size=1, max_size=8, unique_by=lambda entry: entry.name
)
quick = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(any_entries, st.integers(1, 5), st.integers(0, 9))
def test_any_model_comes_back_with_one_digest(tmp_path_factory, entries, num_servers, seed):
    storage = DirectoryStorage(tmp_path_factory.mktemp("any"))
    model = make_model(entries, seed)
    manifest = save(storage, model, 1, num_servers)
    for name, array in checkpoint.tensors(storage, manifest, slots=True):
        assert same(array, model.tensor(name))
    alone = save(storage, model, 2, 1)
    assert checkpoint.digest(storage, manifest) == checkpoint.digest(storage, alone)


def digest_of(storage, model, step):
    return checkpoint.digest(storage, save(storage, model, step))


def test_the_digest_notices_every_bit(storage, model):
    before = digest_of(storage, model, 0)
    changed = ["net.0.weight", "net.1.num_batches_tracked", "mask", "scale#exp_avg", "net.0.bias#exp_avg_sq"]
    for step, name in enumerate(changed, start=1):
        last = model.tensor(name).reshape(-1)[-1:].view(np.uint8)  # a view: all tensors are contiguous
        last[0] ^= 1
        assert digest_of(storage, model, step) != before
        last[0] ^= 1
    assert digest_of(storage, model, 100) == before


def test_the_digest_notices_names_shapes_dtypes_and_slots(storage):
    entry = Entry("a", (2, 3), "int32", Rule.UPDATE)
    variants = [
        entry,
        msgspec.structs.replace(entry, name="b"),
        msgspec.structs.replace(entry, shape=(3, 2)),
        msgspec.structs.replace(entry, dtype="uint32"),
        msgspec.structs.replace(entry, rule=Rule.FIRST),
    ]
    digests = set()
    for step, variant in enumerate(variants):
        model = make_model([variant])
        for vector in (model.value, *model.slots.values()):
            vector.groups[0][:] = 1
        digests.add(digest_of(storage, model, step))
    assert len(digests) == len(variants)


def test_the_digest_ignores_cost_and_metrics_and_the_order_of_tensors(storage):
    model, turned = make_model(ENTRIES), make_model(ENTRIES[-2::-1])
    for name in (entry.name for entry in ENTRIES[:-1]):
        turned.tensor(name)[...] = model.tensor(name)
        if Rule.UPDATE in {entry.rule for entry in ENTRIES if entry.name == name}:
            for slot in SLOTS:
                turned.tensor(f"{name}#{slot}")[...] = model.tensor(f"{name}#{slot}")
    assert digest_of(storage, model, 1) == digest_of(storage, turned, 2)


class TestCheckModel:
    def check(self, storage, model, entries):
        checkpoint.check_model(make_manifest(model, 5, ()), Layout(entries))

    def test_the_same_model_passes(self, storage, model):
        self.check(storage, model, ENTRIES)

    def test_other_metrics_pass(self, storage, model):
        self.check(storage, model, (*ENTRIES, Entry("accuracy", (), "float64", Rule.REPORT)))
        self.check(storage, model, ENTRIES[:-1])

    def test_metrics_in_front_would_number_the_chunks_otherwise(self, storage, model):
        with pytest.raises(CheckpointError, match="cost and metrics"):
            self.check(storage, model, (ENTRIES[-1], *ENTRIES[:-1]))

    @pytest.mark.parametrize(
        ("position", "entry", "text"),
        [
            (
                0,
                Entry("net.0.weight", (20, 8), "float32", Rule.UPDATE),
                r"'net.0.weight' .*\(20, 7\).*\(20, 8\)",
            ),
            (
                0,
                Entry("net.0.weight", (20, 7), "float64", Rule.UPDATE),
                "'net.0.weight' is a float32.*a float64",
            ),
            (0, Entry("net.0.weight", (20, 7), "float32", Rule.MEAN), "'net.0.weight'.*parameter.*buffer"),
            (
                1,
                Entry("net.0.b", (20,), "float32", Rule.UPDATE),
                "'net.0.bias' is missing.*'net.0.b' of the model",
            ),
            (5, None, "'empty' is missing in the model"),
        ],
    )
    def test_another_model_is_told_by_its_differences(self, storage, model, position, entry, text):
        entries = [*ENTRIES[:position], *([entry] if entry else []), *ENTRIES[position + 1 :]]
        with pytest.raises(CheckpointError, match=text):
            self.check(storage, model, entries)

    def test_the_order_counts(self, storage, model):
        with pytest.raises(CheckpointError, match="has 'net.0.weight' where the model has 'net.0.bias'"):
            self.check(storage, model, (ENTRIES[1], ENTRIES[0], *ENTRIES[2:]))

    def test_only_the_first_differences_are_told(self, storage, model):
        with pytest.raises(CheckpointError, match="and 2 more"):
            self.check(storage, model, ())
