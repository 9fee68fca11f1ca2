"""A run's folder as it is before anything begins: where nothing begins, nothing is left behind."""

from __future__ import annotations

import contextlib
import shutil

from elasticflow.errors import RunError
from elasticflow.process.retry import is_full
from elasticflow.run.folder import RunDir, RunPath, replace
from elasticflow.storage.hdfs import HdfsPath


def advice(error: OSError) -> str:
    """What to do about a run's folder that cannot be written: a run that goes on has no other one."""
    return "make room there, or have its quota raised" if is_full(error) else "choose another --run-dir"


class FolderBefore:
    """others: files in it that submitting makes, beside those that any run has. Raises RunError."""

    def __init__(self, run: RunDir, *others: RunPath) -> None:
        self.run, self.path = run, run.path
        self._files = (run.settings, run.job, run.journal, run.report, run.attempts, *others)
        try:
            self._before = {path: path.read_bytes() for path in self._files if path.exists()}
            self._missing: list[RunPath] = []
            """Folders that are to be made, the run's first."""
            path = self.path
            while not path.exists():
                self._missing.append(path)
                path = path.parent
        except OSError as error:
            raise RunError(f"{run.path}: cannot be used: {error}; choose another --run-dir.") from error

    def make(self) -> None:
        """Makes it, unless it was there. Raises OSError; FileExistsError if others begin a run there."""
        if self._missing:
            self.path.mkdir(parents=True)
        if not self._before:  # one that is empty, or was made just now, may be looked at by others as well
            self.run.client_keys.parent.mkdir(mode=0o700)

    def put_back(self) -> None:
        """Nothing began: leaves it as it was."""
        with contextlib.suppress(OSError):
            if not self._before:
                self.run.forsake()
                for path in self.path.iterdir():  # it was empty, or not there
                    _remove(path)
            for folder in self._missing:
                folder.rmdir()  # fails if others have put something there by now
            for file in self._files if self._before else ():
                if file in self._before:
                    replace(file, self._before[file])
                else:
                    file.unlink(missing_ok=True)


def _remove(path: RunPath) -> None:
    if isinstance(path, HdfsPath):
        path.remove_tree()
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
