"""DAG files for tests. `¦` in a text marks the place where a problem is expected."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from windlass.datasets.read_yaml import read
from windlass.datasets.rules.check import Report, check
from windlass.datasets.rules.dag import Dag, Output, Partitioning, PartitionKind, Storage, output_uuid
from windlass.datasets.rules.fact import Facts, KnownDataset, KnownQueue, OtherInput, OtherJob
from windlass.datasets.rules.schema import Column, ColumnType, DatasetSchema

CHAIN = (Path(__file__).parent / "chain.yaml").read_text(encoding="utf-8")
MARK = "¦"
PRICES, SECRET = UUID(int=1), UUID(int=2)
FACTS = Facts(
    "default",
    datasets={
        "prices": KnownDataset(
            "market", PRICES, Storage.POSTGRES, DatasetSchema((Column("symbol", ColumnType.TEXT),)),
            Partitioning(PartitionKind.TIME, every="1d"),
        ),
        "hidden": KnownDataset("market", SECRET, readable=False),
    },
    jobs=(
        OtherJob("market", "load", outputs=(PRICES,)),
        OtherJob("loop", "back", (OtherInput(output_uuid("default", "d", Output("a", 0))),), (UUID(int=3),)),
    ),
    queues={
        "platform": KnownQueue("wakeup", secrets=("RPC_KEY", "OTHER_KEY")),
        "udf": KnownQueue("wakeup", trusted=False),
        "lambda": KnownQueue("invoke"),
        "big": KnownQueue("wakeup"),
        "cells": KnownQueue("wakeup", trusted=False),
    },
    webhooks={"orders/new": "shop"},
)  # fmt: skip


def marked(text: str) -> tuple[str, int, int]:
    """The text without its mark, and the line and column of the mark."""
    before, _, after = text.partition(MARK)
    assert MARK not in after, "one mark is enough"
    return before + after, before.count("\n") + 1, len(before) - before.rfind("\n")


def report(text: str, facts: Facts = FACTS) -> Report:
    return check(read(text), facts)


def dag_of(text: str) -> Dag:
    """The model of a file without problems."""
    reading = read(text)
    assert reading.dag is not None, reading.problems
    return reading.dag


def reactive(name: str, *inputs: str, more: str = "") -> str:
    """A reactive job, as a line of `jobs`."""
    return (
        f"  - {{name: {name}, activation: reactive, runtime: ecs_platform, operator: op, outputs: 1, "
        f"update_strategy: replace, execution_strategy: PerUpdate, inputs: [{', '.join(inputs)}]{more}}}\n"
    )


def source(name: str, *, outputs: int = 1, more: str = "") -> str:
    """A source, as a line of `jobs`."""
    return (
        f"  - {{name: {name}, activation: source, runtime: ecs_platform, operator: op, outputs: {outputs}, "
        f"update_strategy: replace, source: {{kind: manual}}{more}}}\n"
    )


def file(*jobs: str, publish: str = "", name: str = "d") -> str:
    return f"name: {name}\njobs:\n{''.join(jobs)}" + (f"publish:\n{publish}" if publish else "")
