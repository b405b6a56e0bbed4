"""Objects that live in a Python worker, used as if they were local. Every use is a task with a generated script.

A name that the worker generated for an object is released when its last proxy is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .wire import AUTO

if TYPE_CHECKING:
    from .service import Service

RESULT = "task.outputs['result'] = "  # a last expression that is a dictionary would become all outputs


class Proxy:
    """An object of the worker, by its exported name."""

    appose_type = "worker_object"

    def __init__(self, service: Service, name: str, queue: str | None = None) -> None:
        object.__setattr__(self, "_proxy", (service, name, queue))

    def to_wire(self) -> dict[str, Any]:
        return {"appose_type": "worker_object", "var_name": self._proxy[1]}

    def __getattr__(self, name: str) -> Any:
        if name == "_proxy" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # copy, pickle and others look these up: do not run a task for them
        service, variable, queue = self._proxy
        script = (  # of a callable, only that it is one, so that nothing is exported for it
            f"_it = {variable}.{check_identifier(name)}\n"
            "_can = callable(_it) and not isinstance(_it, type)\n"
            "task.outputs['callable' if _can else 'result'] = _can or _it"
        )
        found = service.evaluate(script, queue=queue)
        return Method(self, name) if found.get("callable") is True else found.get("result")

    def __setattr__(self, name: str, value: Any) -> None:
        self._run(f"{{0}}.{check_identifier(name)} = {{1}}", value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        service, variable, queue = self._proxy
        return call_function(service, variable, args, kwargs, queue)

    def __getitem__(self, key: Any) -> Any:
        return self._run(RESULT + "{0}[{1}]", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._run("{0}[{1}] = {2}", key, value)

    def __len__(self) -> int:
        return int(self._run(RESULT + "len({0})"))

    def __contains__(self, value: Any) -> bool:
        return bool(self._run(RESULT + "{1} in {0}", value))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._run(RESULT + "list({0})"))

    def __dir__(self) -> list[str]:
        return list(self._run(RESULT + "dir({0})"))

    def __str__(self) -> str:
        return str(self._run(RESULT + "str({0})"))

    def __repr__(self) -> str:
        return f"<Proxy of {self._proxy[1]}>"

    def __copy__(self) -> Proxy:
        return self

    def __deepcopy__(self, _: object) -> Proxy:
        return self

    def __del__(self) -> None:
        service, name, _ = self._proxy
        if name.startswith(AUTO):
            service.unneeded.append(name)

    def _run(self, script: str, *values: Any) -> Any:
        """Run a script in which `{0}` stands for the object and `{1}`, `{2}` for the values."""
        service, variable, queue = self._proxy
        inputs, words = _arguments(service, values)
        return service.evaluate(script.format(variable, *words), inputs, queue=queue).get("result")


class Method:
    """A method of an object of the worker."""

    def __init__(self, proxy: Proxy, name: str) -> None:
        self._of, self._name = proxy, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        service, variable, queue = self._of._proxy
        return call_function(service, f"{variable}.{self._name}", args, kwargs, queue)

    def __repr__(self) -> str:
        return f"<Method {self._name} of {self._of!r}>"


def call_function(
    service: Service, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], queue: str | None = None
) -> Any:
    """Call a function that the worker has under this name, or a method, as `name.method`."""
    inputs, words = _arguments(service, [*args, *kwargs.values()])
    named = [f"{check_identifier(name)}={word}" for name, word in zip(kwargs, words[len(args) :], strict=True)]
    script = f"{RESULT}{check_path(path)}({', '.join([*words[: len(args)], *named])})"
    return service.evaluate(script, inputs, queue=queue).get("result")


def _arguments(service: Service, values: Sequence[Any]) -> tuple[dict[str, Any], list[str]]:
    """Inputs, and the expressions for them in a script: an object of this worker is its own name."""
    inputs: dict[str, Any] = {}
    words = []
    for number, value in enumerate(values):
        if isinstance(value, Proxy) and value._proxy[0] is service:
            words.append(value._proxy[1])
        else:
            inputs[f"arg{number}"] = value
            words.append(f"arg{number}")
    return inputs, words


def check_identifier(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a name")
    return name


def check_path(path: str) -> str:
    for part in path.split("."):
        check_identifier(part)
    return path
