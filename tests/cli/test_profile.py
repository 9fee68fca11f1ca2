"""``elasticflow profile``: the real thing on the digits example, what it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from elasticflow.cli.connection import Connection
from elasticflow.cli.main import main
from elasticflow.cli.profile import page
from elasticflow.cli.profile_files import Profile, check_folder, curve_points, read, write
from elasticflow.cluster.presence import wait_until_over
from elasticflow.errors import ConfigError, DataError
from elasticflow.scheduler.fit import fit_curve
from elasticflow.scheduler.measured import Change, Point
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.traces import read_profiles
from elasticflow.wire.messages import StopRequest
from tests.e2e.processes import Outcome

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.py"
BRIEF = ("--workers", 2, "--steps", 6, "--warm-up", 2, "--seconds", 0)


def test_the_digits_are_measured(tmp_path: Path) -> None:
    done = Outcome(tmp_path, "profile", DIGITS, *BRIEF, "--slices", 4, "--json")
    assert done.code == 0, done.err
    assert not done.left and done.found == ["profiles"]
    told = msgspec.json.decode(done.out, type=Profile)
    assert [(point.workers, point.measured) for point in told.curve] == [(1, True), (2, True), (4, False)]
    assert all(point.rate > 0 and point.error >= 0 for point in told.curve)
    assert told.steps[1] >= 12 and told.steps[2] >= 6  # one worker is come to twice
    assert [(change.old, change.new) for change in told.changes] == [(1, 2), (2, 1)]
    assert told.fingerprint["torch"] and told.first_step_s > 0
    curve = read_profiles(tmp_path / "profiles")["digits", 64]
    assert curve.sizes == (1, 2, 4)
    assert curve.rate(1) == pytest.approx(told.curve[0].rate, rel=1e-4)
    assert read(tmp_path / "profiles" / "digits.64.json") == told
    assert told.overheads.move_s(1) >= told.first_step_s


def test_a_run_that_is_over_before_its_last_status_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where this process is slower than the master's end."""
    monkeypatch.chdir(tmp_path)
    insist = Connection.insist

    def late(connection: Connection, message: StopRequest) -> None:
        insist(connection, message)
        wait_until_over(connection._run)
        monkeypatch.setattr(Connection, "receive", lambda self, timeout_s: None)

    monkeypatch.setattr(Connection, "insist", late)
    assert main(["profile", str(DIGITS), *map(str, BRIEF), "--slices", "4"]) == 0
    assert read_profiles(tmp_path / "profiles")["digits", 64].sizes == (1, 2, 4)


def test_a_program_that_fails_is_told_with_its_line(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(DIGITS.read_text().replace('params["net"](x), y)', 'params["net"](x) / oops, y)', 1))
    done = Outcome(tmp_path, "profile", program, *BRIEF)
    assert done.code == 1 and not done.left
    assert "oops" in done.err and done.err.splitlines()[-1].startswith("Error: ")
    assert not (tmp_path / "profiles" / "wrong.csv").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--workers", "0"], "--workers: 0 is too few"),
        (["--workers", "9"], "9 workers cannot share 8 slices"),
        (["--steps", "1"], "--steps: 1 is too few"),
        (["--warm-up", "-1"], "--warm-up: -1 is too few"),
        (["--seconds", "nan"], "--seconds: nan is too few"),
        (["--batch-size", "-4"], "batch_size"),
        (["--to", "/dev/null/profiles"], "--to: /dev/null/profiles cannot be made"),
    ],
)
def test_what_is_refused_at_once(
    options: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", str(DIGITS), *options]) == 1
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("Error: ") and told in shown.err


def test_another_backend_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "slurm.yaml"
    settings.write_text("backend: slurm\n")
    assert main(["profile", str(DIGITS), "--config", str(settings), "--to", str(tmp_path)]) == 1
    assert "'profile' measures on this machine" in capsys.readouterr().err


def test_a_program_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(tmp_path / "none.py"), "--to", str(tmp_path)]) == 1
    assert "none.py" in capsys.readouterr().err


def _profile(batch: int, rates: dict[int, float], most: int) -> Profile:
    points = [Point(size, rate, 0.01, 50) for size, rate in rates.items()]
    fit = fit_curve(rates)
    return Profile(
        program="net.py",
        global_batch_size=batch,
        slices=most,
        servers=1,
        threads=1,
        measured_at="2026-01-01T00:00:00+00:00",
        fingerprint={"processor": "x"},
        curve=curve_points(points, fit, (1, 2, 4, most)),
        terms={},
        misfit=fit.misfit,
        steps=dict.fromkeys(rates, 50),
        first_step_s=1.5,
        changes=(Change(1, 2, 0.5, 0.25, 0.125),),
        overheads=Overheads(same_s=0.1),
    )


def test_a_table_grows_by_batches_and_sizes(tmp_path: Path) -> None:
    write(tmp_path, _profile(64, {1: 10.0, 2: 19.0}, 8))
    write(tmp_path, _profile(32, {1: 20.0, 2: 30.0}, 16))
    write(tmp_path, _profile(64, {1: 11.0, 2: 19.0}, 8))  # measured again
    assert (tmp_path / "net.csv").read_text().splitlines()[0] == "global_batch_size,1,2,4,8,16"
    curves = read_profiles(tmp_path)
    assert set(curves) == {("net", 32), ("net", 64)}
    assert curves["net", 64].rate(1) == 11 and curves["net", 64].sizes == (1, 2, 4, 8)
    assert curves["net", 32].sizes == (1, 2, 4, 16)


def test_a_table_of_something_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="is no profile"):
        check_folder(tmp_path, "/x/net.py")
    with pytest.raises(ConfigError, match="--to"):
        check_folder(tmp_path / "net.csv", "/x/net.py")


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
    (tmp_path / "net.64.json").write_text("{}")
    with pytest.raises(DataError, match="is no profile"):
        read(tmp_path / "net.64.json")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "none.json")


def test_the_page_says_what_is_measured_and_what_is_not() -> None:
    text = "\n".join(page(_profile(64, {1: 10.0, 2: 19.0}, 8)))
    assert "measured over 50 steps" in text and "fitted" in text
    assert "1 to 2 workers: there after 0.50 s, a step took 250 ms longer, 0.12 s lost" in text
