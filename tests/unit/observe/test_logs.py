"""Logs: one format for all lines, with fields and without secrets."""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import structlog

from leasehold.domain.secret_names import SECRET_NAMES
from leasehold.observe.logs import (
    BufferedLog,
    configure_logs,
    get_logger,
    hide_in_logs,
)
from tests.support.log_stream import restored_logs

SECRET = "hunter2"


@pytest.fixture
def stream():
    with restored_logs() as stream:
        yield stream


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_line_has_its_fields_level_logger_and_a_time_in_utc(stream):
    configure_logs("json", "info", stream)
    intent_id = uuid4()
    get_logger("leasehold.executor").bind(worker_id="w").info("claimed", intent_id=intent_id, n=3)
    [line] = lines(stream)
    said_at = datetime.fromisoformat(line.pop("timestamp"))
    assert abs(datetime.now(UTC) - said_at) < timedelta(minutes=1)
    assert said_at.utcoffset() == timedelta(0)
    assert line == {
        "event": "claimed",
        "level": "info",
        "logger": "leasehold.executor",
        "worker_id": "w",
        "intent_id": str(intent_id),
        "n": 3,
    }


def test_field_may_be_named_like_an_attribute_of_a_log_record(stream):
    configure_logs("json", "info", stream)
    get_logger("x").info("100 % %s done", name="a", args=1, message="b", process="c")
    [line] = lines(stream)
    assert (line["event"], line["name"], line["message"]) == ("100 % %s done", "a", "b")


def test_lines_of_libraries_have_the_same_format(stream):
    configure_logs("json", "info", stream)
    logging.getLogger("psycopg.pool").warning("error connecting %d", 7)
    [line] = lines(stream)
    assert (line["event"], line["logger"], line["level"]) == (
        "error connecting 7",
        "psycopg.pool",
        "warning",
    )


def test_lines_below_the_level_are_dropped(stream):
    configure_logs("json", "WARNING", stream)
    get_logger("x").info("quiet")
    logging.getLogger("y").info("quiet")
    get_logger("x").warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_console_format_shows_event_and_fields(stream):
    configure_logs("console", "info", stream)
    get_logger("x").warning("lease lost", worker_id="w")
    text = stream.getvalue()
    assert "lease lost" in text
    assert "worker_id=w" in text
    assert "\x1b" not in text  # no colours without a terminal


def test_second_configuration_replaces_the_first(stream):
    for _ in range(2):
        configure_logs("json", "info", stream)
    get_logger("x").info("once")
    assert len(lines(stream)) == 1


def test_fields_of_the_context_are_on_every_line(stream):
    configure_logs("json", "info", stream)
    with structlog.contextvars.bound_contextvars(trace_id="t"):
        get_logger("x").info("inside")
    assert lines(stream)[0]["trace_id"] == "t"


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{SECRET}@host/name",
        f"cannot connect to postgresql://user:{SECRET}@host:5432/name?x=1 now",
        f"postgresql://user:a@{SECRET}@host/name",
        f"postgresql://user:a/{SECRET}@host/name",
        f"postgresql://:{SECRET}@/name",
        f"host=h password={SECRET} dbname=d",
        f"host=h password='{SECRET} {SECRET}' dbname=d",
        f"postgresql://host/name?user=u&PASSWORD={SECRET}&x=1",
    ],
)
def test_password_never_reaches_the_log(stream, form, text):
    configure_logs(form, "info", stream)
    log = get_logger("x")
    log.info("started", database_url=text)
    log.info(f"started on {text}")
    log.info("nested", settings={"databases": [{"first": text}]})
    logging.getLogger("library").info("connecting to %s", text)
    try:
        int(text)  # the error quotes its argument
    except ValueError:
        log.exception("broke")
        logging.getLogger("library").exception("broke too")
    assert SECRET not in stream.getvalue()
    assert "***" in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
def test_traceback_shows_no_local_variables(stream, form):
    def fail(payload):
        local = payload
        raise RuntimeError(len(local))

    configure_logs(form, "debug", stream)
    try:
        fail(SECRET * 2)
    except RuntimeError as error:
        get_logger("x").error("broke", exc_info=error)
        logging.getLogger("library").exception("broke too")
    assert stream.getvalue().count("RuntimeError: 14") == 2
    assert SECRET not in stream.getvalue()


def test_known_secret_is_hidden_in_every_line_of_the_process(stream):
    configure_logs("json", "info", stream)
    hide_in_logs(["swordfish"])
    get_logger("x").info("started", error="a swordfish", nested={"list": ["swordfish"]})
    logging.getLogger("library").info("got %s", "c3dvcmRmaXNo")
    assert "swordfish" not in stream.getvalue()
    assert [line["event"] for line in lines(stream)] == ["started", "got ***"]


def test_secret_is_hidden_in_values_of_any_type(stream):
    configure_logs("json", "info", stream)
    hide_in_logs(["swordfish"])
    error, deep = ValueError("swordfish"), {"a": {"b": {"c": {"d": {"e": "swordfish"}}}}}
    get_logger("x").info("failed", error=error, uuid=uuid4(), n=3, ok=True, nothing=None, deep=deep)
    assert "swordfish" not in stream.getvalue()
    [line] = lines(stream)
    assert (line["n"], line["ok"], line["nothing"]) == (3, True, None)


def test_secret_that_is_a_common_word_does_not_change_names_of_ours(stream):
    configure_logs("json", "info", stream)
    hide_in_logs(["leasehold", "started", "info"])
    get_logger("leasehold.executor").info("worker_started", error="started")
    [line] = lines(stream)
    assert (line["event"], line["logger"], line["level"]) == (
        "worker_started",
        "leasehold.executor",
        "info",
    )
    assert line["error"] == "***"


def test_name_that_equals_a_password_stays_readable_in_its_field(stream):
    configure_logs("json", "info", stream)
    hide_in_logs(["swordfish"])
    get_logger("x").info(
        "intent_held",
        target="swordfish",
        targets=["sms", "swordfish"],
        error="login with swordfish failed",
        stream=f"postgresql://u:{SECRET}@h/d",
    )
    [line] = lines(stream)
    assert (line["target"], line["targets"]) == ("swordfish", ["sms", "swordfish"])
    assert (line["error"], line["stream"]) == ("login with *** failed", "postgresql://u:***@h/d")


class Unfreeable:
    def __del__(self):
        raise RuntimeError("in __del__")


def leave_a_warning():
    warnings.simplefilter("always")  # otherwise pytest makes it an error
    warnings.warn("mind the gap", stacklevel=2)


def fail_when_freed():
    Unfreeable()


def fail_in_a_thread():
    thread = threading.Thread(target=int, args=["in a thread"])
    thread.start()
    thread.join()


def fail_in_the_main_thread():
    try:
        int("uncaught")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (leave_a_warning, "mind the gap"),
        (fail_when_freed, "RuntimeError: in __del__"),
        (fail_in_a_thread, "in a thread"),
        (fail_in_the_main_thread, "uncaught"),
    ],
)
def test_output_of_python_itself_becomes_a_log_line(stream, capfd, act, told):
    configure_logs("json", "info", stream)
    act()
    [line] = lines(stream)
    assert told in line["event"] + line.get("exception", "")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name", [*sorted(SECRET_NAMES), "proxy-authorization", "x-auth-token", "lease-token"]
)
def test_value_under_a_secret_name_is_redacted_in_any_spelling(stream, name):
    configure_logs("json", "info", stream)
    headers = {name: SECRET, name.title(): SECRET, name.upper(): SECRET}
    get_logger("x").info("call", headers=headers, **{name.replace("-", "_"): SECRET})
    assert SECRET not in stream.getvalue()
    assert lines(stream)[0]["headers"][name] == "***"


def test_console_line_has_no_characters_that_drive_a_terminal(stream):
    configure_logs("console", "info", stream)
    get_logger("x").info("stream_paused", stream="a\u202eb", names=["\x9b"])
    logging.getLogger("y").warning("c\x1b[2J")
    assert r"a\u202eb" in stream.getvalue()
    assert not {"\u202e", "\x9b", "\x1b"} & set(stream.getvalue())


def test_line_for_another_logging_configuration_is_a_single_line(caplog):
    with caplog.at_level("INFO"):
        get_logger("leasehold.x").info("stream_paused", stream="a\u2028b\nc")
    assert caplog.messages == [r"stream_paused stream=a\u2028b\u000ac"]


def test_harmless_values_are_not_redacted(stream):
    configure_logs("json", "info", stream)
    get_logger("x").info("call", url="https://api.example:8443/v1", headers={"Accept": "a"})
    [line] = lines(stream)
    assert (line["url"], line["headers"]) == ("https://api.example:8443/v1", {"Accept": "a"})


def test_line_is_readable_and_redacted_in_a_program_with_its_own_logging(caplog):
    with caplog.at_level("INFO"):
        get_logger("leasehold.x").info("claimed", n=3, url=f"postgresql://u:{SECRET}@h/d")
    assert caplog.messages == ["claimed n=3 url=postgresql://u:***@h/d"]


def test_redaction_of_long_text_is_fast(stream):
    configure_logs("json", "info", stream)
    began = datetime.now(UTC)
    get_logger("x").info("body", text="a" * 200_000 + "://" * 1000 + ":" * 10_000)
    assert datetime.now(UTC) - began < timedelta(seconds=5)


async def test_buffered_log_writes_its_lines_together_and_in_the_common_format(stream):
    log = BufferedLog("json", "info", stream)
    for number in range(2):
        log.info("request", number=number)
    assert stream.getvalue() == ""
    log.flush()
    for number, line in enumerate(lines(stream)):
        assert line["timestamp"].endswith("Z")  # as in all other lines
        assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() == timedelta(0)
        assert line == {"level": "info", "event": "request", "number": number}


async def test_buffered_log_writes_nothing_below_its_level(stream):
    log = BufferedLog("json", "warning", stream)
    log.info("request")
    log.flush()
    assert stream.getvalue() == ""
