"""`leasehold restored`: an operator says that an older state of the database was restored."""

from __future__ import annotations

import pytest

from tests.support.cli_process import assert_one_line_of_error, forked_leasehold

NOTE = ("--note", "backup of last night", "--operator", "ann")


@pytest.fixture
def run(database):
    def run(*arguments, role="operator", **settings):
        return forked_leasehold("restored", *arguments, url=database.url_as(role), **settings)

    return run


def test_it_tells_what_it_did_and_what_is_left_to_do(run, outbox):
    outbox.publish(guarantee="blind")
    outbox.publish("keyed")
    ids = outbox.enqueue(2)
    outbox.enqueue(1, "keyed")
    done = run(*NOTE)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, third, fourth, fifth = done.stdout.splitlines()
    assert first.startswith("Began generation 2: fencing tokens start above ")
    assert third == "Done. Looked at 3 unfinished intents; the restore has put 2 in doubt."
    assert fourth == "Leases are granted again: start the workers."
    assert "leasehold intents list --status held" in fifth
    assert {outbox.status(one) for one in ids} == {"held"}


def test_interrupted_restore_is_continued(run, outbox):
    outbox.publish(guarantee="blind")
    outbox.enqueue(3)
    outbox.call("operator", "begin_restored_generation", "ann", "first run")
    outbox.call("operator", "repair_restored_intents", 2)
    done = run(*NOTE, "--batch-size", "1")
    assert done.stdout.startswith("Went on with generation 2: ")
    assert "Looked at 1 unfinished intents; the restore has put 3 in doubt." in done.stdout


def test_locked_row_ends_it_with_advice_and_it_can_go_on(run, outbox, database):
    outbox.publish(guarantee="blind")
    [intent_id] = outbox.enqueue(1)
    blocker = database.session("owner")
    blocker.run("BEGIN")
    blocker.run(f"SELECT FROM leasehold.outbox_pending WHERE intent_id = '{intent_id}' FOR UPDATE")
    assert_one_line_of_error(
        run(*NOTE, lock_seconds="0.5"), "run `leasehold restored` again", "goes on"
    )
    blocker.run("ROLLBACK")
    assert run(*NOTE).returncode == 0
    assert outbox.status(intent_id) == "held"


def test_it_needs_a_note_and_the_role_of_an_operator(run):
    assert "--note" in run().stderr
    assert_one_line_of_error(run(*NOTE, role="executor"), "leasehold_operator")
