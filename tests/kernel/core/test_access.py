"""Who may do what."""

from __future__ import annotations

import pytest

from windlass.core.access import Principal, Role, check_grant, check_reach, check_role
from windlass.errors import Forbidden, Invalid


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("needed", Role)
def test_a_role_may_do_all_that_the_ones_below_it_may(role: Role, needed: Role) -> None:
    order = [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN]
    principal = Principal("ada", role)

    assert principal.may(needed) is (order.index(role) >= order.index(needed))
    if not principal.may(needed):
        with pytest.raises(Forbidden, match=f"needs the role {needed}"):
            check_role(principal, needed)
    else:
        check_role(principal, needed)


@pytest.mark.parametrize(
    ("bound", "asked", "reaches"),
    [
        (None, "a", True),
        (None, None, True),
        ("a", "a", True),
        ("a", "b", False),
        ("a", None, False),
        ("a", "A", False),
    ],
)
def test_a_key_reaches_its_namespace_or_all(bound: str | None, asked: str | None, reaches: bool) -> None:
    principal = Principal("ada", Role.ADMIN, bound)

    if reaches:
        check_reach(principal, asked)
    else:
        with pytest.raises(Forbidden, match="bound to the namespace a"):
            check_reach(principal, asked)


@pytest.mark.parametrize(
    ("field", "grant"),
    [
        ("name", ("", "admin", None)),
        ("name", (7, "admin", None)),
        ("role", ("k", "god", None)),
        ("role", ("k", None, None)),
        ("namespace", ("k", "admin", "")),
        ("namespace", ("k", "admin", "a\x00")),
        ("groups", ("k", "admin", None, "analysts")),
        ("groups", ("k", "admin", None, [""])),
        ("groups", ("k", "admin", None, [7])),
        ("groups", ("k", "admin", None, ["g"] * 101)),
    ],
)
def test_what_no_key_can_have_is_refused(field: str, grant: tuple[object, ...]) -> None:
    with pytest.raises(Invalid) as refused:
        check_grant(*grant)
    assert refused.value.field == field
