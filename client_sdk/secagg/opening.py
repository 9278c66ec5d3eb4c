"""The server's arithmetic at the end of an attempt: the sum, from masked vectors and revealed shares.

For each device that shared it rebuilds exactly one secret: a survivor's self-mask secret, or the mask key of a device
that dropped out. Each is checked against what the device advertised. The masks derived from them are then removed from
the sum of the masked vectors; no device's own vector is ever unmasked. Errors: BadShare, BadMessage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from client_sdk.secagg.agreement import AgreementKey
from client_sdk.secagg.errors import BadMessage, BadShare
from client_sdk.secagg.lanes import Lanes
from client_sdk.secagg.masks import Masker, Sign, pair_seed, pair_sign, self_seed
from client_sdk.secagg.roster import Advertisement, MaskingCohort, commitment_to
from client_sdk.secagg.shamir import combine
from client_sdk.secagg.survivors import RevealedShares, Survivors


@dataclass(frozen=True, repr=False)
class OpenedSum:
    """The rebuilt secrets by place, and the dealers whose secret could not be rebuilt."""

    secrets: dict[int, bytes]
    """32 bytes each: self-mask secrets of survivors, private mask keys of the others. Delete them with the round."""
    lost: tuple[int, ...] = ()
    """Dealers whose shares, each of which matches the digest that its dealer signed, do not give the secret that the
    dealer committed to: they cheated, and the attempt cannot be finished."""

    @property
    def complete(self) -> bool:
        """Whether the sum can be unmasked."""
        return not self.lost


def rebuild_self_mask(shares: Mapping[int, bytes], threshold: int, advertised: Advertisement) -> bytes:
    """The secret behind a survivor's own mask, from the first ``threshold`` of ``shares`` (x -> 33 bytes). BadShare
    where it does not fit the commitment."""
    secret = combine(shares, threshold)
    if commitment_to(secret) != advertised.commitment:
        raise BadShare("the shares do not give the secret that the device committed to")
    return secret


def rebuild_mask_key(shares: Mapping[int, bytes], threshold: int, advertised: Advertisement) -> bytes:
    """The private mask key of a device that dropped out, from the first ``threshold`` of ``shares`` (x -> 33 bytes).
    BadShare where it does not fit the advertised key."""
    secret = combine(shares, threshold)
    if AgreementKey(secret).public != advertised.mask_key:
        raise BadShare("the shares do not give the private half of the key that the device advertised")
    return secret


class Opening:
    """Collects revealed shares, and rebuilds the secrets once there are enough."""

    def __init__(
        self,
        cohort: MaskingCohort,
        survivors: Survivors,
        sharers: Collection[int],
        lacks: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        """``sharers``: the places whose shares were delivered; their peers masked with them. ``lacks``: survivor ->
        dealers that are out and with which it did not mask, since it does not hold their pair."""
        if not survivors.members <= set(sharers):
            raise BadMessage("a survivor never shared")
        self.cohort, self.survivors, self.sharers = cohort, survivors, tuple(sorted(sharers))
        self._lacks = lacks or {}
        self._revealed: set[int] = set()
        self._shares: dict[int, dict[int, bytes]] = {place: {} for place in self.sharers}
        """Dealer -> its holder's x -> the share."""

    def take(self, revealed: RevealedShares) -> None:
        """Add one survivor's shares, which were compared with their dealers' digests when they arrived. BadMessage,
        with nothing added, for a dealer whose shares it does not hold, and for a second response."""
        place = revealed.place
        if place in self._revealed:
            raise BadMessage(f"device {self.cohort.device(place)} has revealed its shares before")
        held = self._shares.keys() & set(self.cohort.graph.holders(place))  # holding shares is symmetric
        if not held.issuperset(dealer for dealer, _, _ in revealed.shares):
            raise BadMessage("a share is revealed that its sender does not hold")
        self._revealed.add(place)
        for dealer, _, share in revealed.shares:
            self._shares[dealer][place + 1] = share

    @property
    def lacking(self) -> tuple[int, ...]:
        """Places whose secret has fewer than t shares so far: empty when ``open`` can be tried."""
        threshold = self.cohort.parameters.threshold
        return tuple(place for place, shares in self._shares.items() if len(shares) < threshold)

    def open(self) -> OpenedSum:
        """Rebuild and check every secret that is needed. BadShare where shares are still missing."""
        if self.lacking:
            raise BadShare(f"the secrets of {len(self.lacking)} devices lack shares")
        secrets, lost = {}, []
        for place, shares in self._shares.items():
            rebuild = rebuild_self_mask if place in self.survivors.members else rebuild_mask_key
            shown = self.cohort.roster.entries[place].advertisement
            try:
                secrets[place] = rebuild(shares, self.cohort.parameters.threshold, shown)
            except BadShare:
                lost.append(place)
        return OpenedSum(secrets, tuple(lost))

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
                if peer in self.survivors.members and place not in self._lacks.get(peer, ()):
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
