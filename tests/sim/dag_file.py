"""The DAG file of the simulation, in a few variants: most differ in one job or two, and some come again."""

from __future__ import annotations

from typing import Any

from tests.sim.seed import Stream

DAG = "chain"
BUFFERED, LAKE = "alerts", "cold"  # the datasets whose rows sinks write, and whose files are in the lake
RANGE_SIZES = (10, 15)
_JOBS = """\
name: chain
jobs:
  - {{name: follow, activation: source, runtime: ecs_platform, operator: follower, source: {{kind: manual}}, outputs: 1,
      update_strategy: append, unique_key: [hash], config: {{chain: {follow}}}}}
  - {{name: load, activation: source, runtime: dispatcher, operator: manual_source, source: {{kind: manual}},
      outputs: 1, update_strategy: replace}}
  - {{name: alert, activation: reactive, runtime: ecs_platform, operator: alerter, execution_strategy: PerUpdate,
      inputs: [{{from: {{job: follow}}}}], outputs: 1, update_strategy: replace, config: {{limit: {alert}}},
      max_queue_depth: {depth}}}
  - {{name: ranges, activation: reactive, runtime: dispatcher, operator: range_aggregator,
      execution_strategy: PerUpdate, inputs: [{{from: {{job: follow}}}}], outputs: 1, update_strategy: replace,
      config: {{range_size: {ranges}, start: 0}}}}
  - {{name: compact, activation: reactive, runtime: ecs_platform, operator: compacter,
      execution_strategy: PerPartition, inputs: [{{from: {{job: ranges}}}}, {{from: {{job: follow}}, trigger: false}}],
      outputs: 1, update_strategy: replace, config: {{level: {compact}}}, scaling: {{max_concurrency: {width}}},
      max_queue_depth: {depth}}}
  - {{name: evaluate, activation: source, runtime: ecs_platform, operator: evaluator, source: {{kind: manual}},
      outputs: 1, update_strategy: append, unique_key: [dedupe_key]}}
  - {{name: page, activation: reactive, runtime: ecs_platform, operator: pager, execution_strategy: PerUpdate,
      inputs: [{{from: {{dataset: alerts}}}}], outputs: 0, config: {{level: {page}}}, on_change: rebuild}}
"""
_TIDY = """\
  - {{name: tidy, activation: reactive, runtime: ecs_platform, operator: tidier, execution_strategy: PerPartition,
      inputs: [{{from: {{job: load}}}}], outputs: 1, update_strategy: replace, config: {{level: {tidy}}}}}
"""
_WATCH = """\
  - {{name: watch, activation: source, runtime: ecs_platform, operator: watcher, source: {{kind: always_on}},
      outputs: 1, update_strategy: append, unique_key: [hash], config: {{chain: {watch}}}}}
"""
_PUBLISH = """\
publish:
  alerts:
    from: {{job: evaluate}}
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{{name: dedupe_key, type: text, nullable: false}}, {{name: n, type: bigint, nullable: false}}{note}]
      unique: [dedupe_key]
      on_conflict: {conflict}
  cold: {{from: {{job: compact}}, storage: s3}}
"""
_NOTE = ", {name: note, type: text}"


def drawn_file(stream: Stream) -> str:
    """One of a few files."""
    choice: dict[str, Any] = {
        "follow": stream.pick({1: 9, 2: 1}), "alert": stream.choice((7, 8)), "ranges": stream.choice(RANGE_SIZES),
        "compact": stream.choice((1, 2)), "width": stream.choice((1, 2, 9)), "tidy": stream.choice((1, 2)),
        "depth": stream.pick({2: 1, 4: 1, 1000: 2}), "page": stream.choice((1, 2)), "watch": stream.pick({1: 2, 2: 1}),
        "note": stream.pick({"": 3, _NOTE: 1}), "conflict": stream.pick({"ignore": 3, "update": 1}),
    }  # fmt: skip
    jobs = _JOBS + (_TIDY if stream.often(0.9) else "") + (_WATCH if stream.often(0.8) else "")
    return (jobs + _PUBLISH).format(**choice)
