"""Every setting of a coordinator process, with its unit, its range and the reason for its default.

Values come from arguments of ``quorate serve``, else from the environment (``QUORATE_PORT=9000``), else from the
defaults below. What belongs to one run is in its plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from client_sdk.credentials.enrolment_token import require_token_url
from client_sdk.credentials.identity_keys import TrustedAuthority
from client_sdk.http.urls import require_https
from coordinator.access.roles import Grant
from coordinator.datafolder import AUDIT_KEY_FILE, AUTHORITY_FOLDER, BLOBS_FOLDER, database_url
from coordinator.network_settings import MIB, NetworkSettings

KIB = 1024
GIB = 1024 * MIB


class Settings(NetworkSettings):
    """Settings of one coordinator process: frozen, validated, each with a working default. ValidationError.

    Where it listens, and the limits by address and caller: ``network_settings``.
    """

    model_config = SettingsConfigDict(env_prefix="QUORATE_", frozen=True, extra="forbid", populate_by_name=True)

    # ------------------------------------------------------------ where things are

    data: Path = Path("quorate-data")
    """Folder of the database and the blobs. Made if it is missing, readable by its owner only."""
    database: str | None = None
    """SQLAlchemy URL. None: SQLite in the data folder. ``QUORATE_DATABASE=postgresql+psycopg://...`` for replicas."""
    audit_key: Path | None = None
    """File of the Ed25519 key (PEM) that signs the audit. None: ``audit-key.pem`` in the data folder. Made if it is
    missing. Elsewhere, as in ``QUORATE_AUDIT_KEY=/etc/quorate/audit-key.pem``, a copy of the data folder has no key."""

    # ------------------------------------------------------------ the authority

    authority: str | None = None
    """URL of the authority whose certificates are taken, from which its revocation list is fetched:
    ``https://authority.example:8471``. None: no device can register, unless the authority is inside
    (``quorate serve --dev-authority``)."""
    authority_key: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """The authority's public key in hexadecimal, as ``quorate authority show`` prints it. Needed with ``authority``."""
    dev_authority: bool = False
    """Whether an authority is inside this process, with its folder in the data folder, for trials on one machine. This
    coordinator could then make devices up; only for servers on loopback."""
    revocations_s: float = Field(default=60.0, gt=0, le=3600, allow_inf_nan=False)
    """Interval at which the revocation list is fetched: how long a revoked key may still be let in."""

    # ------------------------------------------------------------ operators

    oidc_issuer: str | None = None
    """The OpenID Connect issuer whose tokens operators may send beside API keys, as its claim ``iss`` names it:
    ``https://login.example/realms/ml``. None: API keys only."""
    oidc_audience: str | None = Field(default=None, min_length=1)
    """The audience (``aud``) that tokens must have. Needed with an issuer."""
    oidc_claim: str = Field(default="groups", min_length=1)
    """The claim that gives roles: a list of texts, or texts with spaces between. A dot goes into an object."""
    oidc_grants: dict[str, str] = Field(default={"viewer": "viewer", "operator": "operator", "owner": "owner"})
    """What each value of the claim gives, a role or a role and a scope, as JSON:
    ``QUORATE_OIDC_GRANTS='{"ml-admins": "owner", "team-a": "operator a-*"}'``. Other values give nothing."""

    oidc_client: str | None = Field(default=None, min_length=1)
    """The ``client_id`` under which the issuer knows the coordinator, so that browsers can log in there. Its
    redirect URI is ``<public URL>/v1/sessions/oidc/callback``. None: browsers log in with API keys."""
    oidc_client_secret: Path | None = None
    """File of the client's secret. None: it is a public client, without one."""
    oidc_scope: str = Field(default="openid", pattern=r"^openid( [!#-\[\]-~]+)*$")
    """What the login asks the issuer for. Some issuers put groups in their tokens for a scope of its own only:
    ``openid groups``."""

    # ------------------------------------------------------------ devices

    examples_cap: int = Field(default=100_000, ge=1, le=2**31)
    """Most examples a device may claim when it registers. It reports this number, and weights and selection use it."""
    max_hold_s: float = Field(default=55.0, ge=0, le=300, allow_inf_nan=False)
    """Longest time that a check-in is held open, whatever it asks for. Proxies cut requests idle for 60 to 100 s."""
    reread_s: float = Field(default=20.0, gt=0, le=60, allow_inf_nan=False)
    """Interval at which a held check-in and an event stream read again without a signal: the longest time that a change
    by another replica stays unnoticed. 10,000 waiting devices cost 500 reads a second at 20 s."""
    waiting_s: float = Field(default=60.0, gt=0, le=3600, allow_inf_nan=False)
    """How long a device stays in the pool after its check-in ended, so that it keeps its place when it reconnects."""
    pace_min_s: float = Field(default=5.0, ge=0, le=86_400, allow_inf_nan=False)
    """Start of the window from which a device without work draws its next check-in (pace steering)."""
    pace_max_s: float = Field(default=30.0, ge=0, le=86_400, allow_inf_nan=False)
    """End of that window. A wider window spreads the load when a whole fleet was refused at once."""

    # ------------------------------------------------------------ limits

    max_update_bytes: int = Field(default=2 * GIB, ge=KIB, le=64 * GIB)
    """Longest update body, whatever the plan's codec allows."""
    max_checkpoint_bytes: int = Field(default=16 * GIB, ge=KIB, le=256 * GIB)
    """Longest checkpoint that an operator may upload."""
    max_message_bytes: int = Field(default=256 * KIB, ge=4 * KIB, le=16 * MIB)
    """Longest JSON body. Plans and check-ins of real devices stay below 64 KiB."""
    uploads: int = Field(default=64, ge=1, le=4096)
    """Bodies received at the same time. The others wait in their sockets, by TCP flow control, without memory here."""
    uploads_per_caller: int = Field(default=4, ge=1, le=4096)
    """Bodies that one device, worker or key may be sending at the same time. Our clients send one, and after a lost
    connection a second one."""
    upload_disk_bytes: int = Field(default=256 * GIB, ge=MIB, le=2**50)
    """Disk for bodies that are being received, of all callers; a single body is always received. The default is that of
    64 of the longest updates twice: give less where the disk has less."""
    upload_memory_bytes: int = Field(default=MIB, ge=64 * KIB, le=GIB)
    """Memory for received bytes that are not written yet, shared by all uploads: each collects its part (64 to 256 KiB)
    before a thread hashes and writes it."""
    delta_memory_bytes: int = Field(default=256 * MIB, ge=0, le=64 * GIB)
    """Memory for differences of checkpoints, which devices that have an earlier one get in place of the whole. A longer
    checkpoint is always sent whole; 0: all are."""
    body_idle_s: float = Field(default=30.0, gt=0, le=600, allow_inf_nan=False)
    """A body of which no byte arrives for this long is dropped as truncated."""
    body_rate_min: float = Field(default=4 * KIB, gt=0, le=GIB, allow_inf_nan=False)
    """Slowest rate in bytes a second at which a body may arrive, after ``body_idle_s``: a body of n bytes may keep the
    coordinator waiting for body_idle_s + n / body_rate_min seconds. A telephone on GPRS sends 5 KiB a second."""
    max_head_bytes: int = Field(default=32 * KIB, ge=4 * KIB, le=MIB)
    """Longest request line and headers together. The longest of our own requests, a worker's result, has some 3 KiB."""
    head_s: float = Field(default=20.0, gt=0, le=600, allow_inf_nan=False)
    """A connection on which a request has begun, or no request was ever sent, is closed after this long unless the
    headers are complete."""
    send_idle_s: float = Field(default=60.0, gt=0, le=600, allow_inf_nan=False)
    """A receiver that accepts no byte of its answer for this long is disconnected."""
    streams: int = Field(default=256, ge=1, le=65_536)
    """Streams of a run's events held open at the same time; one operator has an eighth of them."""
    viewers: int = Field(default=512, ge=1, le=65_536)
    """Viewers of the stream of all runs at the same time, as dashboards are; one operator has an eighth of them."""
    threads: int = Field(default=8, ge=2, le=256)
    """Threads for blocking work (database, files, validation). Requests that wait for the disk at the same time share a
    commit; more than 8 threads cost CPU and save no time on two cores. Held check-ins and event streams need none."""

    @field_validator("authority")
    @classmethod
    def _sendable(cls, value: str | None) -> str | None:
        if value is not None:
            require_token_url(value)
        return value

    @field_validator("authority_key")
    @classmethod
    def _is_a_key(cls, value: str | None) -> str | None:
        if value is not None:
            TrustedAuthority(bytes.fromhex(value))
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _https(cls, value: str | None) -> str | None:
        return None if value is None else require_https(value)

    @field_validator("oidc_grants")
    @classmethod
    def _grants(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            Grant.parse(text)
        return value

    @model_validator(mode="after")
    def _audience(self) -> Self:
        if self.oidc_issuer is not None and self.oidc_audience is None:
            raise ValueError("oidc_issuer needs oidc_audience: a token for another service must not be one for this")
        return self

    @model_validator(mode="after")
    def _client(self) -> Self:
        if self.oidc_client is not None and self.oidc_issuer is None:
            raise ValueError("oidc_client needs oidc_issuer: it is a name at that issuer")
        if self.oidc_client_secret is not None:
            if self.oidc_client is None:
                raise ValueError("oidc_client_secret needs oidc_client: it is the secret of that client")
            try:
                found = self.oidc_client_secret.read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"oidc_client_secret {self.oidc_client_secret} cannot be read: {error}") from None
            if not found:
                raise ValueError(f"oidc_client_secret {self.oidc_client_secret} has no secret")
        return self

    @model_validator(mode="after")
    def _pinned(self) -> Self:
        if (self.authority is None) != (self.authority_key is None):
            raise ValueError("--authority and --authority-key are given together: the key is pinned, whoever answers")
        wrong = self._beyond_trials() if self.dev_authority else None
        if wrong is not None:
            raise ValueError(f"--dev-authority is for trials on this machine, {wrong}: run 'quorate authority'")
        return self

    def _beyond_trials(self) -> str | None:
        """Why an authority must not be inside this process; None: it may."""
        if self.authority is not None:
            return f"and --authority {self.authority} is apart from it"
        return None if self.on_loopback else "and this server is reached from beyond it"

    @model_validator(mode="after")
    def _window(self) -> Self:
        if self.pace_max_s < self.pace_min_s:
            raise ValueError(f"pace_max_s ({self.pace_max_s}) is below pace_min_s ({self.pace_min_s}): give a window")
        return self

    @property
    def database_url(self) -> str:
        """The SQLAlchemy URL in use."""
        return self.database or database_url(self.data)

    @property
    def authority_folder(self) -> Path:
        """Folder of the authority inside."""
        return self.data / AUTHORITY_FOLDER

    @property
    def audit_key_file(self) -> Path:
        """File of the key that signs the audit."""
        return self.audit_key or self.data / AUDIT_KEY_FILE

    @property
    def blobs_folder(self) -> Path:
        """Folder of the blobs, each named by its digest."""
        return self.data / BLOBS_FOLDER
