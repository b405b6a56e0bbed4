"""Cycles and order of jobs, across all DAGs. No function calls itself: a chain may have thousands of jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

Graph = Mapping[T, Sequence[T]]  # each node with those that come after it


def groups(graph: Graph[T]) -> list[frozenset[T]]:
    """The groups of nodes that reach each other (strongly connected components), of two nodes or more. Tarjan."""
    index: dict[T, int] = {}
    low: dict[T, int] = {}
    waiting: list[T] = []
    on_stack: set[T] = set()
    found: list[frozenset[T]] = []
    for start in graph:
        path: list[tuple[T, Iterator[T]]] = [] if start in index else [(start, iter(graph[start]))]
        while path:
            node, after = path[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                waiting.append(node)
                on_stack.add(node)
            following = next(
                (each for each in after if each in graph and (each not in index or each in on_stack)), None
            )
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    group = _cut(waiting, node)
                    on_stack -= group
                    found += [group] if len(group) > 1 else []
            elif following in index:
                low[node] = min(low[node], index[following])
            else:
                path.append((following, iter(graph[following])))
    return found


def _cut(waiting: list[T], node: T) -> frozenset[T]:
    """Take the last nodes off the stack, down to this one."""
    at = len(waiting) - 1
    while waiting[at] != node:
        at -= 1
    group = frozenset(waiting[at:])
    del waiting[at:]
    return group


def shortest(graph: Graph[T], start: T, end: T, within: frozenset[T]) -> list[T]:
    """The shortest way from one node to another in a group, both included."""
    before: dict[T, T] = {}
    todo = deque([start])
    while todo and end not in before:
        node = todo.popleft()
        for each in graph[node]:
            if each in within and each not in before and each != start:
                before[each] = node
                todo.append(each)
    way = [end]
    while way[-1] != start:
        way.append(before[way[-1]])
    return way[::-1]


def in_dependency_order(before: Mapping[T, Collection[T]]) -> list[T]:
    """Every node after those that it depends on. There must be no cycle, and no node may depend on itself."""
    after: dict[T, list[T]] = {node: [] for node in before}
    missing = dict.fromkeys(before, 0)
    for node, needed in before.items():
        for each in set(needed) & before.keys():
            after[each].append(node)
            missing[node] += 1
    todo = deque(node for node, count in missing.items() if count == 0)
    found: list[T] = []
    while todo:
        node = todo.popleft()
        found.append(node)
        for each in after[node]:
            missing[each] -= 1
            if missing[each] == 0:
                todo.append(each)
    assert len(found) == len(before), "the jobs have a cycle"
    return found
