"""What is done about the slots of an account, by examples and against a model of a chain."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leasehold.domain.chain import Account, Fees, Inclusion, NodeAnswer, Slot, Version, VersionKind
from leasehold.domain.intent import IntentId
from leasehold.gateway.chain.decide import (
    ChainView,
    Displace,
    FeePolicy,
    Fill,
    Finalise,
    FinalityWentBack,
    HoldAccount,
    NoteLowest,
    NoteMined,
    NoteUnmined,
    Send,
    Sign,
    decide,
)
from tests.unit.gateway.chain.model_chain import POLICY, ModelChain, Recorded, Transaction

CALL, NOOP = VersionKind.CALL, VersionKind.NOOP


def intent(number: int) -> IntentId:
    return IntentId(UUID(int=number))


def version(number: int = 1, **changes: object) -> Version:
    plain = Version(
        number=number,
        tx_hash=f"0x{number}",
        kind=CALL,
        fees=Fees(100, 10),
        signed_at=10,
        tried_at=10,
        answer=NodeAnswer.TAKEN,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def slot(nonce: int = 0, *versions: Version, **changes: object) -> Slot:
    return replace(Slot(nonce=nonce, intent_id=intent(nonce + 1), versions=versions), **changes)  # type: ignore[arg-type]


def view(**changes: object) -> ChainView:
    plain = ChainView(
        head=10,
        final_block=5,
        head_nonce=0,
        final_nonce=0,
        base_fee=50,
        inclusions={},
        known=frozenset({"0x1"}),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


ACCOUNT = Account(final_nonce=0, next_nonce=10, lowest_nonce=0, lowest_since=10)
MINED = Inclusion("0x1", 9, "0xb9", is_success=True)


def test_healthy_slot_is_left_alone() -> None:
    assert decide(ACCOUNT, [slot(0, version())], view(), POLICY) == []


def test_slot_without_a_version_is_signed_where_it_stands() -> None:
    assert decide(ACCOUNT, [slot(0)], view(), POLICY) == [Sign(0, 1, CALL, POLICY.first)]


def test_cancelled_slot_without_a_version_is_filled_by_a_noop() -> None:
    cancelled = slot(0, is_cancel_wanted=True)
    assert decide(ACCOUNT, [cancelled], view(), POLICY) == [Sign(0, 1, NOOP, POLICY.first)]


def test_stored_version_that_was_never_sent_is_sent_before_it_is_bumped() -> None:
    stored = slot(0, version(tried_at=None, answer=None))
    late = view(head=99, known=frozenset())
    assert decide(ACCOUNT, [stored], late, POLICY) == [Send(0, 1)]


def test_version_that_the_node_forgot_is_sent_once_a_block() -> None:
    assert decide(ACCOUNT, [slot(0, version())], view(known=frozenset()), POLICY) == []
    assert decide(ACCOUNT, [slot(0, version())], view(head=11, known=frozenset()), POLICY) == [
        Send(0, 1)
    ]


def test_only_the_top_version_counts_as_known() -> None:
    older_is_known = slot(0, version(1), version(2, tried_at=9))
    assert decide(ACCOUNT, [older_is_known], view(), POLICY) == [Send(0, 2)]


def test_refused_version_is_not_sent_again_in_the_same_block() -> None:
    refused = slot(0, version(answer=NodeAnswer.REFUSED))
    assert decide(ACCOUNT, [refused], view(known=frozenset()), POLICY) == []


def test_lowest_slot_is_bumped_by_age() -> None:
    aged = view(head=13)
    (bump,) = decide(ACCOUNT, [slot(0, version()), slot(1, version(tx_hash="0x1"))], aged, POLICY)
    assert bump == Sign(0, 2, CALL, Fees(111, 11))


def test_age_counts_from_when_the_slot_became_the_lowest() -> None:
    became = replace(ACCOUNT, lowest_nonce=None)
    assert decide(became, [slot(0, version())], view(head=99), POLICY) == [NoteLowest(0, 99)]


def test_age_counts_anew_from_a_bump() -> None:
    bumped = slot(0, version(1), version(2, signed_at=13, tried_at=13, tx_hash="0x1"))
    assert decide(ACCOUNT, [bumped], view(head=15), POLICY) == []


def test_every_slot_below_the_base_fee_is_bumped_not_only_the_lowest() -> None:
    slots = [slot(nonce, version()) for nonce in range(3)]
    actions = decide(ACCOUNT, slots, view(base_fee=200), POLICY)
    assert actions == [Sign(nonce, 2, CALL, Fees(411, 11)) for nonce in range(3)]


def test_replacement_that_the_node_calls_underpriced_is_no_reason_to_bump() -> None:
    held = slot(0, version(answer=NodeAnswer.REPLACEMENT_UNDERPRICED))
    assert decide(ACCOUNT, [held], view(head=11, known=frozenset()), POLICY) == [Send(0, 1)]


def test_version_at_the_cap_is_sent_again_and_not_dropped() -> None:
    capped = slot(0, version(fees=Fees(950, 95)))
    forgotten = view(head=30, base_fee=2000, known=frozenset())
    assert decide(ACCOUNT, [capped], forgotten, POLICY) == [Send(0, 1)]


def test_cancellation_replaces_a_call_that_is_at_its_cap() -> None:
    capped = slot(0, version(fees=Fees(1000, 100)), is_cancel_wanted=True)
    (replacement,) = decide(ACCOUNT, [capped], view(), POLICY)
    assert replacement == Sign(0, 2, NOOP, Fees(1100, 110))


def test_slot_that_became_a_noop_never_becomes_a_call_again() -> None:
    noop = slot(0, version(1), version(2, kind=NOOP, tx_hash="0x1"))
    (bump,) = decide(ACCOUNT, [noop], view(head=13), POLICY)
    assert bump == Sign(0, 3, NOOP, Fees(111, 11))


def test_hole_below_an_open_slot_is_filled() -> None:
    slots = [slot(3, version()), slot(6, version())]
    account = replace(ACCOUNT, lowest_nonce=3)
    assert decide(account, slots, view(head_nonce=2), POLICY) == [Fill(4), Fill(5)]


def test_inclusion_is_recorded_once() -> None:
    mined = view(head_nonce=1, inclusions={"0x1": MINED})
    assert decide(ACCOUNT, [slot(0, version())], mined, POLICY) == [NoteMined(0, MINED)]
    recorded = slot(0, version(), inclusion=MINED)
    assert decide(ACCOUNT, [recorded], mined, POLICY) == []


def test_version_that_is_not_the_top_one_may_win() -> None:
    final = view(head_nonce=1, final_nonce=1, final_block=9, inclusions={"0x1": MINED})
    bumped = slot(0, version(1), version(2, kind=NOOP))
    assert decide(ACCOUNT, [bumped], final, POLICY) == [Finalise(0, MINED, CALL)]


def test_reverted_transaction_is_final_like_any_other() -> None:
    reverted = replace(MINED, is_success=False)
    final = view(head_nonce=1, final_nonce=1, final_block=9, inclusions={"0x1": reverted})
    assert decide(ACCOUNT, [slot(0, version())], final, POLICY) == [Finalise(0, reverted, CALL)]


def test_mined_slot_is_not_final_before_its_block_is() -> None:
    recorded = slot(0, version(), inclusion=MINED)
    early = view(head_nonce=1, final_nonce=1, final_block=8, inclusions={"0x1": MINED})
    assert decide(ACCOUNT, [recorded], early, POLICY) == []


def test_reorg_moves_a_mined_slot_back_and_sends_its_bytes_again() -> None:
    recorded = slot(0, version(), inclusion=MINED)
    gone = view(head=11, known=frozenset())
    assert decide(ACCOUNT, [recorded], gone, POLICY) == [NoteUnmined(0), Send(0, 1)]


def test_reorg_into_another_block_is_recorded() -> None:
    moved = replace(MINED, block_hash="0xother")
    recorded = slot(0, version(), inclusion=MINED)
    actions = decide(ACCOUNT, [recorded], view(head_nonce=1, inclusions={"0x1": moved}), POLICY)
    assert actions == [NoteMined(0, moved)]


def test_foreign_transaction_is_suspect_until_it_is_final() -> None:
    stranger = view(head_nonce=1, known=frozenset())
    assert decide(ACCOUNT, [slot(0, version())], stranger, POLICY) == []
    final = replace(stranger, final_nonce=1)
    assert decide(ACCOUNT, [slot(0, version())], final, POLICY) == [Displace(0)]


def test_nonce_beyond_our_slots_holds_the_account_and_our_slots_go_on() -> None:
    account = replace(ACCOUNT, next_nonce=1)
    used = view(head_nonce=2, inclusions={"0x1": MINED})
    actions = decide(account, [slot(0, version())], used, POLICY)
    assert actions == [HoldAccount(2), NoteMined(0, MINED)]


def test_finality_that_goes_back_is_said_with_the_slots_concerned() -> None:
    account = replace(ACCOUNT, final_nonce=4)
    assert decide(account, [], view(head_nonce=2, final_nonce=2), POLICY) == [
        FinalityWentBack(2, 4)
    ]


def test_view_that_contradicts_itself_changes_nothing() -> None:
    contradiction = view(head_nonce=0, inclusions={"0x1": MINED})
    assert decide(ACCOUNT, [slot(0, version())], contradiction, POLICY) == []


def test_mortal_version_is_signed_anew_only_after_it_can_not_be_mined() -> None:
    mortal = slot(0, version(expires_at=12))
    not_yet = view(head=12, final_block=12, known=frozenset())
    assert decide(ACCOUNT, [mortal], not_yet, POLICY) == [Send(0, 1)]
    dead = view(head=20, final_block=13, known=frozenset())
    assert decide(ACCOUNT, [mortal], dead, POLICY) == [Sign(0, 2, CALL, Fees(100, 10))]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bump_percent": 9}, "bump_percent is 9"),
        ({"cancel_cap": 1099}, "cancel_cap is 1099"),
        ({"bump_after_blocks": 0}, "bump_after_blocks is 0"),
    ],
)
def test_policy_that_cannot_work_is_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(POLICY, **changes)


def test_priority_fee_above_the_fee_is_refused() -> None:
    with pytest.raises(ValueError, match="a priority fee of 11 does not fit a fee of 10"):
        Fees(10, 11)


@pytest.mark.parametrize("fees", [Fees(0, 0), Fees(1, 1), Fees(9, 9), Fees(909, 1)])
def test_raised_fees_are_both_ten_percent_higher(fees: Fees) -> None:
    raised = fees.raised(10, 0, 1000)
    assert raised is not None
    assert 10 * raised.max_fee >= 11 * fees.max_fee
    assert 10 * raised.priority_fee >= 11 * fees.priority_fee
    assert raised.max_fee > fees.max_fee


def test_fees_that_cannot_be_raised_below_the_cap_stay() -> None:
    assert Fees(910, 10).raised(10, 0, 1000) is None
    assert FeePolicy(first=Fees(1, 1), cap=10, cancel_cap=11).bump_percent == 10


class AccountOnAChain(RuleBasedStateMachine):
    """Enqueues, cancels and reconciles, while the chain mines, drops, forgets and reorgs."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = ModelChain()
        self.recorded = Recorded(self.chain)
        self.nonce_of: dict[IntentId, int] = {}

    @precondition(lambda self: len(self.nonce_of) < 12)
    @rule(count=st.integers(1, 4))
    def enqueue(self, count: int) -> None:
        for _ in range(count):
            new = intent(len(self.nonce_of) + 1)
            self.nonce_of[new] = self.recorded.allocate(new)

    @precondition(lambda self: self.recorded.slots)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.recorded.cancel(data.draw(st.sampled_from(sorted(self.recorded.slots))))

    @rule(data=st.data())
    def reconcile(self, data: st.DataObject) -> None:
        self.recorded.reconcile(lambda: data.draw(st.sampled_from([True, True, False])))

    @rule(most=st.integers(0, 3))
    def mine(self, most: int) -> None:
        self.chain.mine(most)

    @rule(base_fee=st.sampled_from([1, 50, 90, 105, 300, 900, 1500]))
    def change_base_fee(self, base_fee: int) -> None:
        self.chain.base_fee = base_fee

    @precondition(lambda self: self.chain.pool)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.chain.drop(data.draw(st.sampled_from(sorted(self.chain.pool))))

    @rule(depth=st.integers(1, 3))
    def reorg(self, depth: int) -> None:
        self.chain.reorg(depth)

    @precondition(lambda self: self.recorded.bytes_of)
    @rule(data=st.data())
    def stale_holder_wakes(self, data: st.DataObject) -> None:
        """Somebody who was paused sends bytes that are stored."""
        tx_hash = data.draw(st.sampled_from(sorted(self.recorded.bytes_of)))
        self.chain.send(self.recorded.bytes_of[tx_hash])

    @invariant()
    def one_effect_per_intent(self) -> None:
        mined = [one.nonce for _, block in self.chain.blocks for one in block]
        assert mined == list(range(len(mined)))
        assert len(set(self.nonce_of.values())) == len(self.nonce_of)

    def teardown(self) -> None:
        """Heal, and see that everything comes to rest."""
        self.chain.base_fee = 10
        for _ in range(60):
            self.recorded.reconcile()
            self.chain.mine()
        self.recorded.reconcile()
        assert not self.recorded.slots, "nothing is stuck"
        assert not self.recorded.is_held, "nobody else used the key"
        ends = self.recorded.closed
        assert ends.keys() == set(self.nonce_of.values()), "nonces are dense"
        assert all(isinstance(end, Finalise) for end in ends.values())


TestAccountOnAChain = AccountOnAChain.TestCase


def test_somebody_else_who_uses_the_key_displaces_one_slot_and_jams_none() -> None:
    chain = ModelChain()
    recorded = Recorded(chain)
    for number in range(4):
        recorded.allocate(intent(number + 1))
    chain.send(Transaction("foreign", 0, Fees(500, 50), is_ours=False))
    chain.mine()
    for _ in range(12):
        recorded.reconcile()
        chain.mine()
    recorded.reconcile()
    assert isinstance(recorded.closed[0], Displace)
    assert all(isinstance(recorded.closed[nonce], Finalise) for nonce in (1, 2, 3))
