"""Whether a worker that joins computes what the others do: pure."""

from __future__ import annotations

from collections.abc import Mapping

from elasticflow.process.fingerprint import BY_PROGRAM, OURS, PROBE, RECORDS, differences
from elasticflow.storage.file_ids import STAY, first_change
from elasticflow.wire.messages import Spec


def objection(first: Spec, other: Spec) -> str:
    """What speaks against a run in which two workers found these, to follow a name; empty if nothing does."""
    if change := first_change(first.files, other.files):
        return f"finds other data than the run began with: {change}. {STAY}"
    if differs := _difference(first, other):
        return (
            f"finds another program than the first worker: {differs}. Is model() or data() random beyond the "
            "seed? Or has what data() reads changed since?"
        )
    return ""


def unlikeness(
    name: str, found: Mapping[str, str], first: Mapping[str, str], made_with: Mapping[str, str]
) -> tuple[str, str]:
    """How a worker would compute other bits than those before it; and what else is other. "": nothing.

    first: the fingerprint of the first worker, empty if this is it: then it is compared with ``made_with``,
    that of the checkpoint which the run goes on from. Another ElasticFlow may do so: it keeps the bits.
    """
    parts = (found, first, made_with)
    aside = dict.fromkeys(BY_PROGRAM, "")  # of these the words are others, see below
    found, first, made_with = ({**each, **aside} if each else {} for each in parts)
    if first:
        unlike = "; ".join(differences(first, found))
        return f"{name} would compute other bits than the first worker ({unlike})" if unlike else "", ""
    if not made_with:
        return "", ""
    if unlike := "; ".join(differences({**made_with, OURS: ""}, {**found, OURS: ""})):
        return f"{name} would compute other bits than those who made the checkpoint ({unlike})", ""
    before, now = made_with.get(OURS, "an older one"), found.get(OURS, "")
    return "", "" if before == now else f"the checkpoint was made by another ElasticFlow: {before}, now {now}"


def miscomputed(name: str, found: Mapping[str, str], first: Mapping[str, str]) -> str:
    """That a worker gets other bits than the first, or has other records, though all else that is known of
    both is the same; or ""."""
    right, other = first.get(PROBE, ""), found.get(PROBE, "")
    if right and other and right != other:
        return (
            f"{name} would compute other bits than the first worker: of the first slice it gets {other}, not "
            f"{right}, with the same libraries, processor and data. Either forward() is random beyond the "
            "seed, or hardware is faulty"
        )
    others = _other_records(found, first)
    return f"{name} would train on other records than the first worker: {others}" if others else ""


def changed_since(name: str, found: Mapping[str, str], made_with: Mapping[str, str]) -> str:
    """That the first worker gets other bits than those who made the checkpoint did, or has other records; or
    "".

    Another ElasticFlow may take its hash of other things.
    """
    before, now = made_with.get(PROBE, ""), found.get(PROBE, "")
    same_code = made_with.get(OURS) and made_with.get(OURS) == found.get(OURS)
    if same_code and before and now and before != now:
        return (
            f"{name} would compute other bits than those who made the checkpoint: of the first slice it gets "
            f"{now}, not {before}, by the same program, with the same libraries and processor. Either its "
            "data have changed, or data() or model() follows from more than the seed (a generator of its own "
            "without one, the environment, a clock), or hardware is faulty"
        )
    others = _other_records(found, made_with)
    return (
        f"{name} would train on other records than those who made the checkpoint: {others}" if others else ""
    )


def _other_records(found: Mapping[str, str], before: Mapping[str, str]) -> str:
    """How those in memory differ, as far as that is known; or ""."""
    was, now = before.get(RECORDS, ""), found.get(RECORDS, "")
    if not was or not now or was == now:
        return ""
    return (
        f"what data() keeps in memory has the hash {now}, not {was}. Either a file that data() reads has "
        "changed since, or data() follows from more than the seed (a generator of its own without one, the "
        "environment, a clock)"
    )


def _difference(first: Spec, other: Spec) -> str:
    """What two workers learnt differently, in words; empty if nothing."""
    for name in first.__struct_fields__:
        if name not in ("warnings", "files") and getattr(first, name) != getattr(other, name):
            return f"{name} is {_short(getattr(other, name))}, not {_short(getattr(first, name))}"
    return ""


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
