"""Enrolment tokens: one text each, copied whole or refused, with a URL to which a secret may be sent."""

from __future__ import annotations

import pytest

from client_sdk.credentials.enrolment_token import PREFIX, EnrolmentToken
from client_sdk.credentials.errors import BadCredential
from tests.client_sdk.credentials.world import TRUSTED, refused, token


def test_a_token_is_one_printable_line_and_is_read_back() -> None:
    made = token()
    assert made.text.startswith(PREFIX)
    assert made.text.isascii()
    assert made.text.isprintable()
    assert " " not in made.text
    assert EnrolmentToken.parse(made.text) == made
    assert made.authority == TRUSTED.digest


def test_every_damaged_token_is_refused() -> None:
    def parse(data: bytes) -> EnrolmentToken:
        return EnrolmentToken.parse(data.decode("latin-1"))

    refused(parse, token().text.encode(), BadCredential)


def test_the_last_character_has_one_form() -> None:
    """In base64 some bits of the last character count for nothing."""
    text = next(made.text for made in (token("https://a" + "x" * more) for more in range(3)) if len(made.text) % 4 != 1)
    other = [text[:-1] + char for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"]
    for form in set(other) - {text}:
        with pytest.raises(BadCredential):
            EnrolmentToken.parse(form)


def test_the_secret_is_not_shown() -> None:
    made = token()
    assert "secret" not in repr(made)
    assert made.secret_digest != made.secret


@pytest.mark.parametrize(
    "url",
    [
        "https://authority.example",
        "https://10.0.0.1:8471/q/r",
        "http://127.0.0.1:8471",
        "http://[::1]",
        "http://localhost",
    ],
)
def test_urls_that_a_token_may_name(url: str) -> None:
    assert EnrolmentToken.parse(token(url).text).url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://authority.example",
        "http://10.0.0.1:8471",
        "https://authority.example/",
        "https://me:secret@authority.example",
        "https://authority.example/?q",
        "https://authority.example/#f",
        "https://",
        "ftp://authority.example",
        "authority.example",
        "https://authority.example/a b",
        "https://authority.example:x",
        "https://authority.example//a",
        "https://authority.example\n",
        "http://127.0.0.1.example",
        "http://localhost@authority.example",
        "http://[2001:db8::1]",
        "https://" + "a" * 250,
    ],
)
def test_urls_that_no_token_names(url: str) -> None:
    with pytest.raises(BadCredential):
        token(url).text  # noqa: B018
