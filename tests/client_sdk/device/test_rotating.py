"""A key is rotated at the owner's wish, and whatever interrupts that loses no key: the same question is asked again."""

from __future__ import annotations

import pytest

from client_sdk.credentials.certificate import Certificate
from client_sdk.device.actions import Action, Certify, Reply, RequestRefused, Save, Sleep
from client_sdk.device.enrolling import rotate_key
from client_sdk.device.record import Record
from client_sdk.identity import DeviceKey, key_of
from client_sdk.protocol.problems import problem
from tests.client_sdk.device.scripted import Driver, ScriptedCoordinator
from tests.client_sdk.device.sessions import entropy, run


@pytest.fixture
def driver() -> Driver:
    """A device that has joined one round."""
    made = Driver(ScriptedCoordinator(rounds=1))
    run(made)
    return made


class Rotation:
    """Rotations of this device's key, of which each may be interrupted. ``asked`` has the next key of each question,
    and ``slept`` the windows between them."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.draw = entropy()
        self.draw(1)  # the first key was drawn from the beginning of such a stream
        self.asked: list[str] = []
        self.slept: list[float] = []
        self.busy = 0
        """How many of the next questions the authority answers with *busy*."""

    @property
    def record(self) -> Record:
        found = self.driver.storage.load()
        assert found is not None
        return found

    def rotate(self, *, dies_after: type[Action] | None = None) -> None:
        """``dies_after``: the action after which the process is killed, before it has seen the reply."""
        session, reply = rotate_key(self.record, entropy=self.draw, at=self.driver.clock), None
        while True:
            try:
                action = session.send(reply)
            except StopIteration:
                return
            reply = self._perform(action)
            if dies_after is not None and isinstance(action, dies_after):
                return

    def _perform(self, action: Action) -> Reply:
        if isinstance(action, Save):
            self.driver.storage.save(action.record)
        elif isinstance(action, Sleep):
            self.slept.append(action.max_s)
        elif isinstance(action, Certify):
            self.asked.append(self.record.next_key_seed)
            if self.busy:
                self.busy -= 1
                return RequestRefused(problem("busy", "The ledger is locked.").problem, self.driver.clock)
            return self.driver.coordinator.authority.perform(action, self.record, self.key, self.driver.clock)
        return None

    @property
    def key(self) -> DeviceKey:
        found = key_of(self.record.key_seed)
        assert isinstance(found, DeviceKey)
        return found


def certificate_of(record: Record) -> Certificate:
    return Certificate.parse(bytes.fromhex(record.certificate))


def test_the_new_key_has_the_id_of_the_old_one_and_is_registered_before_it_is_used(driver: Driver) -> None:
    rotation = Rotation(driver)
    before = rotation.record
    rotation.rotate()
    after = rotation.record
    assert (after.key_seed, after.next_key_seed) == (rotation.asked[0], "")
    assert certificate_of(after).id == certificate_of(before).id
    assert certificate_of(after).public_key.hex() == rotation.key.public_hex
    assert (before.registered is not None, after.registered) == (True, None)


@pytest.mark.parametrize("dies_after", [Save, Certify])
def test_a_rotation_that_is_killed_goes_on_with_the_key_that_it_has_saved(
    driver: Driver, dies_after: type[Action]
) -> None:
    """With another one, it would be refused for ever: the authority has certified the first, and revoked the old."""
    rotation = Rotation(driver)
    rotation.rotate(dies_after=dies_after)
    following = rotation.record.next_key_seed
    assert following
    rotation.rotate()
    assert set(rotation.asked) == {following}
    assert (rotation.record.key_seed, rotation.record.next_key_seed) == (following, "")


def test_an_authority_that_is_busy_is_asked_again_later(driver: Driver) -> None:
    rotation = Rotation(driver)
    rotation.busy = 3
    rotation.rotate()
    assert len(set(rotation.asked)) == 1
    assert (len(rotation.asked), rotation.slept) == (4, sorted(rotation.slept))
    assert len(rotation.slept) == 3
    assert rotation.record.key_seed == rotation.asked[0]
