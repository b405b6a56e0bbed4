"""A push is believed only if it was signed with our secret, not long ago, as it is."""

from __future__ import annotations

import base64

import pytest

from windlass.errors import Invalid, Unauthenticated
from windlass.net.signature import ID, SIGNATURE, TIMESTAMP, check_signature, signed_headers, signing_key

OLD = "whsec_" + base64.b64encode(b"o" * 32).decode()
NEW = "whsec_" + base64.b64encode(b"n" * 32).decode()
BODY = b'{"taskId": "task_1"}'
NOW = 1_700_000_000


def accepted(secrets: list[str], headers: dict[str, str], body: bytes = BODY, now_s: float = NOW) -> bool:
    try:
        return check_signature([signing_key(secret) for secret in secrets], headers, body, now_s) == headers[ID]
    except Unauthenticated:
        return False


def test_the_example_of_the_specification() -> None:
    """From the reference libraries of Standard Webhooks: id, time, body, secret and signature."""
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'

    headers = signed_headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)

    assert headers[SIGNATURE] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_either_secret_is_good_during_a_rotation_whoever_is_ahead() -> None:
    for sender in ([OLD], [NEW], [OLD, NEW]):
        assert accepted([OLD, NEW], signed_headers(sender, "d_1", NOW, BODY))
    assert accepted([NEW], signed_headers([OLD, NEW], "d_1", NOW, BODY))
    assert not accepted([NEW], signed_headers([OLD], "d_1", NOW, BODY))


@pytest.mark.parametrize(
    "change",
    [
        {ID: "d_2"},
        {TIMESTAMP: str(NOW + 1)},
        {TIMESTAMP: "soon"},
        {TIMESTAMP: "9" * 400},
        {TIMESTAMP: ""},
        {SIGNATURE: "v1,"},
        {SIGNATURE: "v1,é"},
        {SIGNATURE: "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
        {SIGNATURE: ""},
    ],
)
def test_what_was_changed_on_the_way_is_refused(change: dict[str, str]) -> None:
    assert not accepted([OLD], signed_headers([OLD], "d_1", NOW, BODY) | change)


def test_another_body_is_refused() -> None:
    assert not accepted([OLD], signed_headers([OLD], "d_1", NOW, BODY), BODY + b" ")


@pytest.mark.parametrize(("age_s", "good"), [(300, True), (301, False), (-300, True), (-301, False)])
def test_a_copy_that_is_sent_again_later_is_refused(age_s: int, good: bool) -> None:
    assert accepted([OLD], signed_headers([OLD], "d_1", NOW - age_s, BODY)) is good


@pytest.mark.parametrize("secret", ["", "secret", "whsec_", "whsec_%%%", "whsec_c2hvcnQ=", None, 7])
def test_what_is_no_secret_is_said_to_be_none(secret: str) -> None:
    with pytest.raises(Invalid, match="secret"):
        signing_key(secret)
