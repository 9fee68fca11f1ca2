"""Settings: from options, a file and defaults; and what is said of wrong ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from elasticflow.errors import ConfigError
from elasticflow.run.config import Config, make, read_file

LOCAL = Path(__file__).parents[2] / "conf" / "local.yaml"


def refused(*fragments: str, file: str | None = None, **options: Any) -> None:
    with pytest.raises(ConfigError) as error:
        make(file, options)
    for fragment in fragments:
        assert fragment in str(error.value), str(error.value)
    assert "\n" not in str(error.value)


def test_the_example_shows_every_key_with_its_default_and_a_comment() -> None:
    values = yaml.safe_load(LOCAL.read_text())
    assert set(values) == set(Config.__struct_fields__)
    assert make(str(LOCAL), {}) == Config()
    lines = [line for line in LOCAL.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(values)
    assert all(len(line.partition("  # ")[2]) > 10 for line in lines)


def test_the_example_for_a_machine_with_gpus_can_be_used() -> None:
    chosen = make(str(LOCAL.with_name("gpus.yaml")), {})
    assert (chosen.worker_range, chosen.device, chosen.num_slices, chosen.audit) == ((1, 8), "cuda", 16, 1000)


def test_command_line_beats_file_beats_what_was_before_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("epochs: 3\nbatch-size: 32\nworkers: 1..4\nseed:\n")
    chosen = make(str(file), {"epochs": 5, "seed": None}, {"batch_size": 16, "servers": 2, "seed": 9})
    assert (chosen.epochs, chosen.batch_size, chosen.servers, chosen.seed) == (5, 32, 2, 9)
    assert chosen.worker_range == (1, 4) and chosen.keep_checkpoints == Config().keep_checkpoints


def test_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n")
    assert make(str(file), {}) == Config()


@pytest.mark.parametrize(
    ("text", "interval"),
    [("500", (500, None)), ("1 step", (1, None)), ("20steps", (20, None)),
     ("30s", (None, 30)), ("0.5s", (None, 0.5)),
     ("5m", (None, 300)), ("1h", (None, 3600)), (250, (250, None))],
)  # fmt: skip
def test_checkpoint_every(text: Any, interval: tuple[int | None, float | None]) -> None:
    assert make(None, {"checkpoint_every": text}).checkpoint_interval == interval


@pytest.mark.parametrize("text", ["", "often", "0", "0s", "-5", "1.5", "5 days", "1e3"])
def test_checkpoint_every_that_cannot_be_read(text: str) -> None:
    refused("checkpoint_every", checkpoint_every=text)


@pytest.mark.parametrize(
    ("text", "found"), [("3", (3, 3)), (3, (3, 3)), ("1..4", (1, 4)), (" 2..2 ", (2, 2))]
)
def test_workers(text: Any, found: tuple[int, int]) -> None:
    assert make(None, {"workers": text}).worker_range == found


@pytest.mark.parametrize("text", ["", "x", "0", "0..2", "3..1", "1...3", "-1", "1..", "9"])
def test_workers_that_cannot_be(text: str) -> None:
    refused("workers", workers=text)


def test_slices_are_a_power_of_two_that_a_batch_can_fill() -> None:
    assert Config().num_slices == 8
    assert make(None, {"batch_size": 5}).num_slices == 4
    assert make(None, {"batch_size": 1, "workers": 1}).num_slices == 1
    assert make(None, {"slices": 64, "workers": 64}).num_slices == 64
    refused("slices: 12", "power of two", slices=12)
    refused("slices: 128", "batch of 64", "at most 64", slices=128)
    refused("workers: 5", "4 slices", slices=4, workers="5")


def test_asynchronous_batches_are_slices_of_a_step() -> None:
    chosen = make(None, {"mode": "async", "staleness": 4, "batch_size": 10})
    assert (chosen.num_slices, chosen.step_records) == (4, 40), "so no update is more than three late"
    assert make(None, {"mode": "async", "workers": 1}).num_slices == 1
    assert Config().step_records == 64
    refused("workers: 5", "staleness 3", "at most 4", "--staleness 7", mode="async", staleness=3, workers="5")
    refused("staleness: 3", "mode: async", staleness=3)
    refused("slices: 4", "mode: sync", "staleness", mode="async", staleness=3, slices=4)
    refused("mode: 'fast'", "sync and async", mode="fast")
    refused("staleness_rule: 'sqrt'", "none and inverse", staleness_rule="sqrt")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("servers", 0, "a whole number >= 1"), ("epochs", 2.5, "a whole number"), ("port", 70000, "<= 65535"),
     ("seed", -1, ">= 0"), ("encrypt_data", "maybe", "true or false"),
     ("fingerprint", "lax", "strict and warn"),
     ("heartbeat_s", 0, "a number > 0"), ("workers", 1.5, "text"), ("batch_size", [1], "a whole number")],
)  # fmt: skip
def test_wrong_values_name_the_key_what_was_found_and_what_is_allowed(
    tmp_path: Path, name: str, value: Any, allowed: str
) -> None:
    refused(f"{name}: {value!r}", allowed, **{name: value})
    file = tmp_path / "some.yaml"
    file.write_text(yaml.safe_dump({name: value}))
    refused(f"{file}: {name}: {value!r}", allowed, file=str(file))


def test_times_fit_together() -> None:
    refused("lost_s: 1", "suspect_s, 2", lost_s=1.0)
    refused("suspect_s: 0.3", "heartbeat_s, 0.5", suspect_s=0.3)


def test_compression() -> None:
    assert make(None, {"compression": "top-k", "top_k": 0.1}).top_k == 0.1
    refused("compression: 'zip'", "none, bf16, top-k", compression="zip")
    refused("top_k: 0.1 is for compression: top-k", "not bf16", compression="bf16", top_k=0.1)
    refused("top_k: 2.0", compression="top-k", top_k=2.0)


def test_unknown_keys_are_named_and_the_known_ones_listed(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("epocs: 3\nzzz: 1\n2: 3\n")
    known = ", ".join(sorted(Config.__struct_fields__))
    refused(str(file), "'epocs' (did you mean 'epochs'?)", "'zzz'", "'2'", known, file=str(file))


@pytest.mark.parametrize(
    ("text", "fragment"),
    [("a: [1\n", "line 2, column 1: is not YAML"), ("- 1\n", "holds a list"), ("word\n", "holds a str"),
     ("a: !!python/object:os.system {}\n", "is not YAML"), ("\x00", "is not YAML")],
)  # fmt: skip
def test_files_that_are_no_settings(tmp_path: Path, text: str, fragment: str) -> None:
    file = tmp_path / "some.yaml"
    file.write_text(text)
    refused(str(file), fragment, file=str(file))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    refused("nosuch.yaml: cannot be read", file=str(tmp_path / "nosuch.yaml"))
    refused("cannot be read", file=str(tmp_path))
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    refused("bytes.yaml: is not YAML", file=str(tmp_path / "bytes.yaml"))


def test_a_run_remembers_its_settings() -> None:
    chosen = make(None, {"workers": "1..4", "checkpoint_every": 50, "timeline": True})
    assert make(None, {}, msgspec.json.decode(msgspec.json.encode(chosen))) == chosen
    assert read_file(str(LOCAL))["suspect_s"] == chosen.suspect_s


# --- dates and deadlines: what they mean is found out once --------------------------------------------


@pytest.fixture
def night(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """2026-11-21 at 22:00 in Berlin, where this machine is."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield datetime.fromisoformat("2026-11-21T22:00:00+01:00").timestamp()
    monkeypatch.undo()
    time.tzset()


DATED = {
    "data": "hdfs:///clicks/day={yesterday:%Y-%m-%d}/*.parquet",
    "run_dir": "hdfs:///models/clicks-{today:%Y%m%d}",
    "deadline": "06:00",
}


def test_dates_and_deadlines_are_found_out_once(night: float) -> None:
    chosen = make(None, DATED, at_s=night)
    assert chosen.data == "hdfs:///clicks/day=2026-11-20/*.parquet"
    assert chosen.run_dir == "hdfs:///models/clicks-20261121"
    assert chosen.deadline == "2026-11-22T06:00:00+01:00"
    assert chosen.date == "2026-11-21T22:00:00+01:00"
    assert chosen.deadline_at == night + 8 * 3600
    again = make(None, {}, msgspec.to_builtins(chosen), at_s=night + 86400)
    assert again == chosen, "also when the deadline is over, and it is another day"


def test_a_run_that_goes_on_with_its_file_keeps_what_the_file_meant(tmp_path: Path, night: float) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(yaml.safe_dump({**DATED, "epochs": 3}))
    chosen = make(str(file), {}, at_s=night)
    later = make(str(file), {"epochs": 5}, msgspec.to_builtins(chosen), at_s=night + 86400)
    assert later == msgspec.structs.replace(chosen, epochs=5)
    moved = make(str(file), {"deadline": "+2h"}, msgspec.to_builtins(chosen), at_s=night + 86400)
    assert moved.deadline == "2026-11-23T00:00:00+01:00"


def test_a_date_makes_another_night_of_it(night: float) -> None:
    chosen = make(None, {**DATED, "date": "2026-11-01"}, at_s=night)
    assert (chosen.data, chosen.date) == ("hdfs:///clicks/day=2026-10-31/*.parquet", "2026-11-01")
    assert chosen.run_dir.endswith("clicks-20261101")
    assert chosen.deadline == "2026-11-22T06:00:00+01:00", "of the night in which it runs"


def test_what_has_no_dates_is_left_alone(night: float) -> None:
    chosen = make(None, {"data": "x/*.csv", "run_dir": "here"}, at_s=night)
    assert (chosen.data, chosen.run_dir, chosen.date, chosen.deadline) == ("x/*.csv", "here", "", "")
    braces = make(None, {"data": "{{a,b}}.csv"}, at_s=night)
    assert braces.data == make(None, {}, msgspec.to_builtins(braces)).data == "{a,b}.csv"


def test_a_deadline_that_is_over_is_refused_where_a_run_begins(night: float) -> None:
    late = {"deadline": "2026-11-21T21:00"}
    with pytest.raises(ConfigError, match="deadline: '2026-11-21T21:00' is over since 1 h 00 min; name a"):
        make(None, late, at_s=night)
    assert make(None, late, {}, at_s=night).deadline == "2026-11-21T21:00:00+01:00"


@pytest.mark.parametrize(
    ("values", "fragment"),
    [({"deadline": "soon"}, "'soon' is no moment; write 06:00"), ({"time_limit": "8"}, "write 45s, 90m, 8h"),
     ({"data": "{yesterdy}"}, "{yesterdy} is no date"), ({"run_dir": "a{"}, "run_dir: 'a{'"),
     ({"date": "monday"}, "write 2026-11-20")],
)  # fmt: skip
def test_moments_and_patterns_that_are_wrong(tmp_path: Path, values: dict[str, str], fragment: str) -> None:
    (name,) = values
    refused(f"{name}: ", fragment, **values)
    file = tmp_path / "some.yaml"
    file.write_text(yaml.safe_dump(values))
    refused(f"{file}: {name}: ", fragment, file=str(file))


def test_moments_that_yaml_takes_for_something_else(tmp_path: Path, night: float) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("deadline: 2026-11-22T06:00:00+01:00\ndate: 2026-11-20\ntime_limit: 8h\n")
    chosen = make(str(file), {}, at_s=night)
    assert (chosen.deadline, chosen.date) == ("2026-11-22T06:00:00+01:00", "2026-11-20")
    assert chosen.time_limit_s == 8 * 3600
    file.write_text("deadline: 22:00\n")
    refused(f"{file}: deadline: 1320 is a number; write it in quotes", file=str(file))
    file.write_text("time_limit: 8\n")
    refused(f"{file}: time_limit: '8' is no length of time", file=str(file))
