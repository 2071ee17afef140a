"""The numbers under which a leader marks its calls."""

from __future__ import annotations

from leasehold.executor.leader.marks import Marks


def test_batches_in_flight_have_different_numbers():
    marks = Marks()
    assert [marks.begin([call]) for call in (10, 20, 30)] == [1, 2, 3]


def test_number_is_used_again_when_the_whole_batch_has_ended():
    marks = Marks()
    marks.begin([10, 11])
    marks.begin([20])
    marks.end({10, 20})
    assert marks.begin([30]) == 2
    assert marks.begin([40]) == 3
    marks.end({11})
    assert marks.begin([50]) == 1


def test_batch_of_nothing_keeps_no_number():
    marks = Marks()
    marks.begin([])
    marks.end(set())
    assert marks.begin([10]) == 1
