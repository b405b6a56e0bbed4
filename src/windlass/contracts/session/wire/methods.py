"""The paths of the gRPC methods that workers and clients call."""

from __future__ import annotations

SESSION = "/windlass.v1.Worker/Session"
EXTEND = "/windlass.v1.Worker/Extend"
LOSE = "/windlass.v1.Worker/Lose"
REPORT_LATE = "/windlass.v1.Worker/ReportLate"
CALL = "/windlass.v1.Client/Call"
