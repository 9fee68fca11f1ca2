"""What SLURM's commands print, read. Pure."""

from __future__ import annotations

import re
from itertools import product
from math import inf

from elasticflow_slurm.client import (
    OVER,
    SIGNS,
    UNUSABLE_SIGNS,
    USABLE,
    Partition,
    Reservation,
    SlurmBusy,
    SlurmJob,
    SlurmNode,
    time_s,
)

FIELD, RECORD = "\x1f", "\x1e"
"""ASCII's own separators: a name or a comment may hold all that can be typed, even a newline."""

JOB_FIELDS = (
    "JobId State Reason HetJobId HetJobOffset JobArrayId Partition NodeList SubmitTime StartTime EndTime "
    "exit_code PriorityLong RestartCnt Name Comment"
).split()
"""For squeue -O. Free text comes last: a separator in a comment is then a part of the comment."""

PAST_FIELDS = ("JobIDRaw", "State", "ExitCode", "NodeList", "Reason")
"""For sacct."""

PARTITION_FIELDS = "PartitionName Partition Available Time Nodes StateLong Gres GresUsed".split()
"""For sinfo -O. ``Partition`` has a * behind the default partition's name."""

NODE_FIELDS = "NodeList PartitionName StateLong CPUs Gres".split()
"""For sinfo --Node -O."""


def parse_jobs(printed: str) -> list[SlurmJob]:
    """Of squeue's records. One that is none, such as the rest of a name with separators, is left out."""
    records = [record.lstrip("\n") for record in printed.split(RECORD + "\n")]
    jobs = [job for record in records if (job := _job(record)) is not None]
    if not jobs and printed.strip():
        raise SlurmBusy(f"squeue said {printed[:200]!r}: that is no list of jobs.")
    return jobs


def _job(record: str) -> SlurmJob | None:
    words = record.split(FIELD, len(JOB_FIELDS) - 1)
    if len(words) != len(JOB_FIELDS) or not words[0].isdecimal():
        return None
    told = dict(zip(JOB_FIELDS, map(_unless_null, words), strict=True))
    return SlurmJob(
        id=int(told["JobId"]),
        name=told["Name"],
        comment=told["Comment"],
        state=told["State"],
        reason="" if told["Reason"] == "None" else told["Reason"],
        partition=told["Partition"],
        node=first_node(told["NodeList"]),
        submit_at=_seconds(told["SubmitTime"]),
        start_at=_seconds(told["StartTime"]),
        end_at=_seconds(told["EndTime"]),
        exit_code=exit_code(told["exit_code"]) if told["State"] in OVER else None,
        priority=_number(told["PriorityLong"]),
        restarts=_number(told["RestartCnt"]),
        het=_number(told["HetJobOffset"]),
        leader_id=_number(told["HetJobId"]),
        task=_task(told["JobArrayId"]),
    )


def _task(told: str) -> str:
    """Of 8_1; nothing of what is no single task: 8, 5+1, 8_[2-9%2]."""
    return told if re.fullmatch(r"\d+_\d+", told) else ""


def parse_past(line: str) -> SlurmJob | None:
    """Of one of sacct's lines: "12|CANCELLED by 1000|0:15|g01|None". None: it is none."""
    words = line.split("|", len(PAST_FIELDS) - 1)
    if len(words) != len(PAST_FIELDS) or not words[0].isdecimal():
        return None
    number, state, code, nodes, reason = words
    node = "" if nodes == "None assigned" else first_node(nodes)
    return SlurmJob(
        id=int(number),
        state=state.partition(" ")[0].rstrip("+"),
        reason="" if reason == "None" else reason,
        node=node,
        exit_code=exit_code(code),
    )


def exit_code(told: str) -> int | None:
    """As a shell tells it. squeue prints what wait() gave (768) in 22.05, and code:signal (3:0) since."""
    code, colon, signal = told.partition(":")
    if not code.isdecimal():
        return None
    if not colon:
        status = int(code)
        code, signal = str(status >> 8 & 0xFF), str(status & 0x7F)
    return 128 + int(signal) if signal.isdecimal() and int(signal) else int(code)


def first_node(nodes: str) -> str:
    """Of a host list: "g01" of "g[01-03,7],h1"."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^,\-\]]*)[^\]]*\]", r"\1", found[0] if found else "")


def host_names(nodes: str) -> list[str]:
    """All of a host list: g01, g02, g03 and h1 of "g[01-03],h1"."""
    found = []
    for each in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        parts = re.split(r"\[([^\]]*)\]", each)  # by turns what is fixed, and numbers
        choices = [_numbers(part) if place % 2 else [part] for place, part in enumerate(parts)]
        found += ["".join(chosen) for chosen in product(*choices)]
    return found


def _numbers(ranges: str) -> list[str]:
    """01, 02, 03 and 7 of "01-03,7"."""
    found = []
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        if first.isdecimal() and last.isdecimal():
            found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
        else:
            found.append(each)
    return found


def parse_reservations(printed: str) -> list[Reservation]:
    """Of scontrol's lines, one for each; those that keep no nodes are left out."""
    found = []
    for line in printed.splitlines():
        told: dict[str, str] = {}
        for name, word in re.findall(r"(\w+)=(\S*)", line):
            told.setdefault(name, _unless_null(word))  # a comment, which comes last, may hold anything
        if "ReservationName" not in told:
            continue  # "No reservations in the system"
        start_at, end_at = _seconds(told.get("StartTime", "")), _seconds(told.get("EndTime", ""))
        if start_at is None:
            raise SlurmBusy(f"scontrol said {line!r}: that is no reservation.")
        nodes = tuple(host_names(told.get("Nodes", "")))
        if nodes:
            cpus = re.search(r"(?:^|,)cpu=(\d+)", told.get("TRES", ""))
            found.append(
                Reservation(
                    name=told["ReservationName"],
                    start_at=start_at,
                    end_at=inf if end_at is None else end_at,
                    nodes=nodes,
                    cpus=int(cpus[1]) if cpus else None,
                    flags=frozenset(told.get("Flags", "").split(",")) - {""},
                )
            )
    return found


def start_told(said: str) -> float:
    """Seconds since 1970, of what sbatch --test-only says: "Job 5 to start at 1700000000 using ..."."""
    found = re.search(r"to start at (\S+)", said)
    seconds = _seconds(found[1]) if found else None
    if seconds is None:
        raise SlurmBusy(f"`sbatch --test-only` said {said.strip()!r}, and no time. Ask again later.")
    return seconds


def parse_partitions(printed: str) -> list[Partition]:
    """Of sinfo's lines, each for some nodes of a partition that are alike."""
    found: dict[str, Partition] = {}
    for line in printed.splitlines():
        words = line.split(FIELD)
        if len(words) != len(PARTITION_FIELDS) + 1:
            raise SlurmBusy(f"sinfo said {line!r}: that is no partition.")
        told = dict(zip(PARTITION_FIELDS, map(_unless_null, words), strict=False))
        name, nodes = told["PartitionName"], _number(told["Nodes"]) or 0
        before = found.get(name) or Partition(name=name)
        total = num_gpus(told["Gres"])
        idle = max(0, total - num_gpus(told["GresUsed"])) if _is_usable(told["StateLong"]) else 0
        found[name] = Partition(
            name=name,
            is_default=told["Partition"] == f"{name}*",
            is_up=told["Available"] == "up",
            nodes=before.nodes + nodes,
            gpus_total=before.gpus_total + nodes * total,
            gpus_idle=before.gpus_idle + nodes * idle,
            time_limit_s=time_s(told["Time"]),
        )
    return list(found.values())


def parse_nodes(printed: str) -> list[SlurmNode]:
    """Of sinfo's lines, one for each node in each partition."""
    found = []
    for line in printed.splitlines():
        words = line.split(FIELD)
        if len(words) != len(NODE_FIELDS) + 1:
            raise SlurmBusy(f"sinfo said {line!r}: that is no node.")
        name, partition, state, cpus, gres = map(_unless_null, words[:-1])
        gpus = tuple(gpus_by_type(gres))
        found.append(
            SlurmNode(name=name, partition=partition, state=state, cpus=_number(cpus) or 0, gpus=gpus)
        )
    return found


def num_gpus(gres: str) -> int:
    """Of one node: 4 of "gpu:a100:3(S:0-1),gpu:1(IDX:0),shard:8"."""
    return sum(count for _, count in gpus_by_type(gres))


def gpus_by_type(gres: str) -> list[tuple[str, int]]:
    """Of one node: ("a100", 3) and ("", 1) of "gpu:a100:3(S:0-1),gpu:1(IDX:0),shard:8"."""
    items = [item.split(":") for item in re.sub(r"\([^)]*\)", "", gres).split(",")]
    gpus = [item for item in items if item[0] == "gpu"]
    return [(_type_of(item), int(item[-1]) if item[-1].isdecimal() else 1) for item in gpus]


def _type_of(item: list[str]) -> str:
    """Of one of gres's items, which has a type, or a number, or both, or neither."""
    return item[1] if len(item) > 1 and not item[1].isdecimal() else ""


def _is_usable(state: str) -> bool:
    word = state.lower().rstrip(SIGNS)
    return word in USABLE and not any(sign in state for sign in UNUSABLE_SIGNS)


def _unless_null(word: str) -> str:
    # What C prints for no string at all: a job without a comment, a node without gres.
    return "" if word == "(null)" else word


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


def _seconds(word: str) -> float | None:
    # N/A, NONE, Unknown: not known.
    return float(word) if word.isdecimal() else None
