"""A file system that fails where it is told to, just below ``DirectoryStorage``."""

from __future__ import annotations

import errno
import os
import random
import shutil

CALLS = ("fsync", "link", "rename", "unlink", "mkdir", "open", "listdir", "stat", "lstat")
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.ESTALE, errno.EDQUOT, errno.EACCES)


class Faults:
    """Stands in for what ``elasticflow.storage.directory`` calls.

    fails: called with the number and the name of each call; None, or the errno to fail with.
    late: what fails was done all the same, as over a network that loses the answer.
    """

    def __init__(self, monkeypatch, module, late=False, fails=lambda number, call: None):
        self.calls, self.fails, self.late = [], fails, late
        monkeypatch.setattr(module, "os", self)
        monkeypatch.setattr(module, "open", self._open_file, raising=False)
        monkeypatch.setattr(module, "shutil", _Trees(self))

    def __getattr__(self, name):
        real = (lambda descriptor: None) if name == "fsync" else getattr(os, name)  # no power is cut here
        return self.wrap(name, real) if name in CALLS else real

    def wrap(self, name, real, instead=lambda: None):
        def call(*arguments, **options):
            number = len(self.calls)
            self.calls.append(name)
            code = self.fails(number, name)
            if code is None:
                return real(*arguments, **options)
            if self.late:
                result = real(*arguments, **options)
                if name == "open":
                    os.close(result)
                elif name in ("create", "open file"):
                    result.close()
            else:
                instead()
            raise OSError(code, os.strerror(code))

        return call

    def _open_file(self, path, mode):
        return _File(self, self.wrap("create" if "x" in mode else "open file", open)(path, mode))


class _File:
    """An open file. A write that fails leaves a part of what it was to write."""

    def __init__(self, faults, file):
        self._faults, self._file = faults, file

    def write(self, data):
        return self._faults.wrap("write", self._file.write, lambda: self._file.write(data[: len(data) // 3]))(
            data
        )

    def read(self, size=-1):
        return self._faults.wrap("read", self._file.read)(size)

    def readinto(self, buffer):
        return self._faults.wrap("read", self._file.readinto)(buffer)

    def flush(self):
        return self._faults.wrap("flush", self._file.flush)()

    def close(self):
        if not self._file.closed:
            self._faults.wrap("close", self._file.close, self._file.close)()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


class _Trees:
    """Removes folders, or half of their files before it fails."""

    def __init__(self, faults):
        self._faults = faults

    def rmtree(self, path):
        def half():
            for name in sorted(os.listdir(path))[::2]:
                os.unlink(path / name)

        self._faults.wrap("rmtree", shutil.rmtree, half)(path)


def once(at, code):
    """Fails the call of this number."""
    return lambda number, call: code if number == at else None


def all_of(name, code):
    """Fails every call of this name."""
    return lambda number, call: code if call == name else None


def often(seed, share):
    """Fails a share of all calls, at random."""
    chance = random.Random(seed)
    return lambda number, call: chance.choice(ERRNOS) if chance.random() < share else None


def never(number, call):
    """Fails nothing."""
    return None
