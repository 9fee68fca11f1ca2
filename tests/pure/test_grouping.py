"""Groups of parameters by patterns of names."""

from __future__ import annotations

import pytest

from elasticflow.api import SGD, Adagrad, AdamW
from elasticflow.errors import ProgramError
from elasticflow.step.layout import Entry, Layout, Rule
from elasticflow.training.grouping import Groups

NAMES = ["net.0.weight", "net.0.bias", "net.1.bias", "embed.weight", "head"]


def test_the_first_pattern_that_fits_counts_and_equal_optimizers_are_one() -> None:
    first = AdamW(lr=0.1, clip_norm=1.0)
    groups = Groups(
        first,
        {
            "net.1.*": {"lr": 0.2},
            "*.bias": {"weight_decay": 0},
            "embed*": Adagrad(),
            "head": {"weight_decay": 0.0},
        },
    )
    assert [groups.number_of(name) for name in NAMES] == [0, 2, 1, 3, 2]
    assert groups.others == (AdamW(lr=0.2), AdamW(lr=0.1, weight_decay=0), Adagrad())
    groups.check(NAMES, [], [])


def test_what_is_as_usual_is_no_group() -> None:
    groups = Groups(AdamW(), {"*.bias": {"lr": 1e-3}})
    assert not groups.others and groups.number_of("net.0.bias") == 0


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"*.bias": {"wd": 0}}, "AdamW has no 'wd' of a group's own; it has .*weight_decay"),
        ({"*.bias": {"clip_norm": 1.0}}, "has no 'clip_norm' of a group's own"),
        ({"*.bias": SGD(clip_norm=1.0)}, "clip_norm is for all gradients together"),
        ({"*.bias": {"lr": -1}}, "lr must be a number >= 0"),
        ({"*.bias": 3}, "must be a dict of settings, or an optimizer, not a int"),
        ([], "must be a dict by patterns"),
    ],
)
def test_what_cannot_be_is_refused(groups, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        Groups(AdamW(), groups)


def test_a_rate_without_relation_to_the_first_is_refused() -> None:
    with pytest.raises(ProgramError, match="no relation to that of the first, which is 0"):
        Groups(SGD(lr=0.0), {"*": {"lr": 0.1}})
    with pytest.raises(ProgramError, match="the first must be an optimizer"):
        Groups({}, {})  # type: ignore[arg-type]


def test_patterns_that_fit_nothing_or_a_table_are_refused() -> None:
    groups = Groups(AdamW(), {"net.*.bais": {"lr": 0.1}})
    with pytest.raises(ProgramError, match=r"'net.\*.bais'\) fits no parameter; there are net.0.weight, "):
        groups.check(NAMES, [], [])
    groups.check(NAMES, ["net.7.bais"], [])
    with pytest.raises(ProgramError, match="fits the table 'words'"):
        Groups(AdamW(), {"w*": {"lr": 0.1}}).check(NAMES, [], ["words"])


def test_what_other_optimizers_update_lies_apart_and_layouts_without_groups_are_as_ever() -> None:
    def entries(*parts: int) -> list[Entry]:
        return [
            Entry(name, (30,), "float32", Rule.UPDATE, part) for name, part in zip(NAMES, parts, strict=True)
        ]

    plain, grouped = Layout(entries(0, 0, 0, 0, 0)), Layout(entries(0, 1, 1, 2, 0))
    assert plain.signature == "85e9730ba7c8ac3cd86033bb98f0aa5c72afafed60a599418b14392fb60d5581", (
        "checkpoints have it"
    )
    assert [(group.part, group.size) for group in grouped.groups] == [(0, 64), (1, 64), (2, 32)]
    with pytest.raises(ValueError, match="optimizer 1"):
        Layout([Entry("mean", (3,), "float32", Rule.MEAN, 1)])
