"""The tokens of workers, and in which order what is wrong with a callback is said: through real HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import jwt
import pytest
from tests.contracts.callback.world import Attempt, World
from tests.kit.world import ROOT, refused

from windlass import Policy
from windlass.contracts.callback.wire.token import AUDIENCE, ISSUER
from windlass.net.ids import ulid

pytestmark = pytest.mark.slow

SAYINGS: dict[str, dict[str, Any]] = {"started": {}, "heartbeat": {}, "completed": {"outcome": "SUCCEEDED"}}


async def expired(world: World, attempt: Attempt) -> str:
    now = await world.clock.now()
    return await world.token(attempt, not_before=now - timedelta(hours=1), expires_at=now - timedelta(seconds=6))


async def not_yet(world: World, attempt: Attempt) -> str:
    now = await world.clock.now()
    return await world.token(attempt, not_before=now + timedelta(seconds=7), expires_at=now + timedelta(hours=1))


async def wrong_key(world: World, attempt: Attempt) -> str:
    return signed(attempt, b"x" * 32)


async def unknown_key(world: World, attempt: Attempt) -> str:
    return signed(attempt, b"x" * 32, kid=str(uuid4()))


async def no_algorithm(world: World, attempt: Attempt) -> str:
    claims = jwt.decode(attempt.token, options={"verify_signature": False})
    return jwt.encode(claims, None, "none", headers={"kid": jwt.get_unverified_header(attempt.token)["kid"]})


async def truncated(world: World, attempt: Attempt) -> str:
    return attempt.token[:-5]


async def without_signature(world: World, attempt: Attempt) -> str:
    return attempt.token.rpartition(".")[0] + "."


async def nonsense(world: World, attempt: Attempt) -> str:
    return "nonsense"


async def other_issuer(world: World, attempt: Attempt) -> str:
    return await own(world, attempt, iss="somebody")


async def other_audience(world: World, attempt: Attempt) -> str:
    return await own(world, attempt, aud="something")


async def without_a_claim(world: World, attempt: Attempt) -> str:
    return await own(world, attempt, tenantId=None)


async def own(world: World, attempt: Attempt, **claims: Any) -> str:
    """Signed with our own key, but saying something else."""
    [(id_, secret), *_] = await world.engine.parts.token_keys.all()
    return signed(attempt, secret, kid=str(id_), **claims)


def signed(attempt: Attempt, secret: bytes, kid: str | None = None, **claims: Any) -> str:
    known = jwt.decode(attempt.token, options={"verify_signature": False})
    kid = kid or jwt.get_unverified_header(attempt.token)["kid"]
    said = {name: value for name, value in {**known, **claims}.items() if value is not None}
    return jwt.encode(said, secret, "HS256", headers={"kid": kid})


async def other_task(world: World, attempt: Attempt) -> str:
    return await world.token(attempt, task_id=uuid4())


async def other_tenant(world: World, attempt: Attempt) -> str:
    return await world.token(attempt, tenant="somebody-else")


async def other_workspace(world: World, attempt: Attempt) -> str:
    return await world.token(attempt, workspace="elsewhere")


async def other_run(world: World, attempt: Attempt) -> str:
    return await world.token(attempt, run_id=uuid4())


async def other_attempt(world: World, attempt: Attempt) -> str:
    return await world.token(attempt, attempt=7)


Forge = Callable[[World, Attempt], Awaitable[str]]


@pytest.mark.parametrize("what", SAYINGS)
@pytest.mark.parametrize(
    ("status", "error", "forged"),
    [
        (401, "invalid_token", (expired, not_yet, wrong_key, unknown_key, no_algorithm, truncated, without_signature,
                                nonsense, other_issuer, other_audience, without_a_claim)),
        (403, "token_scope", (other_task, other_tenant, other_workspace, other_run)),
        (409, "attempt_mismatch", (other_attempt,)),
    ],
)  # fmt: skip
async def test_a_token_that_is_not_for_this_is_refused_and_nothing_is_written(
    world: World, what: str, status: int, error: str, forged: tuple[Forge, ...]
) -> None:
    attempt = await world.dispatched()
    before = await world.rows()

    for forge in forged:
        answer = await attempt.call(what, token=await forge(world, attempt), **SAYINGS[what])
        assert (forge.__name__, answer.status_code, answer.json()["error"]) == (forge.__name__, status, error)
    assert await world.rows() == before


async def test_no_token_and_another_scheme_are_401(world: World) -> None:
    attempt = await world.dispatched()
    path = f"/v1/tasks/{attempt.envelope['taskId']}/started"
    body = {"attempt": 1, "workerId": "w"}

    for given in (None, attempt.token, "Basic eDp5", "Bearer"):
        answer = await world.http.post(path, json=body, headers={} if given is None else {"Authorization": given})
        refused(answer, 401, "invalid_token")
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_token_is_good_five_seconds_longer_and_earlier_than_it_says(world: World) -> None:
    attempt = await world.started()
    now = await world.clock.now()
    late = await world.token(attempt, not_before=now - timedelta(hours=1), expires_at=now - timedelta(seconds=4))
    early = await world.token(attempt, not_before=now + timedelta(seconds=4), expires_at=now + timedelta(hours=1))

    assert (await attempt.heartbeat(token=late)).status_code == 200
    assert (await attempt.heartbeat(token=early)).status_code == 200


async def test_a_token_says_what_it_is_for(world: World) -> None:
    attempt = await world.dispatched()
    claims = jwt.decode(attempt.token, options={"verify_signature": False})
    header = jwt.get_unverified_header(attempt.token)

    assert (header["alg"], bool(header["kid"])) == ("HS256", True)
    assert (claims["iss"], claims["aud"]) == (ISSUER, AUDIENCE)
    names = ("taskId", "runId", "tenantId", "workspaceId", "attempt")
    assert [claims[name] for name in names] == [attempt.envelope[name] for name in names]
    assert claims["iat"] == claims["nbf"] == claims["exp"] - 3600


async def test_a_token_is_renewed_when_less_than_half_of_its_life_is_left(world: World) -> None:
    await world.queue(heartbeat_interval_ms=600_000, token_ttl_seconds=3600)
    attempt = await world.started()
    await world.clock.advance(1700)
    assert "taskToken" not in (await attempt.heartbeat()).json()

    await world.clock.advance(200)
    told = (await attempt.heartbeat()).json()
    assert told["tokenExpiresAt"] > attempt.envelope["tokenExpiresAt"]
    assert (await attempt.heartbeat(token=told["taskToken"])).status_code == 200
    await world.clock.advance(1750)
    refused(await attempt.heartbeat(), 401, "invalid_token")
    assert (await attempt.completed(token=told["taskToken"])).status_code == 200


async def test_the_key_of_tokens_is_rotated_and_both_open_until_the_old_tokens_are_over(world: World) -> None:
    await world.queue(heartbeat_interval_ms=600_000)
    attempt = await world.started()
    answer = await world.http.post("/api/v1/token-key/rotate", json={}, headers={"Authorization": f"Bearer {ROOT}"})
    kid = answer.json()["key_id"]
    await world.clock.advance(61)  # servers look once a minute

    assert (await attempt.heartbeat()).status_code == 200
    new = await world.dispatched()
    assert jwt.get_unverified_header(new.token)["kid"] == kid != jwt.get_unverified_header(attempt.token)["kid"]
    assert (await new.call("started")).status_code == 200
    assert len(await world.engine.parts.token_keys.all()) == 2
    await world.clock.advance(7500)
    assert [str(id_) for id_, _ in await world.engine.parts.token_keys.all()] == [kid]


async def test_a_key_that_was_rotated_elsewhere_is_known_at_once(world: World) -> None:
    attempt = await world.started()
    await world.clock.advance(2)
    await world.engine.parts.token_keys.rotate()
    fresh = await own(world, attempt)

    assert (await attempt.heartbeat(token=fresh)).status_code == 200


async def test_no_token_is_ever_stored(world: World) -> None:
    attempt = await world.started()
    await attempt.heartbeat(progressPct=3)

    assert attempt.token not in str(await world.rows())


# --------------------------------------------------------------------------------------------- order


async def test_what_is_wrong_is_said_in_the_order_of_the_contract(world: World) -> None:
    attempt = await world.started()
    late = await expired(world, attempt)
    missing = await world.token(attempt, task_id=uuid4())
    unknown = uuid4()
    gone = await world.token(attempt, task_id=unknown, run_id=unknown)

    refused(await attempt.call("completed", token=late, outcome="NONSENSE"), 401, "invalid_token")
    refused(await attempt.call("completed", token=late, task="nonsense"), 401, "invalid_token")
    refused(await attempt.call("completed", token=late, task=ulid("task", uuid4())), 401, "invalid_token")
    refused(await attempt.call("completed", token=missing, outcome="NONSENSE"), 403, "token_scope")
    refused(await attempt.call("completed", token=gone, task=str(unknown), outcome="NONSENSE"), 400, "invalid_argument")
    refused(await attempt.call("completed", token=gone, task=str(unknown), outcome="FAILED"), 404, "task_not_found")
    refused(await attempt.call("heartbeat", token=gone, task=str(unknown)), 404, "task_not_found")
    refused(await attempt.call("started", task="nonsense"), 404, "task_not_found")
    await attempt.completed()
    refused(await attempt.completed("FAILED", attempt=9), 409, "attempt_mismatch")
    refused(await attempt.completed("FAILED"), 409, "task_already_terminal")


BAD: list[tuple[str, dict[str, Any]]] = [
    ("started", {"attempt": 0}),
    ("started", {"attempt": "1"}),
    ("started", {"attempt": 1.5}),
    ("started", {"attempt": 2**31}),
    ("started", {"attempt": ...}),
    ("started", {"workerId": ...}),
    ("started", {"workerId": ""}),
    ("started", {"workerId": "a\x00b"}),
    ("started", {"workerId": "x" * 201}),
    ("started", {"startedAt": "yesterday"}),
    ("started", {"startedAt": "2025-01-15T10:00:00"}),
    ("heartbeat", {"progressPct": 101}),
    ("heartbeat", {"progressPct": -1}),
    ("heartbeat", {"progressPct": 4.5}),
    ("heartbeat", {"progressPct": True}),
    ("heartbeat", {"message": 7}),
    ("completed", {}),
    ("completed", {"outcome": "succeeded"}),
    ("completed", {"outcome": "FAILED", "error": {"message": "no category"}}),
    ("completed", {"outcome": "FAILED", "error": {"category": "ODD", "message": "x"}}),
    ("completed", {"outcome": "FAILED", "error": {"category": "USER_CODE"}}),
    ("completed", {"outcome": "SUCCEEDED", "metrics": {"cpuTimeMs": -1}}),
    ("completed", {"outcome": "SUCCEEDED", "metrics": []}),
]


async def test_a_bad_body_is_400_and_nothing_is_written(world: World) -> None:
    attempt = await world.dispatched()
    before = await world.rows()

    for what, body in BAD:
        answer = await attempt.call(what, **body)
        assert (what, body, answer.status_code) == (what, body, 400)
        refused(answer, 400, "invalid_argument")
    headers = {"Authorization": f"Bearer {attempt.token}"}
    for content in (b"", b"{", b"[]", b"null", b"\xff", b'{"attempt": 1, "workerId": "\\ud800"}', b"[" * 100_000):
        answer = await world.http.post(
            f"/v1/tasks/{attempt.envelope['taskId']}/started", content=content, headers=headers
        )
        refused(answer, 400, "invalid_argument")
    assert await world.rows() == before


async def test_a_body_over_two_mebibytes_is_413(world: World) -> None:
    attempt = await world.started()
    before = await world.rows()

    answer = await attempt.completed(output="x" * (2 * 1024 * 1024))
    refused(answer, 413, "payload_too_large")
    refused(await attempt.completed(output="x" * (2 * 1024 * 1024), token=attempt.token[:-3]), 401, "invalid_token")
    assert await world.rows() == before


async def test_unknown_fields_are_ignored_and_hostile_text_is_kept_as_it_can_be(world: World) -> None:
    attempt = await world.started()
    evil = "a\x00b\u202e</script>"
    await attempt.heartbeat(progressPct=1, message=evil, surprise={"a": [1]})
    answer = await attempt.completed(
        "CANCELLED", partialProgress={evil: [evil, 0.5, None]}, cancelledDuringPhase=evil, attemptId="att_1"
    )

    assert answer.status_code == 200
    report = ((await world.entries(attempt, "reported"))[0]).detail
    assert report["partial_progress"] == {"a\ufffdb\u202e</script>": ["a\ufffdb\u202e</script>", 0.5, None]}


async def test_other_paths_and_methods_are_refused_in_the_same_words(world: World) -> None:
    attempt = await world.dispatched()
    path = f"/v1/tasks/{attempt.envelope['taskId']}"

    answer = await world.http.get(f"{path}/started")
    assert (answer.headers["allow"], refused(answer, 405, "method_not_allowed")["error"]) == (
        "POST", "method_not_allowed",
    )  # fmt: skip
    for other in (f"{path}/stopped", path, f"{path}/started/", "/v1/", "/v1/tasks"):
        refused(await world.http.post(other, json={}), 404, "not_found")


@pytest.mark.parametrize(
    ("fields", "life_s"),
    [
        ({}, 3600),
        ({"deadline_in_s": 600}, 3600),
        ({"deadline_in_s": 5400}, 5400),
        ({"deadline_in_s": 86_400}, 7200),
        ({"policy": Policy(timeout_s=4000)}, 4000),
        ({"policy": Policy(timeout_s=10_000)}, 7200),
    ],
)
async def test_a_token_covers_the_time_that_its_attempt_has(world: World, fields: dict[str, Any], life_s: int) -> None:
    if "deadline_in_s" in fields:
        now = await world.clock.now()
        fields = {"deadline_at": (now + timedelta(seconds=fields["deadline_in_s"])).replace(microsecond=0)}
    attempt = await world.dispatched(**fields)
    claims = jwt.decode(attempt.token, options={"verify_signature": False})
    assert life_s <= claims["exp"] - claims["nbf"] <= life_s + 1


async def test_a_token_is_renewed_beyond_what_the_contract_allows_at_once(world: World) -> None:
    await world.queue(heartbeat_interval_ms=1_200_000)
    attempt = await world.started(policy=Policy(timeout_s=20_000))
    token = attempt.token
    for _ in range(18):
        await world.clock.advance(1000)
        answer = await attempt.heartbeat(token=token)
        assert answer.status_code == 200
        token = answer.json().get("taskToken", token)
    assert (await attempt.completed(token=token)).status_code == 200
