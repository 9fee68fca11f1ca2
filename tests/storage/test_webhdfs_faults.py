"""Answers that are hard to get from a real HDFS, from a server that gives them as it is told."""

import errno
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from elasticflow.process.retry import is_curable
from elasticflow.storage.webhdfs import WebHdfs

STATUS = {
    "length": 10, "type": "FILE", "modificationTime": 1500, "permission": "644", "owner": "alice",
    "pathSuffix": "", "fileId": 7,
}  # fmt: skip


class Fake:
    """NameNode and DataNode in one.

    answers: by what is asked for, those that come next; the last one stays. An answer is a code and a
    dict, or bytes, or how to write them into the handler.
    """

    def __init__(self):
        self.asked, self.answers = [], {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def named(self, name):
        return [params for asked, params in self.asked if asked == name]

    def location(self, op):
        return 200, {"Location": f"{self.url}/data/x?op={op}&user.name=alice"}

    def answer(self, name):
        answers = self.answers[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def _handler(fake):
        class Handler(BaseHTTPRequestHandler):
            def handle_any(self):
                url = urlsplit(self.path)
                params = {key: values[0] for key, values in parse_qs(url.query).items()}
                at = "data" if url.path.startswith("/data/") else "name"
                name = f"{at} {params.pop('op')}"
                fake.asked.append((name, params | {"path": unquote(url.path)}))
                if self.headers.get("Transfer-Encoding") == "chunked":
                    while int(self.rfile.readline(), 16):
                        self.rfile.readline()
                        break
                answer = fake.answer(name)
                self.close_connection = True
                if callable(answer):
                    return answer(self)
                code, body = answer
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        return Handler


def remote(name, text="", code=403):
    return code, {"RemoteException": {"exception": name, "javaClassName": f"x.{name}", "message": text}}


def hang_up(handler):
    handler.connection.close()


def short(handler):
    """Says ten bytes, gives four."""
    handler.send_response(200)
    handler.send_header("Content-Length", "10")
    handler.end_headers()
    handler.wfile.write(b"0123")


STANDBY = remote("StandbyException", "Operation category READ is not supported in state standby")
SAFE = remote("SafeModeException", "Cannot create file/a. Name node is in safe mode.")
ABSENT = remote("FileNotFoundException", code=404)
GONE = remote("FileNotFoundException", "rename source /.a.partial is not found.", 404)
TAKEN = remote("FileAlreadyExistsException", "rename destination /a already exists")
FOUND = (200, {"FileStatus": STATUS})


@pytest.fixture
def fake():
    fake = Fake()
    yield fake
    fake.close()


@pytest.fixture
def other():
    fake = Fake()
    yield fake
    fake.close()


def client_of(*fakes, patience_s=10.0):
    return WebHdfs([fake.url for fake in fakes], "alice", patience_s=patience_s, connect_s=5, answer_s=5)


def test_a_standby_namenode_is_left_for_the_active_one(fake, other):
    fake.answers, other.answers = {"name GETFILESTATUS": [STANDBY]}, {"name GETFILESTATUS": [FOUND]}
    client = client_of(fake, other, patience_s=0)
    assert client.status("/a") == ("/a", "a", 10, False, 1.5, 0o644, "alice", 7)
    assert client.status("/a").length == 10
    assert (len(fake.asked), len(other.asked)) == (1, 2)  # and it stays with who answers


def test_a_failover_is_waited_for(fake, other):
    fake.answers = {"name GETFILESTATUS": [STANDBY, hang_up, STANDBY, FOUND]}
    other.answers = {"name GETFILESTATUS": [hang_up, STANDBY]}
    assert client_of(fake, other).status("/a").length == 10


@pytest.mark.parametrize(
    "answer",
    [
        STANDBY,
        SAFE,
        hang_up,
        remote("RetriableException", "Namenode is in startup mode"),
        (503, b"busy"),
        (502, b"<html>"),
        remote("IOException", "whatever", 403),
    ],
)
def test_what_may_pass_is_tried_again_and_then_told(fake, answer):
    fake.answers = {"name GETFILESTATUS": [answer, answer, FOUND]}
    assert client_of(fake).status("/a").length == 10
    fake.answers = {"name GETFILESTATUS": [answer]}
    with pytest.raises(OSError, match=f"NameNode {fake.url}.*'/a'") as caught:
        client_of(fake, patience_s=0).status("/a")
    assert is_curable(caught.value)
    assert caught.value.errno in (errno.EAGAIN, errno.ECONNRESET)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (remote("FileNotFoundException", code=404), FileNotFoundError),
        (remote("AccessControlException", "Permission denied: user=alice"), PermissionError),
        (remote("AccessControlException", "/a (is not a directory)"), NotADirectoryError),
        (remote("InvalidToken", "token is expired"), PermissionError),
        ((401, b"<html>who are you"), PermissionError),
        (remote("DSQuotaExceededException", "full"), OSError),
    ],
)
def test_what_cannot_pass_is_told_at_once(fake, answer, kind):
    fake.answers = {"name GETFILESTATUS": [answer]}
    with pytest.raises(kind):
        client_of(fake, patience_s=1000).status("/a")
    assert len(fake.asked) == 1


def test_a_short_read_goes_on_from_where_it_stopped(fake):
    fake.answers = {
        "name OPEN": [fake.location("OPEN")],
        "data OPEN": [short, (200, b"456789")],
        "name GETFILESTATUS": [FOUND],
    }
    buffer = bytearray(10)
    assert client_of(fake).read_into("/a", 0, memoryview(buffer)) == 10
    assert buffer == b"0123456789"
    assert [(asked["offset"], asked["length"]) for asked in fake.named("name OPEN")] == [
        ("0", "10"),
        ("4", "6"),
    ]
    assert "excludedatanodes" not in fake.named("name OPEN")[0]
    assert fake.named("name OPEN")[1]["excludedatanodes"] == "127.0.0.1"
    fake.answers["data OPEN"] = [short, (200, b"456789")]
    with client_of(fake).open("/a") as file:
        assert file.read() == b"0123456789"


def test_a_whole_file_is_read_all_over_again(fake):
    fake.answers = {"name OPEN": [fake.location("OPEN")], "data OPEN": [short, (200, b"another one")]}
    assert client_of(fake).read("/a") == b"another one"  # it may have been replaced in between


def test_reads_that_stay_short_are_told(fake):
    fake.answers = {"name OPEN": [fake.location("OPEN")], "data OPEN": [short]}
    with pytest.raises(ConnectionResetError, match="ends 6 bytes early.*DataNode"):
        client_of(fake, patience_s=0).read_into("/a", 0, memoryview(bytearray(10)))


def test_where_all_datanodes_are_excluded_they_are_asked_again(fake):
    none = remote("IOException", "Failed to find datanode, suggest to check cluster health.")
    fake.answers = {
        "name OPEN": [fake.location("OPEN"), none, fake.location("OPEN")],
        "data OPEN": [hang_up, (200, b"0123456789")],
    }
    assert client_of(fake).read_into("/a", 0, memoryview(bytearray(10))) == 10
    assert ["excludedatanodes" in asked for asked in fake.named("name OPEN")] == [False, True, False]


def test_a_namenode_that_only_redirects(fake):
    def redirect(handler):
        handler.send_response(307)
        handler.send_header("Location", fake.location("OPEN")[1]["Location"])
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    fake.answers = {"name OPEN": [redirect], "data OPEN": [(200, b"0123456789")]}
    buffer = bytearray(10)
    assert client_of(fake).read_into("/a", 0, memoryview(buffer)) == 10
    assert buffer == b"0123456789"


def writing(fake, renames, targets=(ABSENT,), length=10):
    """Answers for one file that is written: ``renames``, and what the target's status is then."""
    there = (200, {"FileStatus": STATUS | {"length": length}})

    def status(handler):
        is_temporary = handler.path.split("?")[0].endswith(".partial")
        code, body = there if is_temporary else targets[0]
        data = json.dumps(body).encode()
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    fake.answers = {
        "name CREATE": [fake.location("CREATE")],
        "data CREATE": [(201, b"")],
        "name GETFILESTATUS": [status],
        "name RENAME": list(renames),
        "name DELETE": [(200, {"boolean": True})],
        "name CHECKACCESS": [(200, b"")],
    }


@pytest.mark.parametrize("again", [GONE, TAKEN])
def test_a_rename_whose_answer_was_lost_was_done(fake, again):
    writing(fake, [hang_up, again], [FOUND])  # the id is the same
    client_of(fake).write("/a", b"0123456789")
    assert [asked["renameoptions"] for asked in fake.named("name RENAME")] == ["NONE", "NONE"]
    assert not fake.named("name DELETE")


def test_of_several_who_make_a_folder_one_succeeds(fake):
    anothers = 200, {"FileStatus": {**STATUS, "type": "DIRECTORY", "fileId": 8}}
    fake.answers = {
        "name MKDIRS": [(200, {"boolean": True})],
        "name GETFILESTATUS": [FOUND, anothers],
        "name RENAME": [TAKEN],
        "name DELETE": [(200, {"boolean": True})],
    }
    with pytest.raises(FileExistsError):
        client_of(fake).mkdir("/runs/digits-1")
    (made,), (removed,) = fake.named("name MKDIRS"), fake.named("name DELETE")
    assert made["path"] == removed["path"] != "/webhdfs/v1/runs/digits-1"
    assert fake.named("name RENAME")[0]["renameoptions"] == "NONE"


def test_a_rename_onto_anothers_file_is_refused(fake):
    writing(fake, [hang_up, TAKEN], [(200, {"FileStatus": STATUS | {"fileId": 8}})])
    with pytest.raises(FileExistsError):
        client_of(fake).write("/a", b"0123456789")
    assert fake.named("name DELETE")[0]["path"].endswith(".partial")


def test_a_replacement_that_was_replaced_before_its_answer_came_was_done(fake):
    writing(fake, [hang_up, GONE], [(200, {"FileStatus": STATUS | {"fileId": 8}})])
    client_of(fake).write("/a", b"0123456789", overwrite=True)
    assert fake.named("name RENAME")[0]["renameoptions"] == "OVERWRITE"


def test_a_file_that_arrived_in_part_gets_no_name(fake):
    writing(fake, [(200, b"")], length=4)
    with pytest.raises(OSError, match="4 of 10 bytes have arrived") as caught:
        client_of(fake).write("/a", b"0123456789")
    assert caught.value.errno == errno.EIO
    assert not fake.named("name RENAME")
    assert fake.named("name DELETE")


def test_a_transfer_that_failed_is_done_again_under_another_name(fake):
    writing(fake, [(200, b"")])
    fake.answers["data CREATE"] = [hang_up, remote("EOFException", "End of File Exception", 500), (201, b"")]
    client_of(fake).write("/a", b"0123456789")
    names = [asked["path"] for asked in fake.named("name CREATE")]
    assert len(set(names)) == 3
    assert all(name.endswith(".partial") for name in names)
    assert [asked["path"] for asked in fake.named("name DELETE")] == names[:2]


def test_what_could_not_be_removed_is_removed_later(fake):
    writing(fake, [(200, b"")])
    fake.answers["data CREATE"] = [hang_up, (201, b"")]
    fake.answers["name DELETE"] = [SAFE, (200, {"boolean": True})]
    client = client_of(fake, patience_s=0)
    with pytest.raises(OSError), client.create("/a") as file:
        file.write(b"0123456789")
    with client.create("/b") as file:
        file.write(b"0123456789")
    removed = [asked["path"] for asked in fake.named("name DELETE")]
    assert len(removed) == 2 and len(set(removed)) == 1


def test_a_forked_process_has_connections_of_its_own(fake):
    fake.answers = {"name GETFILESTATUS": [FOUND]}
    client = client_of(fake)
    client.status("/a")
    mine = client._connections()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if client._connections() is not mine and client.status("/a").length == 10 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.status("/a").length == 10
    assert client._connections() is mine
