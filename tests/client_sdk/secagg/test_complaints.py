"""Rows that do not open, on both devices: what the holder says, what the dealer opens, and what neither ever does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from client_sdk.secagg.actions import Transmit
from client_sdk.secagg.complaints import Accusations, Complaint, OpenedPairs, Settlement, row_digest
from client_sdk.secagg.errors import BadMessage, BadShare, BadSignature, Refusal, SecaggError
from client_sdk.secagg.opening import Opening
from client_sdk.secagg.shares import Bundle, SharePair
from client_sdk.secagg.statement import signed
from client_sdk.secagg.survivors import Proof, RevealedShares, Survivors
from tests.client_sdk.secagg.attempt import header
from tests.client_sdk.secagg.fleet import Coordinator, fleet, plain_sum

HOLDER, DEALER, N = 0, 3, 6


def dealt(n: int = N) -> Coordinator:
    """All have shared."""
    members, authority = fleet(n)
    coordinator = Coordinator(header(dimension=5), authority, members)
    roster = coordinator.open()
    for place in range(n):
        members[place].tell(roster)
        coordinator.hear_share(place)
    return coordinator


def spoiled(coordinator: Coordinator, holder: int, dealers: set[int], what: int = 1) -> Bundle:
    """The delivery of the holder, with other bytes in the rows of these dealers: of the sealed pair, or of digests."""
    rows = []
    for row in Bundle.parse(coordinator.delivery(holder), len(coordinator.members)).rows:
        wrong = list(row)
        wrong[what] = bytes(len(row[what]))
        rows.append((row[0], wrong[1], wrong[2]) if row[0] in dealers else row)
    return Bundle(holder, tuple(rows))


def lied(coordinator: Coordinator, holder: int, dealer: int) -> bytes:
    """Puts garbage into the dealer's bundle for this holder, as it is on the dealer's disk too: what it dealt is what
    it signed. Returns the holder's delivery."""
    member = coordinator.members[dealer]
    tensors, live = next(iter(member.memory.live.items()))
    mine = Bundle.parse(live.bundle, N)
    rows = tuple((place, bytes(82) if place == holder else sealed, found) for place, sealed, found in mine.rows)
    coordinator.bundles[dealer] = replace(mine, rows=rows)
    moved = replace(live, bundle=coordinator.bundles[dealer].encoded)
    member.disk = replace(member.memory, live={tensors: moved}).encoded
    member.start(coordinator.header)
    return coordinator.delivery(holder)


def complains(coordinator: Coordinator, holder: int, delivery: bytes) -> Transmit:
    said = coordinator.members[holder].tell(delivery)
    assert said is not None
    assert said.stage == "complain"
    return said


def accusations(*complaints: Transmit) -> bytes:
    return Accusations(tuple((one.body, one.signature) for one in complaints)).encoded


def false_complaint(coordinator: Coordinator, holder: int, *dealers: int, of: int | None = None) -> Transmit:
    """What a holder signs that lies: the right row of each dealer does not open, it says."""
    rows = [row for row in Bundle.parse(coordinator.delivery(holder), N).rows if row[0] in dealers]
    body = Complaint.of(coordinator.cohort.h, holder if of is None else of, rows).encoded
    signer = coordinator.members[holder].device.signer
    return Transmit("complain", body, signed(signer, coordinator.cohort.h, "complain", body))


def mask_all(coordinator: Coordinator, *but: int) -> None:
    for place, member in enumerate(coordinator.members):
        if place not in but:
            member.tell(coordinator.delivery(place))
            coordinator.hear_mask(place)


def test_a_complaint_names_all_rows_that_do_not_open_and_is_the_same_after_a_restart() -> None:
    coordinator = dealt()
    delivery = spoiled(coordinator, HOLDER, {1, 4})
    said = complains(coordinator, HOLDER, delivery.encoded)
    h = coordinator.cohort.h
    rows = {dealer: row_digest(h, dealer, HOLDER, *rest) for dealer, *rest in delivery.rows if dealer in (1, 4)}
    assert dict(Complaint.parse(said.body, N).rows) == rows
    member = coordinator.members[HOLDER]
    before = member.disk
    again = member.start(coordinator.header)
    assert again is not None
    assert again.stage == "share"
    assert complains(coordinator, HOLDER, delivery.encoded) == said
    assert member.disk == before, "nothing was kept: what it says follows from what it has"


@pytest.mark.parametrize("masked", [False, True])
def test_a_dealer_opens_the_one_pair_of_which_its_holder_has_signed_a_complaint(masked: bool) -> None:
    """A false one, since its own row opens: the holder has that pair already. It has masked, or itself complained."""
    coordinator = dealt()
    dealer = coordinator.members[DEALER]
    if masked:
        dealer.tell(coordinator.delivery(DEALER))
    else:
        complains(coordinator, DEALER, spoiled(coordinator, DEALER, {5}).encoded)
    accusation = accusations(false_complaint(coordinator, HOLDER, DEALER))
    said = dealer.tell(accusation)
    assert said is not None
    assert said.stage == "open"
    pairs = OpenedPairs.parse(said.body, N).pairs
    coordinator.members[HOLDER].tell(coordinator.delivery(HOLDER))
    assert pairs == {HOLDER: coordinator.members[HOLDER].live(coordinator.header).held[DEALER]}
    waiting = dealer.start(coordinator.header)
    assert waiting is not None
    if not masked:
        assert waiting.stage == "share"
        complains(coordinator, DEALER, spoiled(coordinator, DEALER, {5}).encoded)
    assert dealer.tell(accusation) == said, "the same bytes after a restart"


def test_what_was_altered_between_two_honest_devices_opens_nothing() -> None:
    """Also where it was done to one dealer's rows for all others."""
    for n, holders in ((N, (HOLDER,)), (12, tuple(place for place in range(12) if place != DEALER))):
        for what in (1, 2):
            coordinator = dealt(n)
            said = [
                complains(coordinator, holder, spoiled(coordinator, holder, {DEALER}, what).encoded)
                for holder in holders
            ]
            dealer = coordinator.members[DEALER]
            dealer.tell(coordinator.delivery(DEALER))
            with pytest.raises(Refusal, match="altered on the way"):
                dealer.tell(accusations(*said))
            assert {message.stage for message in dealer.log} == {"advertise", "share", "mask"}


def test_one_complaint_of_another_row_among_right_ones_opens_nothing() -> None:
    coordinator = dealt()
    right = false_complaint(coordinator, 1, DEALER)
    wrong = complains(coordinator, 2, spoiled(coordinator, 2, {DEALER}).encoded)
    dealer = coordinator.members[DEALER]
    dealer.tell(coordinator.delivery(DEALER))
    with pytest.raises(Refusal, match="altered on the way"):
        dealer.tell(accusations(right, wrong))
    assert "open" not in {message.stage for message in dealer.log}


@pytest.mark.parametrize(
    ("accused", "error"),
    [
        (lambda c: accusations(replace(false_complaint(c, 1, DEALER), signature=bytes(64))), BadSignature),
        (lambda c: accusations(false_complaint(c, 1, DEALER, of=2)), BadSignature),
        (lambda c: accusations(false_complaint(c, 1, 4)), BadMessage),
        (lambda c: accusations(*[false_complaint(c, 1, DEALER)] * 2), BadMessage),
        (lambda c: accusations(false_complaint(c, 2, DEALER), false_complaint(c, 1, DEALER)), BadMessage),
        (lambda c: Accusations(()).encoded, BadMessage),
        (lambda c: accusations(false_complaint(c, 1, DEALER)) + b"\0", BadMessage),
    ],
)
def test_a_dealer_opens_nothing_without_its_holders_signature_under_a_complaint_of_it(
    accused: Callable[[Coordinator], bytes], error: type[SecaggError]
) -> None:
    coordinator = dealt()
    dealer = coordinator.members[DEALER]
    dealer.tell(coordinator.delivery(DEALER))
    with pytest.raises(error):
        dealer.tell(accused(coordinator))
    assert "open" not in {message.stage for message in dealer.log}


def test_once_a_list_is_signed_nothing_is_opened() -> None:
    coordinator = dealt()
    mask_all(coordinator)
    said = false_complaint(coordinator, HOLDER, DEALER)
    dealer = coordinator.members[DEALER]
    dealer.tell(coordinator.survivors().encoded)
    with pytest.raises(BadMessage):
        dealer.tell(accusations(said))
    dealer.start(coordinator.header)
    with pytest.raises(BadMessage):
        dealer.tell(accusations(said))
    assert "open" not in {message.stage for message in dealer.log}


def test_a_holder_goes_on_with_the_pair_that_was_opened_for_it() -> None:
    """A liar that sealed garbage and answers right: nobody is out, and the sum is that of all."""
    coordinator = dealt()
    whole = Bundle.parse(coordinator.delivery(HOLDER), N)
    secrets = coordinator.members[HOLDER].live(coordinator.header).secrets
    assert secrets is not None
    row = next(row for row in whole.rows if row[0] == DEALER)
    tools, cohort = coordinator.members[HOLDER].device.primitives, coordinator.cohort
    agreed = secrets.share_key.agree(cohort.roster.entries[DEALER].advertisement.share_key)
    ends = (DEALER, cohort.device(DEALER)), (HOLDER, cohort.device(HOLDER))
    pair = tools.unseal(agreed, cohort.h, *ends, row[1])
    complains(coordinator, HOLDER, lied(coordinator, HOLDER, DEALER))
    mask_all(coordinator, HOLDER)
    holder = coordinator.members[HOLDER]
    said = holder.tell(Settlement(HOLDER, {DEALER: pair}, ()).encoded)
    assert said is not None
    assert said.stage == "mask"
    coordinator.hear_mask(HOLDER)
    survivors = coordinator.survivors()
    assert len(survivors) == N
    coordinator.opening = Opening(cohort, survivors, coordinator.bundles)
    assert (opened_sum(coordinator, survivors) == plain_sum(coordinator, survivors)).all()


def test_a_holder_masks_without_a_dealer_that_is_out_and_signs_no_list_that_names_it() -> None:
    coordinator = dealt(7)
    delivery = spoiled(coordinator, HOLDER, {DEALER})
    complains(coordinator, HOLDER, delivery.encoded)
    mask_all(coordinator, HOLDER)
    del coordinator.vectors[DEALER]
    holder = coordinator.members[HOLDER]
    holder.tell(Settlement(HOLDER, {}, (DEALER,)).encoded)
    coordinator.hear_mask(HOLDER)
    assert DEALER not in holder.live(coordinator.header).held
    survivors = coordinator.survivors()
    for place in (1, 2):
        with_it = Survivors(tuple(range(7)))
        if place == 1:
            fresh, kept = coordinator.members[HOLDER], coordinator.members[HOLDER].disk
            with pytest.raises(Refusal, match="names a neighbour that never shared"):
                fresh.tell(with_it.encoded)
            assert fresh.disk == kept
            fresh.start(coordinator.header)
    coordinator.opening = Opening(coordinator.cohort, survivors, coordinator.bundles, {HOLDER: {DEALER}})
    assert (opened_sum(coordinator, survivors) == plain_sum(coordinator, survivors)).all()


def opened_sum(coordinator: Coordinator, survivors: Survivors):  # type: ignore[no-untyped-def]
    """Exchanges 4 and 5."""
    for place in survivors.places:
        coordinator.members[place].tell(survivors.encoded)
        coordinator.hear_survivors(place)
    proof = Proof(tuple(sorted(coordinator.signatures.items()))).encoded
    for place in survivors.places:
        coordinator.members[place].tell(proof)
        coordinator.hear_unmask(place, survivors)
    return coordinator.unmasked(survivors)


@pytest.mark.parametrize(
    ("settlement", "error", "words"),
    [
        (Settlement(HOLDER, {DEALER: SharePair(bytes(33), bytes(33))}, ()), BadShare, "whose digests the dealer"),
        (Settlement(HOLDER, {}, ()), BadMessage, "not of what this device complained of"),
        (Settlement(HOLDER, {}, (DEALER, DEALER + 1)), BadMessage, "not of what this device complained of"),
        (Settlement(1, {}, (DEALER,)), BadMessage, "not of what this device complained of"),
    ],
)
def test_a_settlement_of_something_else_is_refused(
    settlement: Settlement, error: type[SecaggError], words: str
) -> None:
    coordinator = dealt()
    complains(coordinator, HOLDER, spoiled(coordinator, HOLDER, {DEALER}).encoded)
    with pytest.raises(error, match=words):
        coordinator.members[HOLDER].tell(settlement.encoded)
    assert "mask" not in {message.stage for message in coordinator.members[HOLDER].log}


def test_fewer_pairs_than_rebuild_a_secret_are_too_few_for_a_device_to_mask() -> None:
    """A coordinator that says of many that they are out gains nothing."""
    coordinator = dealt()
    complains(coordinator, HOLDER, spoiled(coordinator, HOLDER, {1, 2}).encoded)
    with pytest.raises(Refusal, match="4 devices shared with this one; it takes 5"):
        coordinator.members[HOLDER].tell(Settlement(HOLDER, {}, (1, 2)).encoded)


def test_the_digest_of_a_row_is_of_its_attempt_both_ends_and_all_bytes() -> None:
    usual = (bytes(32), 1, 2, bytes(82), bytes(64))
    others = [(bytes([1] * 32), 1, 2, bytes(82), bytes(64)), (bytes(32), 2, 1, bytes(82), bytes(64))]
    others += [(bytes(32), 1, 2, bytes([1] * 82), bytes(64)), (bytes(32), 1, 2, bytes(82), bytes([1] * 64))]
    assert len({row_digest(*one) for one in (usual, *others)}) == 5


def test_messages_have_one_form() -> None:
    pair = SharePair(bytes(33), bytes(32) + b"\1")
    settlement = Settlement(0, {1: pair, 4: pair}, (2,))
    opened = OpenedPairs(0, {1: pair, 4: pair})
    complaint = Complaint(0, ((1, bytes(32)), (4, bytes(32))))
    assert Settlement.parse(settlement.encoded, N) == settlement
    assert OpenedPairs.parse(opened.encoded, N) == opened
    assert Complaint.parse(complaint.encoded, N) == complaint
    for wrong in (
        Complaint(0, ((4, bytes(32)), (1, bytes(32)))),
        Complaint(0, ((0, bytes(32)),)),
        Complaint(0, ((N, bytes(32)),)),
        Complaint(N, ((1, bytes(32)),)),
        Complaint(0, ()),
    ):
        with pytest.raises(BadMessage):
            Complaint.parse(wrong.encoded, N)
    for broken in (OpenedPairs(0, {}), OpenedPairs(0, {N: pair})):
        with pytest.raises(BadMessage):
            OpenedPairs.parse(broken.encoded, N)
    with pytest.raises(BadShare):
        OpenedPairs.parse(OpenedPairs(0, {1: SharePair(b"\xff" * 33, bytes(33))}).encoded, N)


def test_revealed_shares_lack_those_of_a_dealer_that_is_out() -> None:
    held = {0: SharePair(bytes(33), bytes(33)), 2: SharePair(bytes(33), bytes(33))}
    assert [dealer for dealer, _, _ in RevealedShares.of(0, held, Survivors((0, 2))).shares] == [0, 2]
