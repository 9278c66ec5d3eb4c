"""The sum out of masked vectors and revealed shares: what a server computes at the end of an attempt, and no more.

It rebuilds, for each device that shared, exactly one secret: of a survivor its self-mask secret, of one that is gone
its mask key; each is checked against what the device advertised. The masks that these give are then taken off the sum
of the masked vectors; no unmasked vector of one device ever exists. Errors: BadShare, BadMessage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from client_sdk.secagg.advertisement import Advertisement
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.errors import BadMessage, BadShare
from client_sdk.secagg.lanes import Lanes
from client_sdk.secagg.liars import common_liars
from client_sdk.secagg.masks import Masker, Sign, pair_seed, pair_sign, self_seed
from client_sdk.secagg.rebuild import (
    SEARCH,
    Doubts,
    fits_mask_key,
    fits_self_mask,
    rebuild_mask_key,
    rebuild_self_mask,
)
from client_sdk.secagg.roster import Cohort
from client_sdk.secagg.shamir import combine_pieces, lagrange_at_zero, require_shares
from client_sdk.secagg.survivors import Survivors
from client_sdk.secagg.unmask import Revealed


@dataclass(frozen=True, repr=False)
class Opened:
    """Secrets by place, and whose fault it was where one is lacking."""

    secrets: dict[int, bytes]
    """32 bytes each: self-mask secrets of survivors, private mask keys of the others. Delete them with the round."""
    wrong: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Dealer -> the holders whose shares of its secret were seen to be wrong, and were set aside."""
    lost: tuple[int, ...] = ()
    """Dealers whose t or more shares give nothing that fits the commitment: they, or too many holders, lied. The
    attempt cannot be finished."""

    @property
    def complete(self) -> bool:
        """Whether the sum can be unmasked."""
        return not self.lost


class Opening:
    """Shares as they come in, and what they give once there are enough."""

    def __init__(self, cohort: Cohort, survivors: Survivors, sharers: Collection[int]) -> None:
        """``sharers``: the places whose shares were delivered, hence with whom peers masked."""
        if not survivors.members <= set(sharers):
            raise BadMessage("a survivor never shared")
        self.cohort, self.survivors, self.sharers = cohort, survivors, tuple(sorted(sharers))
        self._dealt = frozenset(self.sharers)
        self._revealed: dict[int, Revealed] = {}
        self._alike = True
        """Whether each who revealed holds a share of every sharer, as in a complete graph."""

    def take(self, revealed: Revealed) -> None:
        """One survivor's shares. Those of dealers whose shares it does not hold are BadMessage, and nothing is taken;
        so is a second response."""
        if revealed.place in self._revealed:
            raise BadMessage(f"device {self.cohort.device(revealed.place)} has revealed its shares before")
        dealers = tuple([dealer for dealer, _, _ in revealed.shares])
        held = self._dealt.intersection(self.cohort.graph.holders(revealed.place))  # who holds of whom is symmetric
        if not held.issuperset(dealers):
            raise BadMessage("a share is revealed that its sender does not hold")
        self._revealed[revealed.place] = revealed
        self._alike = self._alike and dealers == self.sharers

    @property
    def lacking(self) -> tuple[int, ...]:
        """Places of whose secret fewer than t shares are there yet: empty when ``open`` can be tried."""
        threshold = self.cohort.parameters.threshold
        if self._alike:
            return self.sharers if len(self._revealed) < threshold else ()
        return tuple(place for place, shares in self._by_dealer().items() if len(shares) < threshold)

    def open(self) -> Opened:
        """Every secret that is needed, rebuilt and checked. BadShare where shares are lacking still."""
        if self.lacking:
            raise BadShare(f"the secrets of {len(self.lacking)} devices lack shares")
        secrets = self._at_once() if self._alike else {}
        rest = [place for place in self.sharers if place not in secrets]
        by_dealer = self._by_dealer() if rest else {}
        wrong, lost = {}, []
        threshold = self.cohort.parameters.threshold
        doubts = Doubts(set(common_liars([by_dealer[place] for place in rest], threshold)), SEARCH)
        for place in rest:
            rebuild = rebuild_self_mask if place in self.survivors.members else rebuild_mask_key
            try:
                rebuilt = rebuild(by_dealer[place], threshold, self._shown(place), doubts)
            except BadShare:
                lost.append(place)
                continue
            secrets[place] = rebuilt.secret
            if rebuilt.wrong:
                wrong[place] = tuple(x - 1 for x in rebuilt.wrong)
        return Opened(secrets, wrong, tuple(lost))

    def _at_once(self) -> dict[int, bytes]:
        """The secrets that the first t holders' shares give as they are: as a rule all. For one set of holders the
        coefficients are the same, so this is column by column."""
        chosen = sorted(self._revealed)[: self.cohort.parameters.threshold]
        coefficients = lagrange_at_zero(tuple(place + 1 for place in chosen))
        columns = zip(*([share for _, _, share in self._revealed[place].shares] for place in chosen), strict=True)
        secrets = {}
        for place, column in zip(self.sharers, columns, strict=True):
            try:
                require_shares(column)
                secret = combine_pieces(column, coefficients)
            except BadShare:
                continue
            fits = fits_self_mask if place in self.survivors.members else fits_mask_key
            if fits(secret, self._shown(place)):
                secrets[place] = secret
        return secrets

    def _by_dealer(self) -> dict[int, dict[int, bytes]]:
        """Dealer -> its holder's x -> the share."""
        found: dict[int, dict[int, bytes]] = {place: {} for place in self.sharers}
        for place, revealed in self._revealed.items():
            for dealer, _, share in revealed.shares:
                found[dealer][place + 1] = share
        return found

    def _shown(self, place: int) -> Advertisement:
        return self.cohort.roster.entries[place].advertisement

    def masks(self, secrets: dict[int, bytes]) -> Iterator[tuple[bytes, Sign]]:
        """(seed, sign) of each mask that is still on the survivors' sum, to be added: in any order, by any number of
        workers, since addition modulo 2^b has none.

        A survivor's own mask comes off; where a peer is gone, the survivor's side of their mask stayed on, and the
        gone peer's side takes it off.
        """
        h, entries = self.cohort.h, self.cohort.roster.entries
        for place in self.sharers:
            if place in self.survivors.members:
                yield self_seed(secrets[place], h, place), -1
                continue
            key = AgreementKey(secrets[place])
            for peer in self.cohort.graph.neighbours(place):
                if peer in self.survivors.members:
                    agreed = key.agree(entries[peer].advertisement.mask_key)
                    yield pair_seed(agreed, h, place, peer), pair_sign(place, peer)


def unmask(total: Lanes, masks: Iterable[tuple[bytes, Sign]], masker: Masker, first: int = 0) -> None:
    """Adds the masks to ``total``, in place; cut it to b bits afterwards. Memory: one block of key stream.

    ``first``: the lane at which ``total`` begins, a multiple of 16, where several workers have a part each.
    """
    try:
        for seed, sign in masks:
            masker.apply(total, seed, sign, first)
    finally:
        masker.wipe()
