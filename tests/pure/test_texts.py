"""Whatever a text is, it can be sent, kept as JSON, and read."""

from __future__ import annotations

import random

import msgspec
import pytest

from elasticflow.errors import ProtocolError
from elasticflow.process.texts import MOST_CHARS, all_sendable, as_json, harmless, sendable
from elasticflow.step.layout import Entry, Rule
from elasticflow.wire.control import CONTROL_BYTES, control_frame
from elasticflow.wire.messages import Failed, Join, Progress, Quarantine, decode_to_master, encode

TORN = "a file \udcff and \ud800, ü, 😀"


def test_lone_surrogates_are_escaped_and_nothing_else_is() -> None:
    assert sendable(TORN) == "a file \\udcff and \\ud800, ü, 😀"
    assert sendable("ü\n\t\x00") == "ü\n\t\x00"


def test_what_a_terminal_would_obey_is_escaped_also_in_json() -> None:
    text = "a\tb\nü 😀 \x1b[2J\r\x07\x7f\x9b31m\u202eevil\u2066"
    shown = harmless(text)
    assert shown == r"a\tb\nü 😀 \u001b[2J\u000d\u0007\u007f\u009b31m\u202eevil\u2066".replace(
        r"\t", "\t"
    ).replace(r"\n", "\n")
    told = msgspec.json.encode({"text": text}).decode()
    assert msgspec.json.decode(harmless(told)) == {"text": text} and harmless(told).isprintable()


def test_what_is_too_long_loses_its_middle() -> None:
    text = sendable("begin " + "x" * 10_000 + " end", 200)
    assert text.startswith("begin x") and text.endswith("x end") and "characters are left out here" in text
    assert len(text) <= 200


def test_any_text_can_be_encoded_and_is_short_enough() -> None:
    rng = random.Random(0)
    for _ in range(300):
        length = rng.choice([0, 1, 50, 300, 5000])
        text = "".join(chr(rng.choice([65, 0xDC80, 0xD800, 0x1F600, 0])) for _ in range(length))
        done = sendable(text, 300)
        done.encode()
        assert len(done) <= 300 * 6, "six characters for each that is escaped"
        assert sendable(done, 2000) == done


def test_a_message_is_sent_whatever_its_texts_are() -> None:
    huge = "begin" + "x" * (70 << 20) + "end"
    for text in (TORN, huge, "\ud800" * (10 << 20)):
        message = Failed(name="worker-1", kind="ValueError", text=text, traceback=text)
        frame = control_frame(message)
        assert len(frame) < 1 << 20
        assert decode_to_master(frame) == all_sendable(message)


def test_a_message_without_such_texts_is_sent_as_it_is() -> None:
    plain = Progress(name="server-0", generation=1, version=3, evaluations=((2, (1.0, float("nan"))),))
    assert control_frame(plain) == encode(plain)
    rows = Quarantine(excluded=())
    assert control_frame(rows) == encode(rows)


def test_what_cannot_be_sent_fails_where_it_is_said() -> None:
    fingerprint = {f"{number}": "x" * MOST_CHARS for number in range(CONTROL_BYTES // MOST_CHARS + 1)}
    message = Join(name="worker-1", role="worker", host="", pid=1, fingerprint=fingerprint)
    with pytest.raises(ProtocolError, match=r"a message of .* bytes \(Join\) cannot be sent"):
        control_frame(message)


def test_json_takes_any_text() -> None:
    value = {"text": TORN, TORN: [Entry(TORN, (1,), "float32", Rule.UPDATE)], "number": 3}
    decoded = msgspec.json.decode(as_json(value))
    assert decoded["text"] == sendable(TORN) and decoded[sendable(TORN)][0]["name"] == sendable(TORN)
