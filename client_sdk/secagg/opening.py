"""The server's arithmetic at the end of an attempt: the sum, from masked vectors and revealed shares.

For each device that shared it rebuilds exactly one secret: a survivor's self-mask secret, or the mask key of a device
that dropped out. Each is checked against what the device advertised. The masks derived from them are then removed from
the sum of the masked vectors; no device's own vector is ever unmasked. Errors: BadShare, BadMessage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from client_sdk.secagg.advertisement import Advertisement
from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.errors import BadMessage, BadShare
from client_sdk.secagg.lanes import Lanes
from client_sdk.secagg.masks import Masker, Sign, pair_seed, pair_sign, self_seed
from client_sdk.secagg.rebuild import (
    SEARCH,
    Doubts,
    fits_mask_key,
    fits_self_mask,
    rebuild_mask_key,
    rebuild_self_mask,
)
from client_sdk.secagg.roster import MaskingCohort
from client_sdk.secagg.shamir import combine_pieces, lagrange_at_zero, require_shares
from client_sdk.secagg.survivors import Survivors
from client_sdk.secagg.unmask import RevealedShares
from client_sdk.secagg.wrong_shares import wrong_holders


@dataclass(frozen=True, repr=False)
class OpenedSum:
    """The rebuilt secrets by place, the wrong shares, and the dealers whose secret could not be rebuilt."""

    secrets: dict[int, bytes]
    """32 bytes each: self-mask secrets of survivors, private mask keys of the others. Delete them with the round."""
    wrong: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Dealer -> the holders whose shares of its secret were found to be wrong and were excluded."""
    lost: tuple[int, ...] = ()
    """Dealers whose t or more shares give no secret that fits the commitment: they, or too many holders, cheated. The
    attempt cannot be finished."""

    @property
    def complete(self) -> bool:
        """Whether the sum can be unmasked."""
        return not self.lost


class Opening:
    """Collects revealed shares, and rebuilds the secrets once there are enough."""

    def __init__(self, cohort: MaskingCohort, survivors: Survivors, sharers: Collection[int]) -> None:
        """``sharers``: the places whose shares were delivered; their peers masked with them."""
        if not survivors.members <= set(sharers):
            raise BadMessage("a survivor never shared")
        self.cohort, self.survivors, self.sharers = cohort, survivors, tuple(sorted(sharers))
        self._dealt = frozenset(self.sharers)
        self._revealed: dict[int, RevealedShares] = {}
        self._alike = True
        """Whether each device that revealed holds a share of every sharer, as in a complete graph."""

    def take(self, revealed: RevealedShares) -> None:
        """Add one survivor's shares. BadMessage, with nothing added, for a dealer whose shares it does not hold, and
        for a second response."""
        if revealed.place in self._revealed:
            raise BadMessage(f"device {self.cohort.device(revealed.place)} has revealed its shares before")
        dealers = tuple([dealer for dealer, _, _ in revealed.shares])
        held = self._dealt.intersection(self.cohort.graph.holders(revealed.place))  # holding shares is symmetric
        if not held.issuperset(dealers):
            raise BadMessage("a share is revealed that its sender does not hold")
        self._revealed[revealed.place] = revealed
        self._alike = self._alike and dealers == self.sharers

    @property
    def lacking(self) -> tuple[int, ...]:
        """Places whose secret has fewer than t shares so far: empty when ``open`` can be tried."""
        threshold = self.cohort.parameters.threshold
        if self._alike:
            return self.sharers if len(self._revealed) < threshold else ()
        return tuple(place for place, shares in self._by_dealer().items() if len(shares) < threshold)

    def open(self) -> OpenedSum:
        """Rebuild and check every secret that is needed. BadShare where shares are still missing."""
        if self.lacking:
            raise BadShare(f"the secrets of {len(self.lacking)} devices lack shares")
        secrets = self._at_once() if self._alike else {}
        rest = [place for place in self.sharers if place not in secrets]
        by_dealer = self._by_dealer() if rest else {}
        wrong, lost = {}, []
        threshold = self.cohort.parameters.threshold
        doubts = Doubts(set(wrong_holders([by_dealer[place] for place in rest], threshold)), SEARCH)
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
        return OpenedSum(secrets, wrong, tuple(lost))

    def _at_once(self) -> dict[int, bytes]:
        """The secrets that the first t holders' shares give: all of them, unless a share is wrong. One set of holders
        has one set of coefficients, so the shares are combined column by column."""
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
        """(seed, sign) of each mask to add to the survivors' sum: in any order and by any number of workers, since
        addition modulo 2^b is commutative.

        A survivor's own mask is subtracted. Where a peer dropped out, the sum still holds the survivor's side of their
        mask, and adding the peer's side cancels it.
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
    """Add the masks to ``total``, in place; ``cut`` it to b bits afterwards. Memory: one block of key stream.

    ``first``: the lane at which ``total`` begins, a multiple of 16, where several workers have a part each.
    """
    try:
        for seed, sign in masks:
            masker.apply(total, seed, sign, first)
    finally:
        masker.wipe()
