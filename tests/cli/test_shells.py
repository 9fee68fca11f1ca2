"""What shells complete, and the man page: both know each verb and option there is."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from elasticflow.cli import manual, shells
from elasticflow.cli.main import main
from elasticflow.cli.verbs import VERBS, parser, verbs_of

ROOT = Path(__file__).parents[2]
TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_shtab_elasticflow elasticflow "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shell") / "completion.bash"
    path.write_text(shells.script("bash"))
    return path


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["tr"], {"train", "track"}),
        (["train", "--batch"], {"--batch-size"}),
        (["train", "examples/digits_t"], {"examples/digits_tensorflow"}),
        (["train", "--config", "conf/loc"], {"conf/local.yaml"}),
        (["checkpoint", "c"], {"copy"}),
        (["logs", "--role", "wo"], {"worker"}),
        (["status", "exam"], {"examples"}),
    ],
)
def test_bash(bash: Path, words: list[str], completed: set[str]) -> None:
    command = ["bash", "-c", TRY, "try", str(bash), "elasticflow", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == completed


@pytest.mark.parametrize("shell", shells.SHELLS)
def test_every_verb_is_known_to_every_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in VERBS) and "batch-size" in script


def test_the_man_page_is_what_the_command_line_knows() -> None:
    text = manual.text()
    assert (ROOT / "docs" / "elasticflow.1").read_text() == text, "make man"
    plain = text.replace("\\-", "-")
    for name, verb in verbs_of(parser()).items():
        assert f".SS {name}\n" in plain
        for action in verb.fill_in()._actions:
            shown = [option for option in action.option_strings if option.startswith("--")]
            if action.help is not argparse.SUPPRESS and "--help" not in shown:
                assert all(option in plain for option in shown)


@pytest.mark.skipif(not shutil.which("groff"), reason="there is no groff")
def test_the_man_page_is_roff() -> None:
    command = ["groff", "-man", "-ww", "-z", str(ROOT / "docs" / "elasticflow.1")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
