"""Small things that cost people time: typing mistakes, arguments of programs, something to begin with."""

import errno
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticflow.cli.main import main
from elasticflow.cli.train import TrainFolder
from elasticflow.errors import CheckpointError, ConfigError, DataError, ProgramError, RunError
from elasticflow.program import arguments
from elasticflow.run import config
from elasticflow.run.folder import RunDir
from elasticflow.worker.batches import check_columns


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train", "p.py", "--epoch-s", "3"], "did you mean --epochs?"),
        (["train", "p.py", "--batchsize", "3"], "did you mean --batch-size?"),
        (["trian", "p.py"], "did you mean train?"),
        (["new", "pytroch"], "did you mean pytorch?"),
        (["checkpoint", "digest", "x", "--stp", "3"], "unrecognized arguments"),
    ],
)
def test_a_typing_mistake_gets_a_suggestion(argv, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_train_on_a_cluster_is_no_word_about_nan(capsys):
    assert main(["train", "--on", "yarn", "p.py"]) == 1
    assert (
        "--on yarn: 'train' runs a program here, 'elasticflow submit' elsewhere." in capsys.readouterr().err
    )


def test_a_full_disk_is_no_reason_for_another_folder(tmp_path, monkeypatch):
    """Of a run that goes on there is none."""

    def full(run, chosen):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunDir, "create", full)
    with pytest.raises(RunError, match="No space left on device; make room there, or have its quota raised"):
        TrainFolder(tmp_path / "run", config.Config(), False, None)


def test_arguments_of_a_program():
    arguments.give(arguments.parsed(["lr=1e-3", "width=64", "name=a b", "deep=true"]))
    found = arguments.args(lr=0.1, width=32, name="x", deep=False, other=None)
    assert vars(found) == {"lr": 1e-3, "width": 64, "name": "a b", "deep": True, "other": None}
    arguments.check_asked("p.py")
    arguments.give({"lr": 1, "widht": 3})
    assert arguments.args(lr=0.5, width=3).lr == 1.0
    with pytest.raises(ProgramError, match="--set widht: is no argument of p.py .did you mean 'width'."):
        arguments.check_asked("p.py")
    arguments.give({"lr": "high"})
    with pytest.raises(ProgramError, match="--set lr=high: is a str; the program's default, 0.1, is a float"):
        arguments.args(lr=0.1)
    arguments.give(arguments.parsed(["day=20261120"]))
    with pytest.raises(ProgramError, match="is an int; .* quotes of its own it is a text") as refused:
        arguments.args(day="20261119")
    told = shlex.split(str(refused.value).partition("--set ")[2].partition("--set ")[2].rstrip("."))
    arguments.give(arguments.parsed(told))
    assert arguments.args(day="20261119").day == "20261120", "what it says helps"
    arguments.give({})


def test_days_and_times_of_day_are_texts():
    told = ["day=2026-11-18", "at=22:00", "since=2026-11-18T22:00:00"]
    assert arguments.parsed(told) == dict(text.split("=") for text in told)


@pytest.mark.parametrize("text", ["lr", "=3", "a-b=1", "x={a: 1}"])
def test_arguments_that_are_none(text):
    with pytest.raises(ConfigError, match="must be NAME=VALUE"):
        arguments.parsed([text])


@pytest.mark.parametrize("text", ["act=null", "act=~"])
def test_null_is_said_to_be_no_value(text):
    with pytest.raises(ConfigError, match=f"--set {text}: null is no value; leave it out, .* --set act='\""):
        arguments.parsed([text])


def test_what_is_in_quotes_is_a_text():
    told = ["act='nan'", 'name="null"', "size='1e-3'"]
    assert arguments.parsed(told) == {"act": "nan", "name": "null", "size": "1e-3"}


@pytest.mark.parametrize("number", ["nan", ".inf", "1e400", "[0.5, .nan]"])
def test_numbers_that_workers_would_read_as_null_are_refused(number, tmp_path):
    (tmp_path / "c.yaml").write_text("args: {lr: .nan}")
    with pytest.raises(ConfigError, match="c.yaml: args: lr: nan is not allowed: NaN and infinite"):
        config.make(str(tmp_path / "c.yaml"), {})
    with pytest.raises(ConfigError, match="^args: lr: .* is not allowed: NaN and infinite"):
        config.make(None, {"args": arguments.parsed([f"lr={number}"])})


def test_arguments_of_the_command_line_beat_those_of_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text("args: {lr: 0.5, width: 3}")
    chosen = config.make(str(tmp_path / "c.yaml"), {"args": {"lr": 0.1}})
    assert chosen.args == {"lr": 0.1, "width": 3}


def test_what_has_no_tensors_is_named_with_column_and_record():
    rows = np.array([7, 8])
    with pytest.raises(
        DataError, match=r"column 'city' holds texts .*'Rome' in record 7.*PyTorch.*vocabularies="
    ):
        check_columns("torch", {"x": np.ones(2), "city": np.array(["Rome", "Oslo"])}, rows)
    check_columns("tensorflow", {"city": np.array(["Rome", "Oslo"])}, rows)
    with pytest.raises(DataError, match="column 'day' holds dates or times"):
        check_columns("tensorflow", {"day": np.array(["2026-11-20"], "datetime64[D]")}, rows)


@pytest.mark.parametrize("kind", ["pytorch", "keras"])
def test_a_skeleton_is_a_program(tmp_path, monkeypatch, capsys, kind):
    pytest.importorskip({"pytorch": "torch", "keras": "tensorflow"}[kind])
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind]) == 0 and "elasticflow check program.py" in capsys.readouterr().out
    assert main(["new", kind]) == 1 and "is there already" in capsys.readouterr().err
    command = [sys.executable, "-m", "elasticflow.cli", "check", "program.py", "--set", "width=5"]
    done = subprocess.run([*command, "--debug"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "one slice: cost" in done.stdout, done.stderr
    done = subprocess.run([*command, "--set", "deep=1"], capture_output=True, text=True)
    assert done.returncode == 1 and "is no argument of" in done.stderr


def test_debugging_shows_what_the_program_prints_and_where_it_raises(tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "p.py"
    program.write_text(
        "import torch, elasticflow as ef\n"
        "def model(): return {'w': torch.zeros(2), 'optimizer': ef.SGD()}\n"
        "def forward(x, params):\n    print('here', x.shape)\n    return (x * params['v']).sum()\n"
        "def data(): return {'x': torch.ones(64, 2)}\n"
    )
    command = [sys.executable, "-m", "elasticflow.cli", "check", str(program), "--debug"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "here torch.Size([8, 2])" in done.stdout
    assert "KeyError: 'v'" in done.stderr and "line 5, in forward" in done.stderr
    program.write_text(program.read_text().replace("def data", "def date"))
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert "forward() wants the columns x" in done.stderr


def test_examples_are_copied(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["example"]) == 0 and "digits" in capsys.readouterr().out.splitlines()
    assert main(["example", "digits"]) == 0 and "elasticflow train digits" in capsys.readouterr().out
    assert Path("digits/digits.py").is_file()
    assert main(["example", "digits"]) == 1 and main(["example", "digit"]) == 1
    assert "there is none; there are" in capsys.readouterr().err


def test_other_arguments_are_refused_at_resume(tmp_path):
    from elasticflow.run.work import check_same_work, work_of

    class Before:
        step, work = 8, work_of(config.make(None, {"args": {"lr": 0.5}}))

    with pytest.raises(CheckpointError, match="other arguments.*Resume with --set lr=0.5"):
        check_same_work(Before, config.make(None, {"args": {"lr": 0.1}}))


@pytest.mark.parametrize(
    "argv",
    [
        ["evaluate", "RUN", "--data", "n\udcfc.npz"],
        ["predict", "RUN", "--data", "new.npz", "--out", "o\udcfc.npz"],
        ["serve-model", "RUN", "--program", "p\udcfc.py"],
        ["sweep", "p.py", "--space", "seed=1..4", "--metric", "auc", "--folder", "f\udcfc"],
    ],
)
def test_names_that_are_not_utf8_are_refused_by_name(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.json").touch()
    Path("p.py").write_text("def model(): return {}\ndef forward(params): return 0\n")
    assert main([str(tmp_path) if each == "RUN" else each for each in argv]) == 1
    said = capsys.readouterr().err
    assert argv[-2] in said and "is not UTF-8" in said
