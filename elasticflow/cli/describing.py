"""``elasticflow data describe``: what is in files of records, and what it takes to train on them."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from elasticflow.data.describing import SHOWN, ColumnStory, describe
from elasticflow.errors import DataError
from elasticflow.process.texts import as_json
from elasticflow.run.folder import replace


def describe_data(arguments: argparse.Namespace) -> int:
    """Prints a line a column, and beneath it what would not fit."""
    stories = describe(arguments.file)
    if arguments.vocabularies:
        known = {story.name: story.vocabulary() for story in stories if _is_of_texts(story)}
        kept = {name: values for name, values in known.items() if values is not None}
        if not kept:
            raise DataError(
                f"{arguments.file}: has no column of texts with few enough values for a vocabulary; there is "
                "hashing=, which needs none."
            )
        replace(Path(arguments.vocabularies), msgspec.json.format(msgspec.json.encode(kept)))
    if arguments.json:
        shown = [{**msgspec.structs.asdict(story), "values": _different(story)} for story in stories]
        print(msgspec.json.format(as_json(shown)).decode())
        return 0
    print(f"{stories[0].records:,} records" if stories else "no columns")
    for story in stories:
        print(f"{story.name}  {', '.join(_facts(story))}")
        if story.advice:
            print(f"    {story.advice}")
    return 0


def _is_of_texts(story: ColumnStory) -> bool:
    return bool(story.values) and all(isinstance(value, str) for value in story.values or ())


def _different(story: ColumnStory) -> int | None:
    return len(story.values) if story.values else None


def _facts(story: ColumnStory) -> list[str]:
    facts = [story.type]
    if story.missing:
        facts.append(f"{story.missing:,} missing ({100 * story.missing / story.records:.3g} %)")
    if story.lengths:
        facts.append("{} to {} elements".format(*story.lengths))
    if story.least is not None:
        facts.append(f"{story.least} to {story.most}")
    if story.mean is not None:
        facts.append(f"mean {story.mean:.6g}")
    if story.values is None:
        facts.append("very many values")
    elif _is_of_texts(story):
        words = [f"{value!r} {story.values[value]:,}" for value in (story.vocabulary() or [])[:SHOWN]]
        facts.append(f"{len(story.values):,} values: {', '.join(words)}")
    return facts
