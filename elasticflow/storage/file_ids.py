"""Which files the records come from, so that nobody reads others than the run began with.

A worker that opens a file tells its size, its time of change, its inode, and a hash of samples of its bytes.
Size and samples must be those that the first worker found; and the time, on one machine, or where the inode
is the same, as in a folder that machines share. A file that was copied to each machine has another time.
So it may have when a run is resumed, since to touch a file, or to move it, changes no record.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import groupby

import msgspec
import xxhash

SAMPLE_BYTES = 64 << 20
"""Of all files of a source, so many bytes are hashed: of most all there are."""
SAMPLING = "2:"
"""With what a sample begins: those of an ElasticFlow that took others tell nothing of these."""
PIECES, PIECE_BYTES = 64, 4 << 10
"""Of a file that is larger than its share of these, so many pieces, or as many of this size as its share has:
its end among them, where formats keep their indexes."""
READ_BYTES = 4 << 20
MOST_TOLD = 256
"""More files than this are told in groups."""
_LIST = "the list of "
VOCABULARIES = "vocabularies of "
"""With what the name begins of what columns' values become ids by: it is told as a file is."""
DATASET = "dataset"
"""With what ``FileId.of_list`` begins."""
STAY = "A run's data must stay as it is; write new data under a new name, and start again."


class FileId(msgspec.Struct, frozen=True):
    """A file as it was found, or several that follow one another.

    host: whose clock ``modified`` is by; "": everybody's, as on HDFS. inode: its number in its file system.
    modified: when, as the file system has it; a text, as messages hold no numbers so large.
    sample: hash of some of its bytes; "": none was taken.
    of_list: where a program's own dataset has its name, mostly a list, see ``list_id``; "": a source's own.
    """

    name: str
    num_bytes: int
    modified: str
    inode: str = ""
    host: str = ""
    sample: str = ""
    of_list: str = ""


def of_local(path: str, host: str) -> FileId:
    """A local file as it is now, but for its bytes. Raises OSError."""
    return of_stat(path, os.stat(path), host)


def of_stat(path: str, stat: os.stat_result, host: str) -> FileId:
    """The same, of what was found already."""
    return FileId(path, stat.st_size, str(stat.st_mtime_ns), str(stat.st_ino), host)


def of_value(name: str, value: object) -> FileId:
    """What decides records beside the bytes of files, told as a file is. value: of what JSON has, or text."""
    text = json.dumps(value, default=str, sort_keys=True).encode()
    return FileId(name, len(text), "", sample=hashlib.blake2b(text, digest_size=16).hexdigest())


def list_id(of_list: str, count: int, value: object) -> FileId:
    """Of a list of names of files itself. of_list: where its dataset has it."""
    return msgspec.structs.replace(of_value(f"{_LIST}{count} files", value), of_list=of_list)


def told_name(file: FileId) -> str:
    """What a manifest calls it, wherever it lies."""
    return f"{file.of_list}: " * bool(file.of_list) + os.path.basename(file.name)


def other_vocabularies(told: Sequence[tuple[str, int, str]], files: Sequence[FileId]) -> str:
    """Of what a manifest tells, the first that is another in ``files``; "": none is.

    Those that one side alone has are not compared.
    """
    known: dict[str, set[str]] = {}
    for name, _, sample in told:
        if name.startswith(VOCABULARIES):
            known.setdefault(name, set()).add(sample)
    now = ((told_name(file), file.sample) for file in files)
    return next((name for name, sample in now if sample not in known.get(name, {sample})), "")


def list_of(told: str) -> str:
    """``FileId.of_list``, of what a manifest calls a file."""
    where, mark, _ = told.partition(": ")
    return where if mark and where.startswith(DATASET) else ""


def in_both(first: Sequence[FileId], other: Sequence[FileId]) -> tuple[list[FileId], list[FileId]]:
    """But for those of lists of which one side has none: one of a cache, say, which its dataset writes."""
    both = {file.of_list for file in first} & {file.of_list for file in other} | {""}
    lacking = lacking_alone(map(told_name, first), map(told_name, other))
    left, right = (
        [file for file in side if file.of_list in both and told_name(file) not in lacking]
        for side in (first, other)
    )
    return left, right


def lacking_alone(first: Iterable[str], other: Iterable[str]) -> set[str]:
    """Of files that datasets name alone, by what a manifest calls them, those of one side where it has more:
    those for training and for tests name theirs alike, and one may have been unpacked since."""
    left, right = ({name for name in side if is_alone(list_of(name))} for side in (first, other))
    numbers = [Counter(map(list_of, side)) for side in (left, right)]
    return {name for name in left ^ right if len({number[list_of(name)] for number in numbers}) > 1}


def is_alone(of_list: str) -> bool:
    """Whether that is no list, but where a dataset has the name of one file."""
    return bool(of_list) and not of_list.endswith("]")


def sampled(found: FileId, num_files: int = 1) -> FileId:
    """With the hash of some of its bytes, or of all. num_files: that the source has. Raises OSError."""
    digest = xxhash.xxh3_128()
    share = SAMPLE_BYTES // num_files
    with open(found.name, "rb", buffering=0) as file:
        if found.num_bytes <= max(share, PIECE_BYTES):
            while piece := file.read(READ_BYTES):
                digest.update(piece)
        else:
            parts = _parts(min(PIECES, share // PIECE_BYTES))
            size = max(PIECE_BYTES, share // len(parts))
            for part in parts:
                file.seek(int(part * (found.num_bytes - size)))
                digest.update(file.read(size))
    return msgspec.structs.replace(found, sample=SAMPLING + digest.hexdigest())


def alike(old: str, new: str) -> bool:
    """Whether these may be samples of the same bytes."""
    return old == new or bool(old and new and _kind(old) != _kind(new))


def _parts(count: int) -> list[Fraction]:
    """From 0 to 1, or 1 alone."""
    return [Fraction(number, count - 1) for number in range(count)] if count > 1 else [Fraction(1)]


def folded(files: Sequence[FileId]) -> tuple[FileId, ...]:
    """The same, but neighbours as one where there are very many: what is told of a run stays small.

    Each of them still counts. Those of a list stay by themselves.
    """
    told: list[FileId] = []
    for _, several in groupby(
        files, lambda file: (file.of_list, file.of_list and file.name.startswith(_LIST))
    ):
        some = list(several)
        size = -(-len(some) // MOST_TOLD) or 1
        groups = [some[start : start + size] for start in range(0, len(some), size)]
        told += [group[0] if len(group) == 1 else _group(group) for group in groups]
    return tuple(told)


def _group(files: Sequence[FileId]) -> FileId:
    return FileId(
        f"{files[0].name} .. {files[-1].name} ({len(files)} files)",
        sum(file.num_bytes for file in files),
        _hash(file.modified for file in files),
        _hash(file.inode for file in files),
        files[0].host,
        max(_kind(file.sample) for file in files) + _hash(file.sample for file in files)
        if files[0].sample
        else "",
        files[0].of_list,
    )


def _kind(sample: str) -> str:
    return SAMPLING if sample.startswith(SAMPLING) else ""


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]


def first_change(first: Sequence[FileId], other: Sequence[FileId]) -> str:
    """What was found differently later, for people; empty if nothing."""
    first, other = in_both(first, other)
    for old, new in zip(first, other, strict=False):
        if change := changed(old, new):
            return change + aside(new)
    if len(first) != len(other):
        return f"there are {len(other)} files, and were {len(first)}"
    return ""


def aside(file: FileId) -> str:
    """What to do where one that a dataset names alone is none of records."""
    if not is_alone(file.of_list):
        return ""
    return f" ({file.of_list} names it; if no record comes from it, as from a cache, keep its name in a dict)"


def changed(old: FileId, new: FileId) -> str:
    """How a file is not what it was, for people; empty if it is, as far as this tells."""
    if os.path.basename(old.name) != os.path.basename(new.name):
        return f"{new.name} where {old.name} was"
    if old.num_bytes != new.num_bytes:
        return f"{new.name} has changed: {new.num_bytes:,} bytes, and it had {old.num_bytes:,}"
    if old.sample and new.sample and not alike(old.sample, new.sample):
        return f"{new.name} has changed: it has as many bytes as before, but others"
    same_place = old.host == new.host or old.inode == new.inode
    if same_place and old.modified != new.modified:
        return f"{new.name} has changed: it was written to, touched or replaced since"
    return ""
