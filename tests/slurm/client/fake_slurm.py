"""Commands with SLURM's names that answer with texts: for tests of what is asked and how answers are read."""

from __future__ import annotations

import shlex
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())


def golden(version: str, name: str) -> str:
    """The text of a golden file, without the comment that says where it is from."""
    lines = (GOLDEN / version / f"{name}.txt").read_text().splitlines(keepends=True)
    return "".join(lines[1:] if lines and lines[0].startswith("# ") else lines)


class FakeSlurm:
    """A folder of commands, to be the only one on PATH. Each keeps what it was asked with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": str(self.folder), "HOME": "/nowhere"}

    def answer(
        self, command: str, out: str = "", errors: str = "", code: int = 0, then_sleep_s: float = 0
    ) -> None:
        """From now on the command prints these, sleeps, and ends with this code."""
        for name, text in (("out", out), ("errors", errors)):
            (self.folder / f"{command}.{name}").write_bytes(text.encode("utf-8", "surrogateescape"))
        place = shlex.quote(f"{self.folder}/{command}")
        program = self.folder / command
        program.write_text(
            "#!/bin/sh\nPATH=/usr/bin:/bin\n"
            f"printf '%s\\0' \"$@\" > {place}.asked\nenv -0 > {place}.environ\ncat > {place}.stdin\n"
            f"cat {place}.out\ncat {place}.errors >&2\n"
            + (f"exec sleep {then_sleep_s}\n" if then_sleep_s else f"exit {code}\n")
        )
        program.chmod(0o755)

    def asked(self, command: str) -> list[str]:
        """The arguments of the last call."""
        text = (self.folder / f"{command}.asked").read_bytes().decode("utf-8", "surrogateescape")
        return text.split("\0")[:-1]

    def environ_of(self, command: str) -> dict[str, str]:
        text = (self.folder / f"{command}.environ").read_text()
        return dict(entry.split("=", 1) for entry in text.split("\0") if entry)

    def stdin_of(self, command: str) -> str:
        return (self.folder / f"{command}.stdin").read_text()
