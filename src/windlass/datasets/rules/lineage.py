"""Lineage: which jobs and datasets a dataset is made from, and which are made from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID


class Direction(StrEnum):
    """Where to look: what a dataset is made from, what is made from it, or both."""

    UP = "up"
    DOWN = "down"
    BOTH = "both"


class JobName(NamedTuple):
    """A job of a DAG."""

    dag: str
    name: str


Node = JobName | UUID  # a job, or a dataset


class Link(NamedTuple):
    """Data goes from a dataset to a job that reads it, or from a job to a dataset that it writes. `where` is the filter
    of an input."""

    source: Node
    target: Node
    where: str | None = None


def lineage(links: Iterable[Link], start: UUID, direction: Direction, depth: int) -> list[Link]:
    """The links on ways from or to a dataset that pass at most `depth` jobs, nearest first."""
    links = list(links)
    found: dict[Link, None] = {}
    if direction is not Direction.UP:
        found.update(dict.fromkeys(_walk(links, start, depth, down=True)))
    if direction is not Direction.DOWN:
        found.update(dict.fromkeys(_walk(links, start, depth, down=False)))
    return list(found)


def _walk(links: list[Link], start: UUID, depth: int, *, down: bool) -> list[Link]:
    beside: dict[Node, list[Link]] = {}
    for link in links:
        beside.setdefault(link.source if down else link.target, []).append(link)
    found: list[Link] = []
    seen: set[Node] = {start}
    edge: list[Node] = [start]
    for _ in range(2 * depth):  # a job, then its datasets
        reached: list[Node] = []
        for node in edge:
            for link in beside.get(node, ()):
                found.append(link)
                other = link.target if down else link.source
                if other not in seen:
                    seen.add(other)
                    reached.append(other)
        edge = reached
    return found


def without(links: Iterable[Link], hidden: Collection[UUID]) -> list[Link]:
    """The links without these datasets: a job that writes one is linked with the jobs that read it."""
    links = list(links)
    writers: dict[Node, list[Node]] = {}
    for link in links:
        writers.setdefault(link.target, []).append(link.source)
    found: dict[Link, None] = {}
    for link in links:
        if link.target in hidden:
            continue
        if link.source not in hidden:
            found[link] = None
            continue
        for writer in writers.get(link.source, ()):
            found[Link(writer, link.target, link.where)] = None
    return list(found)
