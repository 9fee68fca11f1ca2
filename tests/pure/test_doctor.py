"""What doctor makes of what it has seen, and that no check holds it up."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from pathlib import Path

import pytest

from elasticflow.cli.main import main
from elasticflow.doctor.examining import examine
from elasticflow.doctor.finding import Diagnosis, Health
from elasticflow.doctor.hadoop_findings import keytab_finding, ticket_finding
from elasticflow.doctor.machine import (
    descriptors_finding,
    memory_finding,
    package_findings,
    python_finding,
    wanted_packages,
)
from elasticflow.doctor.run_folder import room_finding, run_folder
from elasticflow.run import config
from elasticflow_slurm import checks as slurm_checks
from elasticflow_slurm.config import read as read_slurm
from elasticflow_yarn import checks as yarn_checks
from elasticflow_yarn.config import read as read_yarn

OK, HURTS, BROKEN = Health.OK, Health.HURTS, Health.BROKEN
GB = 1 << 30


def by_subject(found: list[Diagnosis]) -> dict[str, Health]:
    assert all(each.cure or each.health is OK for each in found), "what hurts has a cure"
    return {each.subject: each.health for each in found}


# --- the machine -------------------------------------------------------------------------------------


def test_the_machine() -> None:
    assert python_finding((3, 9, 1), "python").health is BROKEN
    assert python_finding((3, 13, 0), "python").health is OK
    assert memory_finding({"the host": 9 * GB, "a cgroup": GB}).health is HURTS
    assert memory_finding({"the host": 9 * GB, "a cgroup": GB // 8}).health is BROKEN
    assert memory_finding({"the host": 9 * GB}).health is OK
    assert descriptors_finding(4096, 4096, 8).health is OK
    assert descriptors_finding(256, 4096, 8).cure == "ulimit -n 1024."
    assert "limits.conf" in descriptors_finding(256, 512, 8).cure
    assert descriptors_finding(64, 4096, 8).health is BROKEN
    assert room_finding("/runs", 9 * GB, 10**6).health is OK
    assert room_finding("/runs", GB, 10**6).health is HURTS
    assert room_finding("/runs", 1 << 20, 10**6).health is BROKEN
    assert room_finding("/runs", 9 * GB, 10).health is HURTS


def test_packages() -> None:
    found = list(package_findings({"numpy": "pip install n", "no_such_thing": "pip install it"}, {}))
    assert by_subject(found) == {"package no_such_thing": BROKEN, "packages": OK}
    [old, _] = package_findings({"numpy": "pip install n"}, {"numpy": (99, 0)})
    assert (old.health, old.cure) == (BROKEN, "pip install -U numpy.")


def test_what_settings_and_program_want(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text("import os, torch, beside\nef.data.Parquet('x')\n")
    (tmp_path / "beside.py").write_text("")
    chosen = config.make(None, {"program": str(tmp_path / "prog.py"), "run_dir": "hdfs:///runs/a"})
    wanted = wanted_packages(chosen)
    assert {"torch", "pyarrow", "hdfs"} <= wanted.keys() and not {"os", "beside"} & wanted.keys()
    assert wanted["torch"] == "pip install 'elasticflow-trainer[torch]'"
    assert "skein" in wanted_packages(config.make(None, {"backend": "yarn"}))


def test_a_run_folder_is_left_as_it_was(tmp_path: Path) -> None:
    chosen = config.make(None, {"run_dir": str(tmp_path / "runs" / "a")})
    found = list(run_folder(chosen))
    assert BROKEN not in by_subject(found).values()
    assert list(tmp_path.iterdir()) == []


# --- SLURM -------------------------------------------------------------------------------------------

GOOD = """Configuration data as of 2026-11-25T07:00:00
AccountingStoreFlags    = job_comment,job_env
JobRequeue              = 1
KillWait                = 30 sec
MaxArraySize            = 1001
MinJobAge               = 300 sec
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
ProctrackType           = proctrack/cgroup
PropagateResourceLimits = NONE
SchedulerParameters     = bf_interval=30
SchedulerType           = sched/backfill
SLURM_VERSION           = 25.11.0
TaskPlugin              = task/affinity,task/cgroup

Cgroup Support Configuration:
ConstrainDevices        = yes
"""
PARTITIONS = """PartitionName=gpu Default=NO GraceTime=30 PreemptMode=REQUEUE State=UP
PartitionName=cpu Default=YES GraceTime=0 PreemptMode=OFF State=UP
"""
PLACES = {"leader": {"partition": "cpu"}, "workers": [{"partition": "gpu"}]}


def of_slurm(
    *changes: tuple[str, str], partitions: str = PARTITIONS, descriptors: int = 65536
) -> dict[str, Health]:
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    settings, records = slurm_checks.parse_config(text), slurm_checks.parse_records(partitions)
    return by_subject(list(slurm_checks.findings(settings, records, read_slurm(PLACES), descriptors)))


def test_a_slurm_that_is_well() -> None:
    assert set(of_slurm().values()) == {OK}


@pytest.mark.parametrize(
    ("old", "new", "subject", "health"),
    [
        ("KillWait                = 30", "KillWait                = 2", "KillWait", HURTS),
        ("JobRequeue              = 1", "JobRequeue              = 0", "JobRequeue", HURTS),
        ("proctrack/cgroup", "proctrack/linuxproc", "ProctrackType", HURTS),
        ("task/affinity,task/cgroup", "task/none", "TaskPlugin", HURTS),
        ("ConstrainDevices        = yes", "ConstrainDevices        = no", "ConstrainDevices", HURTS),
        ("sched/backfill", "sched/builtin", "SchedulerType", BROKEN),
        ("bf_interval=30", "bf_interval=300", "SchedulerType", HURTS),
        ("MinJobAge               = 300", "MinJobAge               = 10", "MinJobAge", HURTS),
    ],
)
def test_settings_of_slurm_that_hurt(old: str, new: str, subject: str, health: Health) -> None:
    found = of_slurm((old, new))
    assert found[subject] is health
    assert {each for name, each in found.items() if name != subject} == {OK}


def test_preemption_on_slurm() -> None:
    assert of_slurm(partitions=PARTITIONS.replace("GraceTime=30", "GraceTime=0"))["partition gpu"] is HURTS
    suspended = PARTITIONS.replace("PreemptMode=REQUEUE", "PreemptMode=SUSPEND,GANG")
    assert of_slurm(partitions=suspended)["partition gpu"] is HURTS
    taken = PARTITIONS.replace("PreemptMode=OFF", "PreemptMode=CANCEL")
    assert of_slurm(partitions=taken)["partition cpu"] is HURTS
    assert of_slurm(partitions=PARTITIONS.replace("=gpu", "=other"))["partition gpu"] is BROKEN
    without = ("preempt/partition_prio", "(null)")
    assert "partition cpu" not in of_slurm(without, partitions=taken)


def test_limits_that_slurm_passes_on() -> None:
    all_of_them = ("PropagateResourceLimits = NONE", "PropagateResourceLimits = ALL")
    assert of_slurm(all_of_them, descriptors=1024)["PropagateResourceLimits"] is HURTS
    assert of_slurm(all_of_them)["PropagateResourceLimits"] is OK
    assert of_slurm(descriptors=1024)["PropagateResourceLimits"] is OK


# --- YARN --------------------------------------------------------------------------------------------

WELL = {
    "yarn.log-aggregation-enable": "true",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.resourcemanager.am.max-attempts": "6",
    "yarn.resourcemanager.recovery.enabled": "true",
    "yarn.nodemanager.recovery.enabled": "true",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.resource-types": "yarn.io/gpu",
    "yarn.scheduler.capacity.resource-calculator": "org.apache.hadoop.DominantResourceCalculator",
    "yarn.resourcemanager.scheduler.monitor.enable": "true",
}


def of_yarn(**gpus: int) -> dict[str, Health]:
    return by_subject(list(yarn_checks.findings(WELL, read_yarn(dict(gpus)))))


def test_a_yarn_that_is_well() -> None:
    assert set(of_yarn(gpus=1).values()) == {OK}


@pytest.mark.parametrize(
    ("name", "value", "subject", "health"),
    [
        ("yarn.log-aggregation-enable", "false", "log aggregation", HURTS),
        ("yarn.nodemanager.vmem-check-enabled", "true", "container kill", HURTS),
        ("yarn.resourcemanager.am.max-attempts", "2", "attempts", HURTS),
        ("yarn.nodemanager.recovery.enabled", "false", "nodemanager recovery", HURTS),
        ("yarn.scheduler.minimum-allocation-mb", "1024", "least container", HURTS),
        ("yarn.resource-types", "", "gpus", BROKEN),
        ("yarn.scheduler.capacity.resource-calculator", "a.DefaultResourceCalculator", "gpus", HURTS),
        ("yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill", "100", "preemption", HURTS),
    ],
)
def test_settings_of_yarn_that_hurt(name: str, value: str, subject: str, health: Health) -> None:
    found = by_subject(list(yarn_checks.findings({**WELL, name: value}, read_yarn({"gpus": 1}))))
    assert found[subject] is health
    assert {each for other, each in found.items() if other != subject} == {OK}


def test_both_ways_in_which_yarn_tells_its_settings() -> None:
    as_json = b'{"properties": [{"key": "a.b", "value": "1", "isFinal": false, "resource": "x.xml"}]}'
    as_xml = b"<configuration><property><name>a.b</name><value>1</value></property></configuration>"
    assert yarn_checks.parse_conf(as_json) == yarn_checks.parse_conf(as_xml) == {"a.b": "1"}


# --- Kerberos ----------------------------------------------------------------------------------------

TICKET = """Ticket cache: FILE:/tmp/krb5cc_1000
Default principal: ann@EXAMPLE.ORG

Valid starting     Expires            Service principal
11/25/26 07:00:00  11/25/26 17:00:00  krbtgt/EXAMPLE.ORG@EXAMPLE.ORG
\trenew until 12/02/26 07:00:00
"""


def test_a_keytab(tmp_path: Path) -> None:
    keytab = tmp_path / "me.keytab"
    assert keytab_finding(keytab).health is BROKEN
    keytab.write_bytes(b"")
    keytab.chmod(0o640)
    assert keytab_finding(keytab).health is HURTS
    keytab.chmod(0o600)
    assert keytab_finding(keytab).health is OK


def test_tickets() -> None:
    now = datetime.datetime(2026, 11, 25, 8)
    assert ticket_finding(TICKET, now, 3600, secure=True).health is OK
    short = ticket_finding(TICKET, now, 10 * 3600, secure=True)
    assert short.health is HURTS and "in 9.0 h, can be renewed until 2026-12-02 07:00" in short.found
    assert ticket_finding(TICKET, now, None, secure=True).health is HURTS
    later = datetime.datetime(2026, 11, 25, 18)
    assert ticket_finding(TICKET, later, 60, secure=True).health is BROKEN
    assert ticket_finding("klist: No credentials cache found", now, 60, secure=True).health is BROKEN
    assert ticket_finding("", now, 60, secure=False).health is HURTS


# --- the command -------------------------------------------------------------------------------------

HANGING = """
import sys, time, signal
print('{"subject": "first", "health": "ok", "found": "well"}', flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1] == "hangs":
    time.sleep(1000)
if sys.argv[1] == "crashes":
    raise SystemExit(3)
"""


def test_a_check_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging_check.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    since_s = time.monotonic()
    found = examine(config.make(None, {}), ["hangs", "crashes", "ends"], 2.0, "hanging_check")
    assert time.monotonic() - since_s < 60, "not 1000"
    assert [(each.subject, each.health) for each in found] == [
        ("first", OK), ("hangs", BROKEN), ("first", OK), ("crashes", BROKEN), ("first", OK),
    ]  # fmt: skip
    assert "no answer within 2 s" in found[1].found and "exit code 3" in found[3].found


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"python", "packages", "disk", "run folder"} <= {each["subject"] for each in found}
    assert code == any(each["health"] == "broken" for each in found)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "conf.yaml").write_text("no_such_setting: 1\n")
    assert main(["doctor", "conf.yaml"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("broken     settings: ") and "-> Correct the file, or name another." in shown
