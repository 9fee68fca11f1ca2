"""A run's model over HTTP: what `predict` gives, whoever dies, and whichever checkpoint is the newest."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client.parser import text_string_to_metric_families

from tests.clusters.processes import free_ports

from .conftest import PATIENCE_S, PROGRAMS, Run
from .processes import CLI, end_all, new_mark, wait_until_gone
from .programs.gates import Gate
from .test_applied import numbers

ARROW = "application/vnd.apache.arrow.stream"


class ModelServer:
    """``elasticflow serve-model``, and what it is asked."""

    def __init__(self, run: Path, *options: object, folder: Path | None = None, **environment: str) -> None:
        self.environment = {**new_mark(), **environment}
        self.port = free_ports(1)[0]
        command = [*CLI, "serve-model", str(run), "--port", str(self.port), *map(str, options)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=self.environment
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.headers: dict[str, str] = {}
        self.url, self.tls = f"http://127.0.0.1:{self.port}", None

    def _read(self) -> None:
        assert self.process.stdout
        self.said.extend(self.process.stdout)

    def __enter__(self) -> ModelServer:
        self.until(lambda: any("serving step" in line for line in self.said))
        return self

    def __exit__(self, *exception: object) -> None:
        end_all(self.environment)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout
        self.process.stdout.close()

    def until(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def get(self, path: str) -> Any:
        return json.loads(self.ask(path, None)[1])

    def ask(
        self, path: str, body: object, kind: str = "application/json", **headers: str
    ) -> tuple[int, bytes, Mapping[str, str]]:
        given = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        told = {"Content-Type": kind, **self.headers, **headers}
        request = urllib.request.Request(self.url + path, given, told)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=self.tls) as answer:
                return answer.status, answer.read(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), dict(error.headers)

    def predicted(self, body: object) -> dict[str, Any]:
        code, answer, _ = self.ask("/predict", body)
        assert code == 200, (answer, self.said)
        return json.loads(answer)["predictions"]

    def refused(self, code: int, words: str, body: object, **how: str) -> None:
        found, answer, _ = self.ask("/predict", body, **how)
        assert found == code and words in json.loads(answer)["error"], answer

    def figures(self) -> dict[str, float]:
        text = self.ask("/metrics", None)[1].decode()
        families = text_string_to_metric_families(text)
        return {
            " ".join([each.name, *each.labels.values()]): each.value
            for family in families
            for each in family.samples
        }

    def pids(self) -> list[int]:
        """Of the processes that have the model."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parents, text = (folder / "stat").read_text().split(), (folder / "cmdline").read_bytes()
                forked = b"serving.answering" in text and int(parents[3]) != self.process.pid
            except (OSError, IndexError):
                continue
            if forked and self._is_ours(int(parents[3])):
                found.append(int(folder.name))
        return found

    def _is_ours(self, pid: int) -> bool:
        return int(Path(f"/proc/{pid}/stat").read_text().split()[3]) == self.process.pid


@pytest.fixture(scope="module")
def right(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray[Any, Any]]:
    """Of the records of ``numbers``, by ``elasticflow predict``."""
    folder = tmp_path_factory.mktemp("right")
    np.savez(folder / "new.npz", **{name: numbers()[name] for name in ("x", "word")})
    command = [*CLI, "predict", str(trained), "--data", "new.npz", "--out", "out.npz", "--workers", "1"]
    subprocess.run(command, cwd=folder, check=True, env=new_mark(), timeout=PATIENCE_S)
    return dict(np.load(folder / "out.npz"))


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[ModelServer]:
    with ModelServer(trained, "--workers", 2, RAISES="333") as found:
        yield found


def some(first: int, stop: int) -> dict[str, Any]:
    return {name: numbers()[name][first:stop].tolist() for name in ("x", "word")}


def test_answers_are_what_predict_gives(server: ModelServer, right: dict[str, Any]) -> None:
    found = server.predicted(some(0, 300))
    assert np.allclose(found["score"], right["score"][:300], rtol=1e-6)
    assert found["best"] == right["best"][:300].tolist()
    columns = some(7, 9)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert [row["best"] for row in server.predicted(rows)] == right["best"][7:9].tolist()
    about = server.get("/model")
    assert about["step"] == 20 and [each["name"] for each in about["columns"]] == ["x", "word"]
    assert server.get("/health") == {"processes": 2, "step": 20, "waiting": 0}


def test_arrow(server: ModelServer, right: dict[str, Any]) -> None:
    x = pa.FixedSizeListArray.from_arrays(pa.array(numbers()["x"][:50].reshape(-1)), 4)
    batch = pa.record_batch({"x": x, "word": pa.array(numbers()["word"][:50])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    code, answer, headers = server.ask("/predict", bytes(sink.getvalue()), ARROW)
    assert code == 200 and headers["x-model-step"] == "20" and headers["content-type"] == ARROW
    table = pa.ipc.open_stream(answer).read_all()
    score = table["score"].combine_chunks().flatten().to_numpy().reshape(50, 2)
    assert score.dtype == np.float32 and np.allclose(score, right["score"][:50], rtol=1e-6)
    code, answer, _ = server.ask("/predict", bytes(sink.getvalue()), ARROW, Accept="application/json")
    assert json.loads(answer)["predictions"]["best"] == right["best"][:50].tolist()


def test_many_at_once_are_answered_each_with_its_own(server: ModelServer, right: dict[str, Any]) -> None:
    wrong: list[object] = []

    def ask(first: int) -> None:
        for number in range(first, first + 20):
            code, answer, _ = server.ask("/predict", some(number, number + 2))
            expected = right["best"][number : number + 2].tolist()
            if code != 200 or json.loads(answer)["predictions"]["best"] != expected:
                wrong.append((number, code, answer))
        server.refused(400, "no column 'x'", {"word": [1]})

    threads = [threading.Thread(target=ask, args=(number * 20,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    figures = server.figures()
    assert figures["elasticflow_model_requests_total 400"] >= 12
    name = "elasticflow_model_batch_requests"
    assert figures[f"{name}_bucket 1.0"] < figures[f"{name}_count"], "some were computed together"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "are no JSON"),
        ({}, "are to be columns"),
        ([], "are to be columns"),
        ([{"x": 1}, {"word": 2}], "not all have the same columns"),
        ({"x": [[1, 2, 3]], "word": [1]}, "'x' holds int64 of shape [3], and float32 of shape [4]"),
        ({"x": [[1, 2, 3, "4"]], "word": [1]}, "values of several kinds"),
        ({"x": [[1, 2, 3, 4]], "word": [1, 2]}, "columns of different lengths"),
        ({"x": [[1, 2, 3, 4]], "word": ["a"]}, "'word' holds str"),
        ({"word": [1]}, "there is no column 'x'"),
        (b"[" * 100_000, "are no JSON"),
    ],
)
def test_what_is_wrong_with_a_request_is_told(server: ModelServer, body: object, words: str) -> None:
    server.refused(400, words, body)


def test_other_refusals(server: ModelServer) -> None:
    server.refused(415, "It can be application/json", b"x", kind="text/plain")
    server.refused(400, "a stream of Arrow's", b"nothing", kind=ARROW)
    server.refused(422, "a record that I do not like", some(330, 340))
    assert server.ask("/predict", None)[0] == 405 and server.ask("/nowhere", None)[0] == 404
    assert "record 3 (of the data)" in json.loads(server.ask("/predict", some(330, 340))[1])["error"]


def test_who_asks_letter_by_letter_keeps_nobody_out(server: ModelServer) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    address = host, int(port)
    connect = socket.create_connection
    with connect(address, PATIENCE_S) as silent, connect(address, PATIENCE_S) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: some")
        for each in (silent, slow):
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b"", "it is hung up"
    assert server.get("/health")["waiting"] == 0


def test_who_goes_in_the_middle_of_a_question_is_no_error(server: ModelServer) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as gone:
        gone.sendall(b"POST /predict HTTP/1.1\r\nHost: some\r\nContent-Length: 100\r\n\r\n{")
    server.until(lambda: "elasticflow_model_requests_total 499" in server.figures())
    assert "Traceback" not in "".join(server.said)


def test_a_killed_process_costs_no_request(trained: Path, right: dict[str, Any]) -> None:
    with ModelServer(trained, "--workers", 1) as server:
        gate = Gate(server.environment, "record 5")
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(server.predicted(some(5, 7))))
        asking.start()
        os.kill(gate.next_pid(PATIENCE_S), signal.SIGKILL)
        gate.open()
        asking.join()
        assert found[0]["best"] == right["best"][5:7].tolist()
        assert server.figures()["elasticflow_model_process_deaths"] == 1


def test_a_record_that_kills_is_told_and_others_are_answered(trained: Path, right: dict[str, Any]) -> None:
    with ModelServer(trained, "--workers", 1, KILLS="5") as server:
        server.refused(500, "dies of it: it was killed by SIGKILL", some(4, 8))
        assert server.predicted(some(6, 8))["best"] == right["best"][6:8].tolist()


def test_a_process_that_hangs_is_replaced(trained: Path) -> None:
    with ModelServer(trained, "--workers", 1, "--timeout-s", 1) as server:
        (pid,) = server.pids()
        os.kill(pid, signal.SIGSTOP)
        large = {"x": numbers()["x"][:1].tolist() * 100_000, "word": [1] * 100_000}  # more than a pipe holds
        server.refused(504, "no answer within 1 s", large)
        assert server.get("/health")["processes"] in (0, 1), "who asks for it is answered"
        server.until(lambda: server.ask("/predict", some(0, 1))[0] == 200)
        assert "had not answered within 2 s" in "".join(server.said)


def test_no_more_wait_than_may(trained: Path) -> None:
    with ModelServer(trained, "--workers", 1, "--max-waiting", 2) as server:
        gate = Gate(server.environment, "record 0")
        codes: list[int] = []
        threads = [
            threading.Thread(target=lambda: codes.append(server.ask("/predict", some(0, 1))[0]))
            for _ in range(8)
        ]
        threads[0].start()
        gate.next_pid(PATIENCE_S)
        for thread in threads[1:]:
            thread.start()
        server.until(lambda: len(codes) == 5)
        gate.open()
        for thread in threads:
            thread.join()
        assert sorted(codes) == [200] * 3 + [503] * 5
        assert server.ask("/predict", b" " * (65 << 20))[0] == 413


def test_a_newer_checkpoint_takes_its_place_and_no_request_is_lost(start: Callable[..., Run]) -> None:
    options = ("--epochs", 2, "--batch-size", 64, "--workers", 1, "--checkpoint-every", 10)
    run = start("applied_torch.py", *options, shut=["step 12"])
    first = run.wait_until(lambda status: status.step == 12 and status.checkpoint_step).checkpoint_step
    with ModelServer(run.path, "--workers", 2, "--reload-s", 0.2) as server:
        steps: list[int] = []
        done = threading.Event()

        def ask() -> None:
            while not done.is_set():
                code, answer, headers = server.ask("/predict", some(0, 2))
                steps.append(int(headers["x-model-step"]) if code == 200 else -code)

        asking = threading.Thread(target=ask)
        asking.start()
        run.open("step 12")
        run.finish()
        server.until(lambda: server.get("/model")["step"] == 20)
        server.until(lambda: steps[-1:] == [20])
        server.until(lambda: server.get("/health")["processes"] == 2)
        done.set()
        asking.join()
        assert min(steps) == first, "none was refused"
        assert server.figures()["elasticflow_model_reloads_total loaded"] >= 1


def test_who_is_told_to_end_answers_first_and_leaves_nothing(trained: Path, tmp_path: Path) -> None:
    with ModelServer(trained, "--workers", 2, TMPDIR=str(tmp_path)) as server:
        gate = Gate(server.environment, "record 5")
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(server.predicted(some(5, 7))))
        asking.start()
        gate.next_pid(PATIENCE_S)
        assert [each.name for each in tmp_path.glob("elasticflow-model-*")]
        server.process.terminate()
        gate.open()
        asking.join()
        assert len(found[0]["best"]) == 2
        assert server.process.wait(PATIENCE_S) == 0
        assert not wait_until_gone(server.environment)
        assert not list(tmp_path.glob("*elasticflow-model-*"))


def test_what_a_killed_one_leaves_the_next_removes(trained: Path, tmp_path: Path) -> None:
    with ModelServer(trained, "--workers", 1, TMPDIR=str(tmp_path)) as server:
        server.process.kill()
        server.process.wait()
        assert not wait_until_gone(server.environment), "its processes end with it"
    (left,) = tmp_path.glob("elasticflow-model-*")
    with ModelServer(trained, "--workers", 1, TMPDIR=str(tmp_path)) as server:
        (now,) = tmp_path.glob("elasticflow-model-*")
        assert now != left


def certify(folder: Path) -> None:
    """A certificate of this machine, signed by itself: cert.pem and key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(secret)


def test_a_token_and_tls(trained: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123")
    token.chmod(0o600)
    certify(tmp_path)
    files = ("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    with ModelServer(trained, "--workers", 1, "--token-file", token, *files) as server:
        server.url, server.tls = (
            f"https://127.0.0.1:{server.port}",
            ssl.create_default_context(cafile=str(tmp_path / "cert.pem")),
        )
        server.refused(401, "a token is wanted", some(0, 1))
        assert server.ask("/metrics", None)[0] == 401 and server.ask("/health", None)[0] == 200
        server.headers["Authorization"] = f"Bearer {token.read_text()}"
        assert len(server.predicted(some(0, 1))["best"]) == 1
        assert token.read_text() not in "".join(server.said)


def test_a_table_of_records_by_the_rules_of_training(tmp_path: Path) -> None:
    """Vocabularies, hashing, defaults and ragged columns, as ``data()`` has them."""
    rng = np.random.default_rng(2)
    size = 96
    columns = {
        "city": [["Rome", "Oslo", None][n % 3] for n in range(size)],
        "user": [f"user {n % 7}" for n in range(size)],
        "tags": [[int(k) for k in rng.integers(1, 9, n % 4)] for n in range(size)],
        "y": rng.normal(size=size).astype(np.float32),
    }
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    (tmp_path / "program.py").write_text(
        """
import torch
import elasticflow as ef

def model():
    return {"w": torch.randn(12), "optimizer": ef.SGD(lr=0.1)}

def scores(city, user, tags, tags_lengths, params):
    w = params["w"]
    return w[city] + w[3 + user] + tags.float().sum(1) * w[11] + tags_lengths

def forward(city, user, tags, tags_lengths, y, params):
    return ((scores(city, user, tags, tags_lengths, params) - y) ** 2).mean()

def predict(city, user, tags, tags_lengths, params):
    return scores(city, user, tags, tags_lengths, params)

def data():
    return ef.data.Parquet(
        "train.parquet", vocabularies={"city": ["Rome", "Oslo"]}, hashing={"user": 7}, pad={"tags": 0}
    )
"""
    )
    train = [
        *CLI,
        "train",
        "program.py",
        "--run-dir",
        "run",
        "--epochs",
        "1",
        "--workers",
        "1",
        "--batch-size",
        "32",
    ]
    subprocess.run(train, cwd=tmp_path, check=True, env=new_mark(), timeout=PATIENCE_S, capture_output=True)
    predict = [*CLI, "predict", "run", "--data", "train.parquet", "--out", "out.npz", "--workers", "1"]
    subprocess.run(predict, cwd=tmp_path, check=True, env=new_mark(), timeout=PATIENCE_S)
    right = np.load(tmp_path / "out.npz")["prediction"]
    asked = {name: list(values)[:9] for name, values in columns.items() if name != "y"}
    with ModelServer(tmp_path / "run", "--workers", 1, folder=tmp_path) as server:
        found = server.predicted(asked)["prediction"]
        assert np.allclose(found, right[:9], rtol=1e-6)
        shape = {each["name"]: each["shape"] for each in server.get("/model")["columns"]}
        assert shape["tags"] == [-1] and shape["city"] == []


def test_what_cannot_be_served_is_told(trained: Path, tmp_path: Path) -> None:
    def refused(*options: object) -> str:
        command = [*CLI, "serve-model", *map(str, options)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=new_mark())
        assert done.returncode != 0 and "Traceback" not in done.stderr
        return done.stderr

    without = tmp_path / "without.py"
    without.write_text((PROGRAMS / "applied_torch.py").read_text().replace("def predict(", "def others("))
    (tmp_path / "gates.py").write_text((PROGRAMS / "gates.py").read_text())
    assert "defines no predict()" in refused(trained, "--port", 0, "--program", without)
    assert "no checkpoint is kept as the best one" in refused(trained, "--port", 0, "--best")
    assert "--timeout-s 0.0" in refused(trained, "--timeout-s", 0)
    assert "--reload-s -1.0" in refused(trained, "--reload-s", -1)
    assert "must be at most 65535" in refused(trained, "--port", 99999)
    assert "are no certificate" in refused(trained, "--tls-cert", without, "--tls-key", without)
    (taken,) = free_ports(1)
    with ModelServer(trained, "--workers", 1) as server:
        taken = server.port
        assert "cannot be listened on: Address already in use" in refused(trained, "--port", taken)


def test_a_machine_without_memory_is_no_fault_of_a_request(trained: Path) -> None:
    """What the kernel refuses ends a process; the request is tried in another, and then told."""
    with ModelServer(trained, "--workers", 1, LACKS="5") as server:
        server.refused(500, "dies of it: it ended: ", some(5, 6))
        server.until(lambda: server.ask("/predict", some(0, 1))[0] == 200)
        assert server.figures()["elasticflow_model_process_deaths"] == 2
