"""Uses every operation of a client that openapi-python-client has made: run with the folder that it lies in, the URL of
the server, a key, and a file with the calls to make. Writes what came of each, as JSON."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import typing
from pathlib import Path
from typing import Any
from uuid import UUID


def main(folder: str, url: str, key: str, calls: str) -> None:
    sys.path.insert(0, folder)
    client_of = importlib.import_module("made").AuthenticatedClient
    modules = {}
    for package in pkgutil.walk_packages(importlib.import_module("made.api").__path__, "made.api."):
        if not package.ispkg:
            modules[package.name.rsplit(".", 1)[1]] = importlib.import_module(package.name)
    done = []
    with Path(calls).open() as file, client_of(base_url=url, token=key) as client:
        for call in json.load(file):
            answer = _use(modules.pop(call["operation"]), client, call)
            parsed = answer.parsed.to_dict() if hasattr(answer.parsed, "to_dict") else answer.parsed
            done.append({"operation": call["operation"], "status": int(answer.status_code), "answer": parsed})
    print(json.dumps({"done": done, "unused": sorted(modules)}))


def _use(module: Any, client: Any, call: dict[str, Any]) -> Any:
    function = module.sync_detailed
    hints = typing.get_type_hints(function, vars(module))
    given: dict[str, Any] = {}
    for name in inspect.signature(function).parameters:
        if name == "body" and "body" in call:
            kind = next(one for one in (hints[name], *typing.get_args(hints[name])) if hasattr(one, "from_dict"))
            given[name] = kind.from_dict(call["body"])
        elif name in call.get("path", {}):
            given[name] = UUID(call["path"][name]) if hints[name] is UUID else call["path"][name]
        elif name in call.get("query", {}):
            given[name] = call["query"][name]
    return function(client=client, **given)


if __name__ == "__main__":
    main(*sys.argv[1:])
