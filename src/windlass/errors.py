"""The errors of Windlass. The family of an error tells the caller what to do next.

    WindlassError            code (stable text), message, details
    ├── Rejected             the request is wrong, do not send it again as it is
    │   ├── Invalid          a value has the wrong type, shape or range; `field` names it
    │   │   ├── Malformed    it cannot be read
    │   │   └── TooLarge     it has more bytes than are accepted
    │   ├── NotFound         no such task, run, queue or lease
    │   │   └── Expired      it existed, and is no longer kept
    │   ├── Conflict         it contradicts an earlier request
    │   ├── InvalidState     the task is not in a state that allows this
    │   ├── Unauthenticated  the caller is unknown
    │   └── Forbidden        the caller may not do this
    ├── LeaseLost            you no longer own this attempt: stop, report nothing more
    ├── Unavailable          try again later
    │   ├── StoreBusy        the database is away, restarting, or a row stayed locked
    │   ├── Overloaded       too much is waiting already
    │   └── Draining         this engine is shutting down
    └── ContractViolation    the peer broke the protocol

The class docstring is the default message, so that the reference pages and the errors cannot diverge.
"""

from __future__ import annotations

from typing import ClassVar


class WindlassError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str | None = None, **details: object) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.details = details
        super().__init__(self.message)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), self.message))


class Rejected(WindlassError):
    """The request is wrong; sending it again will not help."""

    code = "rejected"


class Invalid(Rejected):
    """A value has the wrong type, shape or range."""

    code = "invalid"

    def __init__(self, message: str | None = None, *, field: str = "", **details: object) -> None:
        super().__init__(f"{field}: {message}" if field and message else message, field=field, **details)
        self.field = field


class Malformed(Invalid):
    """This cannot be read."""

    code = "malformed"


class TooLarge(Invalid):
    """This has more bytes than are accepted."""

    code = "too_large"


class DagInvalid(Invalid):
    """The DAG file has problems."""

    code = "dag_invalid"


class OutputInvalid(Invalid):
    """An output is not what its task declares, or not what lies in its folder."""

    code = "output_invalid"


class PartitionOverlap(OutputInvalid):
    """A partition shares numbers with another partition of the same version."""

    code = "partition_overlap"


class NotFound(Rejected):
    """There is no such object."""

    code = "not_found"


class Expired(NotFound):
    """This is no longer kept."""

    code = "expired"


class Conflict(Rejected):
    """This contradicts an earlier request."""

    code = "conflict"


class PlanChanged(Conflict):
    """The plan is no longer the one that was reviewed."""

    code = "plan_changed"


class InvalidState(Rejected):
    """The task is not in a state that allows this."""

    code = "invalid_state"


class Unauthenticated(Rejected):
    """A valid key is needed."""

    code = "unauthenticated"


class Forbidden(Rejected):
    """The caller may not do this."""

    code = "forbidden"


class DatasetOwned(Forbidden):
    """The dataset belongs to a DAG."""

    code = "dataset_owned"


class LeaseLost(WindlassError):
    """This attempt is no longer yours: stop, and report nothing more."""

    code = "lease_lost"


class Unavailable(WindlassError):
    """Not possible right now; try again later."""

    code = "unavailable"


class StoreBusy(Unavailable):
    """The database is away or a row stayed locked; try again later."""

    code = "store_busy"


class Overloaded(Unavailable):
    """Too much is waiting already; try again later."""

    code = "overloaded"


class Held(Overloaded):
    """The job is held, because too many tasks wait; try again later."""

    code = "held"


class Draining(Unavailable):
    """This engine is shutting down; try another one."""

    code = "draining"


class ContractViolation(WindlassError):
    """The peer broke the protocol."""

    code = "contract_violation"


def why_broken(error: BaseException) -> str:
    """The text of another library's error: `Connection refused`, or its type and message."""
    reason = getattr(error, "strerror", None)
    return str(reason) if reason else f"{type(error).__name__}: {error}".removesuffix(": ")
