"""Follows the events of secure rounds in a run's log: what each does to the round, its phase and its deadline.

``SecureFollowing`` is a part of ``follow.TrackedRun``. Like it, it is written from the pages and not from the engine.
"""

from __future__ import annotations

from typing import Any

from coordinator.store.port import EventRow
from tests.explorer.faults import Broken
from tests.explorer.followed_run import Following
from tests.explorer.round_ending import RoundEnding
from tests.explorer.secure.account import EXCHANGES, GroupAccount, Numbers, SecureAccount, in_dispute, numbers_of
from tests.explorer.secure.vectors import header_of

OF_ATTEMPT = (
    "Announced", "Advertised", "Rostered", "Shared", "Masked", "Complained", "PairsOpened", "Faulted", "Signed",
    "Revealed", "Opened", "OpeningFailed", "Spent", "Declined",
)  # fmt: skip
"""Events of one attempt."""
SECURE_EVENTS = (*OF_ATTEMPT, "Discarded", "Advanced", "Unbarred", "Vouched")
SENT = {
    "Advertised": ("advertised", ("collecting",)),
    "Shared": ("shared", ("sharing",)),
    "Masked": ("masked", ("masking",)),
    "Signed": ("signed", ("agreeing", "unmasking", "committing")),
    "Revealed": ("revealed", ("unmasking",)),
}
"""Message -> its exchange, and the phases in which it counts."""


MOST_DISPUTES = 8
"""So many are remembered of each device that complains, the newest."""
BARRED_ROUNDS = 10
"""For how many rounds a device is barred where the plan does not say it."""


class SecureFollowing(Following):
    """The methods take the next event of a secure round, and return the rounds that ended with it."""

    __slots__ = ()

    # ------------------------------------------------------------ from the draw to the roster

    def _secure_drawn(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        """A draw of a secure round. What it leaves out is counted apart."""
        cohort = dict(body["cohort"])
        unfit = cohort.keys() & self.unfit
        if unfit:
            raise Broken("spent", f"round {self.round} of {self.run} drew {sorted(unfit)}, who cannot contribute to it")
        account = SecureAccount(self.plan, frozenset(cohort))
        left_out = body["unspendable"]
        if len(cohort) < account.least:
            marked = left_out - body.get("barred", 0)
            if marked and self.waiting + left_out >= account.least:
                self.exhausted = True
            return self._missed(waits=self.exhausted and self.waiting < account.least)
        if len(cohort) != min(self.plan["cohort"]["select"], body["waiting"]):
            raise self._odd(event, f"{len(cohort)} were drawn from {body['waiting']}")
        self.cohort, self.phase, self.exhausted = cohort, "collecting", False
        self.secure, self.drawn_at = account, event.at
        account.claimed = set(cohort)
        self.pools[self.round] = body["pool"]
        self.set_deadline(event.at + self.plan["cohort"]["collect_s"])
        return []

    def _of_secure_round(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if event.kind == "Discarded":
            self.undeleted.pop(body["round"], None)
            return []
        if event.kind == "Advanced":
            return self._advanced(event, body)
        if event.kind == "Vouched":
            if self.over or not 0 < body["version"] == self.version:
                raise self._odd(event, f"the run is at version {self.version}")
            self.vouched = body["version"], body["signature"]
            self.declined.clear()
            return []
        if event.kind == "Unbarred":
            if self.barred.pop(body["device"], None) is None:
                raise self._odd(event, "the device is not barred")
            return []
        account = self.secure
        if account is None or body["attempt"] != account.attempt or self.phase in ("idle", "selecting"):
            raise self._odd(event, f"the run is {self.phase}, attempt {account and account.attempt}")
        if event.kind in SENT:
            return self._sent(event, body, account)
        match event.kind:
            case "Announced":
                self._announced(event, body, account)
            case "Rostered":
                self._rostered(event, body, account)
            case "Complained":
                return self._complained(event, body, account)
            case "PairsOpened":
                return self._pairs_opened(event, body, account)
            case "Opened" | "OpeningFailed":
                return self._opening_ended(event, body, account)
            case "Faulted":
                return self._faulted(event, body["device"], account)
            case "Spent" | "Declined":
                if event.kind == "Spent":
                    self._mark(body["device"])
                else:
                    self.declined.add(body["device"])
                return self._gone(event, body["device"], account)
            case _:
                raise self._odd(event, "this kind of event is unknown here: see docs/faults.md")
        return []

    def _declined_late(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        """A device declines in a round that is over, and the model is the same."""
        over = body["round"] < self.round or (body["round"] == self.round and self.phase == "idle")
        if not over or body["round"] <= self.made_in or self.status in ("finished", "stopped"):
            raise self._odd(event, f"the run is at round {self.round}, of which {self.made_in} made the model")
        self.declined.add(body["device"])
        return []

    def _announced(self, event: EventRow, body: dict[str, Any], account: SecureAccount) -> None:
        if account.header or self.phase != "collecting":
            raise self._odd(event, "the attempt has a header")
        account.header, account.expires_at = body["header"], float(body["expires_at"])
        header = header_of(bytes.fromhex(account.header))
        if (header.run, header.round, header.attempt) != (self.run, self.round, account.attempt):
            raise self._odd(event, f"its header is of round {header.round}, attempt {header.attempt}")
        if header.expires_at != account.expires_at:
            raise self._odd(event, f"its header expires at {header.expires_at}")
        if account.attempt:
            self._enter("collecting", event.at)
        elif self.deadline is not None:
            self.set_deadline(min(self.deadline, account.expires_at))

    def _rostered(self, event: EventRow, body: dict[str, Any], account: SecureAccount) -> None:
        groups = [self._group(event, group, account) for group in body["groups"]]
        devices, n = sorted(device for group in groups for device in group.order), len(account.advertised)
        if self.phase != "sharing" or account.roster or devices != sorted(account.advertised):
            raise self._odd(event, f"the run is {self.phase}, {sorted(account.advertised)} have advertised")
        count = account.section.get("groups", 1)
        if [len(group.order) for group in groups] != [len(range(number, n, count)) for number in range(count)]:
            raise self._odd(event, f"{n} devices are not divided into {count} groups as evenly as can be")
        account.roster, account.groups = body["digest"], groups
        self._enter("sharing", event.at)

    def _group(self, event: EventRow, group: dict[str, Any], account: SecureAccount) -> GroupAccount:
        order, n = list(group["order"]), len(group["order"])
        wanted, places = numbers_of(account.section, n), list(group.get("ring", ()))
        if order != sorted(order):
            raise self._odd(event, "the devices of a group do not stand in order")
        if Numbers(group.get("neighbours", 0), group["threshold"], group["signers"]) != wanted:
            raise self._odd(event, f"a group of {n} devices has {wanted}")
        if sorted(places) != (list(range(n)) if wanted.neighbours else []):
            raise self._odd(event, f"the {n} devices do not stand around a ring of {len(places)} places")
        if group["fewest"] < account.section["minimum_cohort"]:
            raise self._odd(event, "a list may be shorter than the plan's smallest cohort")
        found = GroupAccount(order, wanted.threshold, wanted.signers, group["fewest"])
        found.ring, found.neighbours = [order[place] for place in places], wanted.neighbours
        found.margin = self._margin(found) // 2**self.short
        return found

    def _margin(self, group: GroupAccount) -> int:
        """What the list of a group has above its signatures, where none was short of it."""
        n, named = len(group.order), self.plan["secure"].get("margin")
        share = max([50, *self.lists_lost[-5:]])
        return min(max(1, -(-n * share // 1000)) if named is None else int(named), (n - group.signers) // 2)

    def _listed(self, account: SecureAccount, lost: set[str]) -> None:
        """The lists are over; these have vanished from them."""
        self.lists_lost.append(-(-1000 * len(lost) // len(account.masked)))

    def _go_on_with(
        self, account: SecureAccount, groups: list[GroupAccount], lost: set[str]
    ) -> list[RoundEnding] | None:
        """The lists are shown, and these groups can go on: the others fall, and None is returned; or the round is
        abandoned, where they are too few. ``lost``: who has vanished from all lists."""
        if account.enough(groups, account.masked):
            self._only(account, groups)
            return None
        if lost:
            self._listed(account, lost)
        return self._abandon()

    def _only(self, account: SecureAccount, groups: list[GroupAccount]) -> None:
        """The other groups fall: their devices are out, and nothing that they have sent counts."""
        for group in [one for one in account.standing if one not in groups]:
            group.fallen, gone = True, account.here(group.order)
            account.excluded |= gone
            account.claimed -= gone
            for device in group.order:
                self.reported.pop(device, None)
                if device in account.masked:
                    account.given_up[account.masked[device]] = device
                for exchange in EXCHANGES[1:]:
                    account.drop(exchange, device)

    # ------------------------------------------------------------ the messages of devices

    def _sent(self, event: EventRow, body: dict[str, Any], account: SecureAccount) -> list[RoundEnding]:
        device, (exchange, phases) = body["device"], SENT[event.kind]
        before = {"advertised": self.cohort, "shared": account.order, "masked": account.shared}
        due = {**before, "signed": account.masked, "revealed": account.signed}[exchange]
        mine: dict[str, str] = getattr(account, exchange)
        gone = device in account.excluded or (device in account.withdrawn and exchange not in ("signed", "revealed"))
        if self.phase not in phases:
            raise Broken("late-report", f"{device} {exchange} in round {self.round} while the run was {self.phase}")
        if device in mine:
            raise Broken("counts-once", f"{device} {exchange} twice in round {self.round} of {self.run}")
        if device not in due or gone or not account.header or (exchange == "masked" and device in account.disputing):
            raise self._odd(event, "the device has no open place in this exchange")
        mine[device] = body["digest"]
        account.came[exchange] += body["bytes"]
        if exchange == "masked":
            self.reported[device] = (body["digest"], 0)
        if exchange == "signed":
            self._mark(device)
        if exchange == "revealed":
            account.claimed.discard(device)
        return self._go_on(event, account)

    def _complained(self, event: EventRow, body: dict[str, Any], account: SecureAccount) -> list[RoundEnding]:
        device, dealers = body["device"], list(body["dealers"])
        fair = device in account.shared and set(dealers) <= account.shared.keys() - {device}
        since = max(account.began, account.recovered_at)
        late = event.at > min(since + account.section["exchange_s"], account.expires_at)
        if self.phase != "masking" or late or not fair or device in account.masked or device in account.complained:
            raise self._odd(event, "the device cannot complain of these now")
        account.complained[device] = body["digest"]
        account.lines |= {(device, dealer) for dealer in dealers}
        account.unanswered |= {(device, dealer) for dealer in dealers}
        account.grant(event.at)
        others = {dealer: last for dealer, last in self.disputes.get(device, {}).items() if dealer not in dealers}
        newest = [*others.items(), *((dealer, self.round) for dealer in sorted(dealers))]
        self.disputes[device] = dict(newest[-MOST_DISPUTES:])
        return self._go_on(event, account)

    def _pairs_opened(self, event: EventRow, body: dict[str, Any], account: SecureAccount) -> list[RoundEnding]:
        device, opened = body["device"], {(holder, body["device"]) for holder in body["holders"]}
        new = opened & account.unanswered
        if self.phase != "masking" or not new or not opened <= account.lines or device not in account.here(self.cohort):
            raise self._odd(event, "no complaint of this device is open")
        account.unanswered -= opened
        account.older.add(body["digest"])
        account.grant(event.at)
        return self._go_on(event, account)

    def _put_out(self, account: SecureAccount, dealers: set[str], at: float) -> None:
        """They have not answered the complaints of them."""
        for dealer in dealers:
            if dealer in account.masked:
                self.invalid.add(dealer)
            account.excluded.add(dealer)
            account.claimed.discard(dealer)
            account.drop("masked", dealer)
            self.reported.pop(dealer, None)
            account.grant(at)

    def _faulted(self, event: EventRow, device: str, account: SecureAccount) -> list[RoundEnding]:
        if self.phase not in ("collecting", "sharing", "masking") or device not in account.here(self.cohort):
            raise self._odd(event, "the device has no open place in the round")
        digest = account.masked.get(device)
        if digest is not None:
            self.invalid.add(device)
        account.excluded.add(device)
        account.claimed.discard(device)
        return self._without(event, device, account, unmask=False)

    def _gone(self, event: EventRow, device: str, account: SecureAccount) -> list[RoundEnding]:
        """The device leaves the round. A vector that it has masked stays in the sum."""
        if device not in self.cohort:
            raise self._odd(event, "the device was not selected")
        if device in account.withdrawn | account.excluded or self.phase == "committing":
            return []
        account.withdrawn.add(device)
        account.claimed.discard(device)
        self.withdrawn.add(device)
        return self._without(event, device, account, unmask=True)

    def _without(self, event: EventRow, device: str, account: SecureAccount, *, unmask: bool) -> list[RoundEnding]:
        if self.phase == "collecting" or (self.phase == "sharing" and not account.roster):
            was_in = device in account.advertised
            account.drop("advertised", device)
            if self.phase == "sharing" and was_in and len(account.advertised) < account.least:
                return self._anew(event, account)
        elif self.phase == "sharing":
            account.drop("shared", device)
        elif self.phase == "masking" and not unmask:
            account.drop("masked", device)
            self.reported.pop(device, None)
            if device in {dealer for _, dealer in account.unanswered}:
                account.grant(event.at)
        return self._go_on(event, account)

    def _mark(self, device: str) -> None:
        """The device contributes to this model no more, in whichever run."""
        self.marks.setdefault(self.tensors, set()).add(device)

    # ------------------------------------------------------------ when an exchange ends

    def _go_on(self, event: EventRow, account: SecureAccount, *, time_is_up: bool = False) -> list[RoundEnding]:
        """Ends the exchange where nobody is awaited, or enough is there, or the time is up."""
        match self.phase:
            case "collecting":
                have, left = len(account.advertised), len(account.here(self.cohort))
                if have >= account.most or (have >= account.least and (time_is_up or have == left)):
                    self.phase = "sharing"
                    self.set_deadline(account.expires_at)
                elif time_is_up or left < account.least:
                    return self._abandon(short=time_is_up)
            case "sharing" if account.roster or time_is_up:
                waited_for = account.here(account.order) - account.shared.keys()
                return self._exchanged(event, account, account.shared, waited_for, "masking", time_is_up)
            case "masking":
                accused = account.accused
                everybody = time_is_up and event.at < account.expires_at
                self._put_out(account, accused if everybody else accused & account.withdrawn, event.at)
                settled = {holder for holder, _ in account.lines} - account.disputing
                waits = account.here(settled) - account.masked.keys()
                if time_is_up and waits and account.settle_by > event.at:
                    time_is_up = False
                waited_for = account.here(account.shared) - (account.masked.keys() - account.accused)
                ended = self._exchanged(event, account, account.masked, waited_for, "agreeing", time_is_up)
                if self.phase == "masking" and account.lines and self.deadline is not None:
                    self.set_deadline(max(self.deadline, account.settle_by))
                return ended
            case "agreeing":
                return self._agree(event, account, time_is_up)
            case "unmasking" if not account.opening:
                waited_for = account.here(account.masked) - account.revealed.keys()
                lacking = account.lacks(account.revealed, account.shared)
                if lacking and waited_for and not time_is_up:
                    return []
                able = [group for group in account.standing if lacking.isdisjoint(group.order)]
                over = self._go_on_with(account, able, account.masked.keys() - account.revealed.keys())
                account.opening = over is None
                return over or []
            case "unmasking" if time_is_up:
                self.set_deadline(None)
            case _:
                pass
        return []

    def _exchanged(
        self,
        event: EventRow,
        account: SecureAccount,
        have: dict[str, str],
        waited_for: set[str],
        following: str,
        time_is_up: bool,
    ) -> list[RoundEnding]:
        if event.at >= account.expires_at:
            return self._anew(event, account)
        listed = following == "agreeing"
        needed = account.needed(listed=listed)
        able = account.complete(have, listed=listed) if len(have) >= needed else []
        suffices = account.enough(able, have)
        if waited_for and not time_is_up and len(have) + len(waited_for) >= needed:
            if suffices:
                exchange_s = account.section["exchange_s"]
                quiet_s = account.section.get("quiet_s") or exchange_s / 4
                since = max(account.began, account.recovered_at)
                self.set_deadline(min(event.at + quiet_s, since + exchange_s, account.expires_at))
            return []
        if suffices:
            self._only(account, able)
            self._enter(following, event.at)
            if listed:
                account.claimed &= set(have)
                if self.private is not None:  # from now on the sum of these may be opened
                    self.private.debit({device: (digest, 0) for device, digest in have.items()})
                    self.private.counts(have)
                whole = [len(one.among(have)) >= one.signers + self._margin(one) for one in account.standing]
                self.short = 0 if all(whole) else self.short
            return []
        self.short += listed and account.enough(account.complete(have), have)
        return self._anew(event, account, waited_for if time_is_up and account.roster else set())

    def _agree(self, event: EventRow, account: SecureAccount, time_is_up: bool) -> list[RoundEnding]:
        lacking, waited_for = account.lacks(account.signed, account.shared), account.here(account.masked)
        for group in account.standing:
            have = group.among(account.signed)
            left = group.among(waited_for) - have
            is_done = len(have) >= group.signers and lacking.isdisjoint(group.order)
            if not is_done and left and not time_is_up and len(have) + len(left) >= group.signers:
                return []
        told = account.signed.keys() - account.lacks(account.signed, account.signed)  # who sees enough signatures
        unheld = account.lacks(told, account.shared)
        able = [group for group in account.standing if unheld.isdisjoint(group.order)]
        able = [group for group in able if len(group.among(account.signed)) >= group.signers]
        ended = self._go_on_with(account, able, account.masked.keys() - account.signed.keys())
        if ended is None:
            self._enter("unmasking", event.at)
        return ended or []

    def _anew(self, event: EventRow, account: SecureAccount, silent: set[str] = frozenset()) -> list[RoundEnding]:  # type: ignore[assignment]
        """Another attempt, without those that failed; or none, where they are too few or the plan allows no more."""
        known = {(holder, dealer) for holder, dealers in self.disputes.items() for dealer in dealers}
        account.excluded |= (silent | in_dispute(account.lines, known)) - account.excluded
        if account.attempt + 1 >= account.section["attempts"] or len(account.here(self.cohort)) < account.least:
            return self._abandon()
        self.secure = account.renewed()
        self.reported = {}
        self.phase = "collecting"
        self.set_deadline(event.at + account.section["exchange_s"])
        return []

    def _enter(self, phase: str, at: float) -> None:
        account = self.secure
        if account is not None:
            self.phase, account.began = phase, at
            self.set_deadline(min(at + account.section["exchange_s"], account.expires_at))

    # ------------------------------------------------------------ the sums

    def _opening_ended(self, event: EventRow, body: dict[str, Any], account: SecureAccount) -> list[RoundEnding]:
        group = account.groups[body.get("group", 0)]
        if self.phase != "unmasking" or not account.opening or group.fallen or group.sum:
            raise self._odd(event, "no opening of this group is under way")
        if not body.get("lost"):
            now = {device: self.suspicion.get(device, 0) for device in group.among(account.masked)}
            good = event.kind == "Opened"
            self.suspicion |= {device: held // 2 if good else min(48, held + 8) for device, held in now.items()}
        if event.kind == "OpeningFailed":
            for device in body["lost"]:
                self.barred[device] = self.round + account.section.get("barred_rounds", BARRED_ROUNDS) + 1
            ended = self._go_on_with(account, [one for one in account.standing if one is not group], set())
            if ended is not None:
                return ended
        else:
            group.sum, account.weight = body["digest"], account.weight + body["weight"]
        if not all(one.sum for one in account.standing):
            return []
        self._listed(
            account, (account.masked.keys() - account.revealed.keys()) & (account.withdrawn | account.excluded)
        )
        account.opening = False
        account.claimed = set()
        self.phase = "committing"
        self.set_deadline(None)
        return []

    def _advanced(self, event: EventRow, body: dict[str, Any]) -> list[RoundEnding]:
        if not self.exhausted or self.phase not in ("selecting", "leasing") or self.status != "running":
            raise self._odd(event, f"the run is {self.status}, {self.phase}, exhausted {self.exhausted}")
        self.phase, self.kind, self.advancing = "committing", "secure", body["by"]
        self.away = False
        self.set_deadline(None)
        return []
