"""`leasehold streams`: blocked streams are listed, and a person lets them go on."""

from __future__ import annotations

import pytest

from tests.support.cli_process import forked_leasehold
from tests.support.lease_holder import claim_streams


@pytest.fixture
def run(database):
    def run(*arguments):
        done = forked_leasehold("streams", *arguments, url=database.url_as("operator"))
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def stream(outbox):
    outbox.publish("orders", scope="stream")
    return outbox.enqueue(2, "orders", stream="a")


def test_nothing_is_listed_while_nothing_is_blocked(run, stream):
    del stream
    assert run("list") == (0, "No stream is blocked.\n", "")


def test_paused_stream_is_listed_with_its_reason_until_it_is_resumed(run, stream):
    assert run("pause", "orders", "a", "--note", "audit")[0] == 0
    code, listed, _ = run("list")
    assert code == 0
    assert "audit" in listed
    assert "paused" in listed
    assert run("resume", "orders", "a", "--note", "done")[:2] == (0, "orders/a: resumed\n")
    assert run("list")[1] == "No stream is blocked.\n"
    del stream


def test_stream_is_shown_with_its_head_and_its_holder(run, outbox):
    outbox.publish("pay", scope="stream")
    head, _ = outbox.enqueue(2, "pay", stream="[red]a/b")
    [holder] = claim_streams(outbox)
    holder.begin([head])
    code, shown, _ = run("show", "pay", "[red]a/b")
    assert code == 0
    for text in ("Stream pay/[red]a/b", "in_flight", str(head), holder.name):
        assert text in shown
    assert run("show", "pay", "a") == (1, "", "pay/a: no such stream\n")


def test_name_that_reverses_text_reaches_the_terminal_escaped(run, outbox):
    outbox.publish("pay", scope="stream")
    outbox.enqueue(1, "pay", stream="a\u202eb")
    shown = [
        run("show", "pay", "a\u202eb"),
        run("show", "pay", "a\u202ec"),
        run("pause", "pay", "a\u202eb", "--note", "n"),
        run("list"),
    ]
    for _, output, error in shown:
        assert "\u202e" not in output + error
        assert r"a\u202e" in output + error


def test_skipped_head_is_cancelled_and_only_the_head_can_be_skipped(run, stream, outbox):
    head, behind = map(str, stream)
    code, _, error = run("skip", "orders", "a", behind, "--note", "poison")
    assert code == 1
    assert "not_head" in error
    assert run("skip", "orders", "a", head, "--note", "poison")[:2] == (0, "orders/a: skipped\n")
    assert outbox.status(stream[0]) == "cancelled"


def test_unknown_stream_is_named_with_advice(run, stream):
    del stream
    code, _, error = run("resume", "orders", "nosuch", "--note", "x")
    assert code == 1
    assert error == (
        "orders/nosuch: not_found: There is no such stream, or no such intent in it. "
        "The status of an intent names both.\n"
    )


def test_failed_intent_is_shown_beside_its_reason_and_the_head_as_the_next(run, stream, outbox):
    failed, following = stream
    [holder] = claim_streams(outbox, targets=["orders"])
    holder.begin([failed])
    holder.record_next([failed], "FAILED", reason="rejected")
    _, listed, _ = run("list")
    header, row = listed.splitlines()
    assert header.split() == [
        *("target", "stream", "state", "paused", "for", "reason", "since"),
        *("next", "attempts", "waiting", "submitted"),
    ]
    columns = row.split()
    assert columns[:5] == ["orders", "a", "paused", str(failed), "rejected"]
    assert columns[7:] == [str(following), "0", "0", "0"]
    _, shown, _ = run("show", "orders", "a")
    lines = [line.strip("│ ").split(" │ ") for line in shown.splitlines() if "│" in line]
    fields = {name.strip(): value.strip() for name, value in lines}
    assert (fields["paused for"], fields["next (head)"]) == (str(failed), str(following))


def test_resume_names_the_failed_intent_and_leaves_the_pause_of_a_person(run, stream, outbox):
    failed, _ = stream
    [holder] = claim_streams(outbox, targets=["orders"])
    holder.begin([failed])
    run("pause", "orders", "a", "--note", "audit", "--seconds", "3600")
    holder.record_next([failed], "FAILED", reason="rejected")
    assert "rejected (1 of 2)" in run("list")[1]
    _, shown, _ = run("show", "orders", "a")
    assert str(failed) in shown
    [also] = [line for line in shown.splitlines() if "also paused" in line]
    assert "audit" in also
    assert " until " in also
    code, _, error = run("resume", "orders", "a", "--note", "x", "--paused-by", "nobody")
    assert code == 1
    assert "not_paused" in error
    assert "(`paused_for`)" in error
    resume = ("resume", "orders", "a", "--note", "refunded")
    assert run(*resume) == (
        0,
        "orders/a: still_paused\n",
        "It is paused for another reason too; see `leasehold streams show`.\n",
    )
    assert run(*resume, "--paused-for", str(failed)) == (0, "orders/a: resumed\n", "")


def test_skip_in_a_paused_stream_says_that_it_is_still_paused(run, stream):
    run("pause", "orders", "a", "--note", "audit")
    code, said, hint = run("skip", "orders", "a", str(stream[0]), "--note", "poison")
    assert (code, said) == (0, "orders/a: skipped_paused\n")
    assert hint == "The stream is still paused; see `leasehold streams show`.\n"


def test_refusals_of_the_database_use_the_words_of_the_user(run, stream):
    del stream
    for arguments, told in (
        (("a", "--note", ""), "the length of note is 0"),
        (("a" * 300, "--note", "x"), "stream is 'aaa"),
        (("a", "--note", "x", "--seconds", "1000000000000"), "seconds is 1"),
    ):
        code, _, error = run("pause", "orders", *arguments)
        assert code == 1
        assert told in error
        assert "p_" not in error


def test_resume_that_names_two_pauses_is_refused_in_the_words_of_the_user(run, stream):
    both = "--paused-by", "ann", "--paused-for", str(stream[0])
    code, _, said = run("resume", "orders", "a", "--note", "done", *both)
    assert (code, said) == (1, "Error: paused_by and paused_for exclude each other\n")


def test_pause_for_no_time_is_refused(run, stream):
    del stream
    code, _, error = run("pause", "orders", "a", "--note", "audit", "--seconds", "0")
    assert code == 2
    assert "--seconds" in error
    assert run("list")[1] == "No stream is blocked.\n"


def test_stream_of_a_holder_is_shown_with_both_expiries(run, outbox):
    outbox.publish("pay", scope="stream")
    ids = outbox.enqueue(1, "pay", stream="s")
    [holder] = claim_streams(outbox)
    holder.begin(ids)
    run("pause", "pay", "s", "--note", "audit")
    _, shown, _ = run("show", "pay", "s")
    for text in ("paused", "in flight since", "first expiry", "second expiry"):
        assert text in shown


@pytest.mark.parametrize("group", ["streams", "intents"])
def test_list_of_a_misspelt_target_is_an_error(database, outbox, group):
    outbox.publish("orders", scope="stream")
    url = database.url_as("operator")
    assert forked_leasehold(group, "list", "--target", "orders", url=url).returncode == 0
    done = forked_leasehold(group, "list", "--target", "nosuch", url=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the target 'nosuch' has no published contract" in done.stderr
