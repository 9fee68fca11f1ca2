from benchmarks import __main__ as benchmarks
from benchmarks import commit


def test_it_runs_small():
    figures = list(commit.run(1 << 20))
    assert [one.unit for one in figures] == ["ms", "ms", "ms", "MB/s", "s"]
    assert all(one.reference > 0 and one.command == commit.COMMAND for one in figures)
    assert "commit" in benchmarks.NAMES
