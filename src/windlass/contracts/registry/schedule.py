"""Schedules on the wire of the registry contract."""

from __future__ import annotations

from typing import NoReturn

from windlass.contracts.registry.call import Call
from windlass.core.error import Unavailable
from windlass.wire.protos import kagzi_pb2 as pb


async def create_schedule(_call: Call, _request: pb.CreateScheduleRequest) -> pb.CreateScheduleResponse:
    _not_yet()


async def get_schedule(_call: Call, _request: pb.GetScheduleRequest) -> pb.GetScheduleResponse:
    _not_yet()


async def list_schedules(_call: Call, _request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    _not_yet()


async def update_schedule(_call: Call, _request: pb.UpdateScheduleRequest) -> pb.UpdateScheduleResponse:
    _not_yet()


async def delete_schedule(_call: Call, _request: pb.DeleteScheduleRequest) -> pb.Empty:
    _not_yet()


def _not_yet() -> NoReturn:
    raise Unavailable("schedules are not served by this server")
