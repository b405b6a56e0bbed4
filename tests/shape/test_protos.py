"""The generated code of our protos is what the protos give."""

from __future__ import annotations

from tests.shape.protos import PROTOS, generated


def test_generated_code_is_fresh() -> None:
    made = generated()
    assert {path.name for path in made} == {path.name for path in PROTOS.glob("*_pb2.py*")}
    assert [path.name for path, text in made.items() if path.read_text() != text] == [], "run `make protos`"


def test_generated_code_runs_with_an_older_protobuf() -> None:
    assert [path.name for path in PROTOS.glob("*_pb2.py") if "runtime_version" in path.read_text()] == []
