"""The error tree: stable codes, and a family for every error."""

from __future__ import annotations

import pickle

import pytest

from windlass.errors import (
    Conflict,
    ContractViolation,
    Invalid,
    LeaseLost,
    NotFound,
    Rejected,
    StoreBusy,
    Unavailable,
    WindlassError,
)

FAMILIES = {Rejected, LeaseLost, Unavailable, ContractViolation}


def tree(root: type[WindlassError] = WindlassError) -> list[type[WindlassError]]:
    return [root, *(below for child in children(root) for below in tree(child))]


def children(error: type[WindlassError]) -> list[type[WindlassError]]:
    """Those of `core`; the store has its own below them."""
    return [child for child in error.__subclasses__() if child.__module__ == WindlassError.__module__]


def test_every_error_belongs_to_one_family_that_says_what_to_do() -> None:
    assert set(children(WindlassError)) == FAMILIES
    assert all(len(FAMILIES & set(error.__mro__)) == 1 for error in tree() if error is not WindlassError)


def test_codes_are_unique_and_never_change() -> None:
    assert {error.__name__: error.code for error in tree()} == {
        "WindlassError": "error",
        "Rejected": "rejected",
        "Invalid": "invalid",
        "Malformed": "malformed",
        "TooLarge": "too_large",
        "DagInvalid": "dag_invalid",
        "OutputInvalid": "output_invalid",
        "PartitionOverlap": "partition_overlap",
        "NotFound": "not_found",
        "Expired": "expired",
        "Conflict": "conflict",
        "PlanChanged": "plan_changed",
        "InvalidState": "invalid_state",
        "Unauthenticated": "unauthenticated",
        "Forbidden": "forbidden",
        "DatasetOwned": "dataset_owned",
        "LeaseLost": "lease_lost",
        "Unavailable": "unavailable",
        "StoreBusy": "store_busy",
        "Overloaded": "overloaded",
        "Held": "held",
        "Draining": "draining",
        "ContractViolation": "contract_violation",
    }


@pytest.mark.parametrize("error", tree(), ids=lambda error: error.__name__)
def test_the_docstring_is_the_message_when_nothing_better_is_said(error: type[WindlassError]) -> None:
    assert error().message == str(error()) == error.__doc__
    assert error("because").message == str(error("because")) == "because"


def test_details_travel_with_an_error() -> None:
    assert NotFound("no such task", task_id=7).details == {"task_id": 7}


def test_an_invalid_value_names_its_field() -> None:
    error = Invalid("must be text", field="kind", limit=9)

    assert (error.field, error.message) == ("kind", "kind: must be text")
    assert error.details == {"field": "kind", "limit": 9}


def test_errors_are_values() -> None:
    assert Conflict("twice", attempt=1) == Conflict("twice", attempt=1)
    assert hash(Conflict("twice", attempt=1)) == hash(Conflict("twice", attempt=1))
    assert Conflict("twice", attempt=1) != Conflict("twice", attempt=2)
    assert Conflict("twice") != StoreBusy("twice")


@pytest.mark.parametrize("error", [Invalid("no", field="kind"), NotFound(task_id=7)], ids=["Invalid", "NotFound"])
def test_errors_survive_a_process_border(error: WindlassError) -> None:
    assert pickle.loads(pickle.dumps(error)) == error
