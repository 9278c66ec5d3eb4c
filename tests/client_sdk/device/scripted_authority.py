"""A real authority in memory that a scripted device asks without HTTP: for tests of the session."""

from __future__ import annotations

from client_sdk.credentials.certificate import Certificate, HolderClass
from client_sdk.credentials.enrolment_token import EnrolmentToken
from client_sdk.device.actions import Certified, Certify, Failed, RequestRefused
from client_sdk.device.record import Record
from client_sdk.identity import DeviceKey, key_of
from client_sdk.protocol.problems import ProblemError
from coordinator.authority.issuer import DAY_S
from tests.coordinator.authority.world import AuthorityWorld, Holder

START = 1000.0
"""When scripted devices begin: Unix seconds."""


class ScriptedAuthority(AuthorityWorld):
    """``asked`` has what was asked for; ``enrolment`` is a token for many devices."""

    def __init__(self, holder: HolderClass = "device") -> None:
        super().__init__()
        self.at = int(START)
        self.enrolment: EnrolmentToken = self.token(holder=holder, uses=100, lasts_s=900 * DAY_S)
        self.asked: list[str] = []

    @property
    def holders(self) -> set[str]:
        """The ids that were given."""
        return {what for _, event, what in self.audit() if event == "enrolled"}

    def perform(
        self, action: Certify, record: Record, signer: DeviceKey, at: float
    ) -> Certified | RequestRefused | Failed:
        """Answer as the driver of a device answers, at this time by everybody's clock."""
        self.at = int(at)
        self.asked.append(action.what)
        if action.authority.digest != self.issuer.trusted.digest.hex():
            return Failed("This is the key of another authority than the one that was named.", at)
        holder = Holder(self, f"holder {len(self.asked)}", signer)
        try:
            return Certified(self._certificate(action, record, holder), at)
        except ProblemError as error:
            return RequestRefused(error.problem, at)

    def _certificate(self, action: Certify, record: Record, holder: Holder) -> Certificate:
        match action.what:
            case "enrol":
                assert action.token is not None
                return holder.enrol(action.token, label=action.label)
            case "renew":
                return holder.renew()
            case "rotate":
                following = key_of(record.next_key_seed)
                assert following is not None
                holder.certificate = Certificate.parse(bytes.fromhex(record.certificate))
                answer = self.answers.rotate(holder.rotation(following))
                return Certificate.parse(bytes.fromhex(answer.certificate))
