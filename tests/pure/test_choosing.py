"""``strategy: auto``: what is chosen, why, and what becomes of it in a resume."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from elasticflow.embedding import Embedding
from elasticflow.errors import ConfigError
from elasticflow.master import actions as ac
from elasticflow.master.choosing import choose
from elasticflow.run.config import ALL_REDUCE, AUTO, PARAMETER_SERVER, Config, make
from elasticflow.run.folder import RunDir
from elasticflow.wire.messages import Spec

from .test_master_state import SPEC, Run, names, only
from .test_moving import LARGE


def chosen(spec: Spec = LARGE, available: dict[str, int] | None = None, **more: object) -> tuple[str, str]:
    config = Config(strategy=AUTO, **{"workers": "1..4", "batch_size": 64, **more})  # type: ignore[arg-type]
    return choose(config, spec, available or {})


def test_a_large_model_is_the_workers_own() -> None:
    strategy, why = chosen()
    assert strategy == ALL_REDUCE
    assert why == (
        "of 33.6 MB, the server would receive 134.2 MB a step from 4 workers; among themselves each receives "
        "25.2 MB"
    )
    assert "each of 2 servers would receive 67.1 MB a step" in chosen(servers=2)[1]


def test_a_small_one_or_one_for_a_single_worker_is_a_servers() -> None:
    strategy, why = chosen(SPEC)
    assert strategy == PARAMETER_SERVER and why.endswith("with a server a worker that dies costs no step")
    assert chosen(workers="1") == (PARAMETER_SERVER, "one worker has nobody to share its 33.6 MB with")


def test_what_does_not_fit_into_the_first_worker_is_a_servers() -> None:
    assert chosen(available={"the host": 1 << 40})[0] == ALL_REDUCE
    strategy, why = chosen(available={"the host": 1 << 40, "cgroup /small": 1 << 26})
    assert strategy == PARAMETER_SERVER and why.endswith("for all, and cgroup /small has 67.1 MB")


def test_rows_of_tables_are_a_servers_and_so_is_what_comes_asynchronously() -> None:
    table = Embedding(None, 4).spec
    strategy, why = chosen(msgspec.structs.replace(LARGE, tables=(table,)))
    assert strategy == PARAMETER_SERVER and "since the last checkpoint would be lost" in why
    assert chosen(mode="async", workers="1")[0] == PARAMETER_SERVER


def test_on_a_cluster_nobody_has_asked_for_servers() -> None:
    assert chosen(SPEC, backend="slurm") == (ALL_REDUCE, "slurm was asked for no places for servers")
    assert Config(strategy=AUTO, backend="slurm").num_servers == 0
    assert Config(strategy=AUTO, backend="slurm", mode="async", staleness=1, servers=3).num_servers == 3


@pytest.mark.parametrize("spec, carried", [(SPEC, False), (LARGE, True)])
def test_servers_are_started_once_the_program_is_known(spec: Spec, carried: bool) -> None:
    run = Run(workers="2", servers=2, strategy=AUTO)
    assert names(ac.StartAction, run.started) == ["worker-1", "worker-2"]
    actions = run.join("worker-1", spec=spec)
    (fixed,) = only(ac.FixAction, actions)
    assert fixed.config.strategy == (ALL_REDUCE if carried else PARAMETER_SERVER)
    assert fixed.config.strategy_why and run.state.config == fixed.config
    note = next(a for a in only(ac.NoteAction, actions) if a.text.startswith("strategy: "))
    assert note.text == f"strategy: {fixed.config.strategy}: {fixed.config.strategy_why}"
    assert names(ac.StartAction, actions) == ([] if carried else ["server-0", "server-1"])


def test_a_resume_keeps_what_was_chosen_unless_it_asks_anew(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("strategy: auto\nworkers: 1..4\n")
    first = make(str(file), {})
    assert first.undecided
    before = msgspec.to_builtins(first.chosen(ALL_REDUCE, "it is large"))
    kept = make(str(file), {}, before)
    assert (kept.strategy, kept.strategy_why) == (ALL_REDUCE, "it is large")
    anew = make(str(file), {"strategy": AUTO}, before)
    assert anew.undecided and not anew.strategy_why
    other = make(str(file), {"strategy": PARAMETER_SERVER}, before)
    assert (other.strategy, other.strategy_why) == (PARAMETER_SERVER, "")


def test_what_was_chosen_is_written_down(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create(Config(strategy=AUTO))
    run.write_settings(run.config().chosen(ALL_REDUCE, "it is large"))
    assert run.config().all_reduce and run.config().strategy_why == "it is large"


def test_places_and_servers_that_were_asked_for_are_of_use_to_one_of_both() -> None:
    config = Config(strategy=AUTO, places=4, servers=2)
    assert (config.chosen(ALL_REDUCE, "").num_places, config.chosen(PARAMETER_SERVER, "").num_places) == (
        4,
        2,
    )
    with pytest.raises(ConfigError, match="allowed are parameter_server, all_reduce, auto"):
        Config(strategy="best")
