"""How long what an authority signs lasts, and where the authority is: ``authority.toml`` in its folder."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from client_sdk.credentials.enrolment_token import require_token_url

HOUR_S = 3_600
DAY_S = 24 * HOUR_S


class AuthorityPolicy(BaseModel):
    """Settings of one authority: frozen, validated. ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """Public URL, without a slash at its end: https, or http on loopback. Tokens name it, and requests are signed for
    it: where it changes, tokens that were handed out are void."""
    certificate_days: int = Field(default=90, ge=1, le=825)
    """How long a certificate is valid. Holders renew theirs in the second half. A revoked key stays on the list until
    its certificate has expired, so longer certificates make longer lists."""
    list_hours: int = Field(default=24, ge=1, le=168)
    """After how long a revocation list is out of date. Secure rounds stop then: it is the longest time for which a
    coordinator can hide a revocation from a device."""
    backdated_s: int = Field(default=600, ge=0, le=86_400)
    """How long before its issue a certificate's validity begins, for devices whose clocks are behind."""

    @field_validator("url")
    @classmethod
    def _sendable(cls, value: str) -> str:
        require_token_url(value)
        return value

    @property
    def certificate_s(self) -> int:
        """``certificate_days`` in seconds."""
        return self.certificate_days * DAY_S

    @property
    def list_s(self) -> int:
        """``list_hours`` in seconds."""
        return self.list_hours * HOUR_S

    def to_toml(self) -> str:
        """The text of the file. A JSON string or number is one of TOML too."""
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.model_dump().items())

    @classmethod
    def from_toml(cls, text: str) -> AuthorityPolicy:
        """Reads ``to_toml``. ValueError."""
        found: dict[str, Any] = tomllib.loads(text)
        return cls(**found)
