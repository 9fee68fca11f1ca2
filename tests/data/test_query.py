"""Records by SQL: computed once, the same wherever that is done, and nothing else is read."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

duckdb = pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from elasticflow import data  # noqa: E402
from elasticflow.data import query  # noqa: E402
from elasticflow.errors import DataError  # noqa: E402
from elasticflow.run.work import files_told  # noqa: E402

SUMS = (
    "SELECT site, avg(age) AS age, sum(1 / (n + 1)) AS parts "
    "FROM clicks JOIN users USING (user) GROUP BY site"
)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, str]:
    rng = np.random.default_rng(7)
    for day in ("2026-11-24", "2026-11-25"):
        (tmp_path / "clicks" / f"date={day}").mkdir(parents=True)
        columns = {"user": rng.integers(0, 50, 5000), "site": rng.integers(0, 9, 5000), "n": np.arange(5000)}
        pq.write_table(pa.table(columns), tmp_path / "clicks" / f"date={day}" / "part.parquet")
    users = "".join(f"{user},{20 + user % 37}\n" for user in range(50))
    (tmp_path / "users.csv").write_text(f"user,age\n{users}")
    return {"clicks": f"{tmp_path}/clicks", "users": f"{tmp_path}/users.csv"}


def made(sql: str, tables: dict[str, str], folder: Path) -> data.Query:
    return data.Query(sql, tables, folder=folder)


def content(source: data.Query) -> dict[str, bytes]:
    return {name: column.tobytes() for name, column in source.rows(np.arange(source.num_rows)).items()}


def test_joined_counted_and_bound(tables: dict[str, str], tmp_path: Path) -> None:
    sql = "SELECT user, count(*) AS n, any_value(CASE WHEN age < 40 THEN 'young' END) AS kind FROM clicks "
    sql += "JOIN users USING (user) WHERE date = '2026-11-25' GROUP BY user ORDER BY user"
    source = data.Query(
        sql,
        tables,
        folder=tmp_path / "q",
        vocabularies={"kind": ["old", "young"]},
        x=["user", "n"],
        kind="kind",
    )
    assert source.num_rows == 50
    rows = source.rows(np.arange(50))
    assert rows["x"][:, 0].tolist() == list(range(50)) and rows["x"][:, 1].sum() == 5000
    assert rows["kind"].tolist() == [2 if 20 + user % 37 < 40 else 0 for user in range(50)]


def test_computed_anew_it_is_the_same(tables: dict[str, str], tmp_path: Path) -> None:
    """Of sums of floats, in an order that nobody has asked for."""
    one, other = (made(SUMS, tables, tmp_path / name) for name in ("one", "other"))
    assert content(one) == content(other)
    (first,), (second,) = one.files, other.files
    assert Path(first.name).name == Path(second.name).name and first.sample == second.sample


def test_another_node_that_sees_the_same_files_has_the_same_result(
    tables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = made(SUMS, tables, tmp_path / "here")
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    (tmp_path / "users.copy").write_bytes(Path(tables["users"]).read_bytes())
    shutil.copystat(tables["users"], tmp_path / "users.copy")
    os.replace(tmp_path / "users.copy", tables["users"])  # another inode
    there = made(SUMS, tables, tmp_path / "there")
    assert Path(here.files[0].name).name == Path(there.files[0].name).name
    assert content(here) == content(there)


def test_tables_that_are_touched_or_moved_are_the_same_for_a_resumed_run(
    tables: dict[str, str], tmp_path: Path
) -> None:
    before = made(SUMS, tables, tmp_path / "q")
    os.utime(tables["users"], ns=(1, 1))
    shutil.copytree(tables["clicks"], tmp_path / "moved")
    moved = {**tables, "clicks": f"{tmp_path}/moved"}
    again = made(SUMS, moved, tmp_path / "q")
    assert files_told(again.files) == files_told(before.files) and content(again) == content(before)
    with open(tables["users"], "a") as file:
        file.write("50,99\n")
    assert files_told(made(SUMS, moved, tmp_path / "q").files) != files_told(before.files)
    assert files_told(made(SUMS + " ", tables, tmp_path / "q").files) != files_told(before.files)


def test_computed_once_by_whoever_comes_first(
    tables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, compute = [], query._compute

    def counted(*given: object) -> None:
        computed.append(given)
        compute(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(query, "_compute", counted)
    sources: list[data.Query] = []
    threads = [
        threading.Thread(target=lambda: sources.append(made(SUMS, tables, tmp_path / "q"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sources) == 4 and len(computed) == 1
    made(SUMS, tables, tmp_path / "q")
    assert len(computed) == 1
    os.utime(tables["users"], ns=(1, 1))
    with open(tables["users"], "a") as file:
        file.write("50,99\n")
    made(SUMS, tables, tmp_path / "q")
    made(SUMS + " ", tables, tmp_path / "q")
    assert len(computed) == 3, "of other files, and of another query, there is another result"
    assert len(list((tmp_path / "q").glob("*.parquet"))) == 3


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT random() AS r FROM users", "random gives something else each time"),
        ("WITH w AS (SELECT uuid() AS u) SELECT * FROM w", "uuid gives"),
        ("SELECT * FROM users WHERE now() > TIMESTAMP '2026-01-01'", "now gives"),
        ("SELECT CURRENT_DATE AS d FROM users", "current_date gives"),
        ("SELECT age(TIMESTAMP '2026-01-01')", "age gives"),
        ("SELECT * FROM users USING SAMPLE 10", "a sample gives"),
        ("SELECT * FROM read_text('/etc/passwd')", "Cannot access file"),
        ("SELECT * FROM '/etc/passwd'", "does not exist"),
        ("SELECT * FROM nobody", "nobody does not exist"),
        ("COPY users TO 'out.csv'", "syntax error|is no SELECT"),
        ("DROP VIEW users", "is no SELECT"),
        ("SELECT 1 AS a; SELECT 2 AS a", "wants one SELECT, and has 2"),
        ("SELEC 1", "syntax error"),
        ("SELECT age FROM users WHERE age < 0", "leaves no record"),
        ("SELECT INTERVAL 1 MONTH AS i", "Cast such columns"),
    ],
)
def test_what_is_refused(tables: dict[str, str], tmp_path: Path, sql: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        made(sql, tables, tmp_path / "q")
    assert not list((tmp_path / "q").glob("*.parquet")) and not list((tmp_path / "q").glob(".*"))


def test_a_column_may_have_the_name_of_a_clock(tables: dict[str, str], tmp_path: Path) -> None:
    sql = "SELECT age, date_trunc('year', DATE '2026-11-26') AS today FROM users"
    assert made(sql, tables, tmp_path / "q").num_rows == 50


def test_tables_that_cannot_be_read(tables: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Query, table 'clicks'.*nowhere"):
        made(SUMS, tables | {"clicks": "nowhere"}, tmp_path / "q")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match=r"torn\.parquet"):
        made(SUMS, tables | {"clicks": f"{tmp_path}/torn.parquet"}, tmp_path / "q")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Name another folder="):
        made(SUMS, tables, tmp_path / "file")


def test_a_large_one_goes_by_the_disk(tmp_path: Path) -> None:
    numbers = np.random.default_rng(7).permutation(2_000_000)
    pq.write_table(pa.table({"n": numbers}), tmp_path / "n.parquet")
    sql = "SELECT n, md5(n::VARCHAR) AS text FROM t ORDER BY text"
    source = data.Query(
        sql, {"t": tmp_path / "n.parquet"}, ["n"], folder=tmp_path / "q", memory_bytes=64 << 20
    )  # fmt: skip
    assert source.num_rows == 2_000_000
    first = min(range(2_000_000), key=lambda n: hashlib.md5(str(n).encode()).digest())
    assert source.rows(np.arange(1))["n"].tolist() == [first]
    assert len(list((tmp_path / "q").iterdir())) == 2  # what was written meanwhile is gone


def test_who_is_killed_while_it_computes_leaves_nothing_for_long(tmp_path: Path) -> None:
    """Nor does DuckDB, which had begun to go by the disk."""
    numbers = np.random.default_rng(7).permutation(1_000_000)
    pq.write_table(pa.table({"n": numbers}), tmp_path / "n.parquet")
    folder = tmp_path / "q"
    words = f"""
from elasticflow import data
sql = "SELECT n, md5(n::VARCHAR) AS text FROM t ORDER BY text"
tables = {{"t": {str(tmp_path / "n.parquet")!r}}}
data.Query(sql, tables, ["n"], folder={str(folder)!r}, memory_bytes=64 << 20)
"""
    with subprocess.Popen([sys.executable, "-c", words]) as process:
        until_s = time.monotonic() + 60
        while not list(folder.glob(".*/*")):
            assert process.poll() is None and time.monotonic() < until_s
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL and not list(folder.glob("*.parquet"))
    assert list(folder.glob(".*/*")), "killed too late"
    subprocess.run([sys.executable, "-c", words], check=True)
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".parquet"]
