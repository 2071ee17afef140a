"""A user's observer, imported from an app dir, is told what a worker does."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.engine import until

# Writes a line for each event: the method, the intent, and what else it is told.
OBSERVER = """
import json, os
from leasehold import Observer

class Notes(Observer):
    def begun(self, intent):
        self.write("begun", intent)

    def answered(self, intent, outcome):
        self.write("answered", intent, type(outcome).__name__)

    def unknown(self, intent, outcome):
        self.write("unknown", intent, outcome.reason)

    def terminal(self, intent, state, reason):
        self.write("terminal", intent, state)

    def write(self, method, intent, *more):
        with open(os.environ["TEST_FOLDER"] + "/told", "a") as file:
            print(json.dumps([method, str(intent.intent_id), *more]), file=file)

class Broken:
    def begun(self, intent):
        raise ValueError(intent)

    answered = unknown = terminal = begun

notes = Notes()
"""


@pytest.fixture
def app_dir(tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "shop_watch.py").write_text(OBSERVER)
    return folder


def told(tmp_path, intent_id):
    """What the observer was told about an intent, in order."""
    file = tmp_path / "told"
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else []
    return [tuple(more) for more in ((one[0], *one[2:]) for one in lines if one[1] == intent_id)]


def observed(engine, app_dir, name="notes", **settings):
    """Start a worker with the observer."""
    return engine.worker(
        *("--app-dir", str(app_dir), "--observer", f"shop_watch:{name}"),
        test_folder=str(app_dir.parent),
        **settings,
    )


@pytest.mark.parametrize("scope", ["item", "stream", "cluster"])
async def test_observer_learns_of_each_call_and_of_its_end(engine, app_dir, scope):
    engine.publish(scope=scope)
    stream = {"stream": "s"} if scope == "stream" else {}
    entries = [{"target": "sms", "payload": {}} | stream] * 3
    ids = [str(row["intent_id"]) for row in engine.outbox.enqueue_entries(entries)]
    observed(engine, app_dir)
    expected = [("begun",), ("answered", "Accepted"), ("terminal", "DISPATCHED")]
    for intent_id in ids:
        await until(lambda id_=intent_id: told(app_dir.parent, id_) == expected)


async def test_observer_learns_that_an_outcome_is_unknown_and_later_resolved(engine, app_dir):
    engine.sandbox.set_faults("lookup", lost_response_rate=1)
    engine.publish("bank", "lookup")
    [intent_id] = engine.outbox.enqueue(1, "bank")
    observed(engine, app_dir)
    await until(lambda: engine.outbox.make_due() or engine.statuses([intent_id]) == ["accepted"])
    expected = [
        ("begun",),
        ("unknown", "connection_lost"),
        ("answered", "Accepted"),
        ("terminal", "DISPATCHED"),
    ]
    await until(lambda: told(app_dir.parent, str(intent_id)) == expected)


async def test_observer_is_told_everything_before_a_stopped_worker_ends(engine, app_dir):
    engine.publish()
    ids = engine.outbox.enqueue(20)
    worker = observed(engine, app_dir)
    await engine.until_status(ids)
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    assert {told(app_dir.parent, str(one))[-1] for one in ids} == {("terminal", "DISPATCHED")}


async def test_observer_that_raises_does_not_disturb_the_worker(engine, app_dir):
    engine.publish()
    ids = engine.outbox.enqueue(5)
    worker = observed(engine, app_dir, "Broken")
    await engine.until_status(ids)
    failed = await worker.logged("observer_failed")
    assert (failed["method"], failed["error"]) == ("begun", "ValueError")
    assert "shop_watch.py" in failed["traceback"]


async def test_worker_with_an_observer_that_cannot_be_loaded_does_not_start(engine, app_dir):
    worker = observed(engine, app_dir, "nothing")
    assert await worker.ended() != 0
    assert "the observer shop_watch:nothing cannot be loaded" in worker.log.read_text()
