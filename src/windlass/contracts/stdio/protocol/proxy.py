"""Objects that live in a worker, used as if they were local. Every use is a task.

Uses only scripts that every worker understands, in the syntax of the service (`syntax.py`). A name that the worker
generated for an object is released when its last proxy is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .syntax import AUTO

if TYPE_CHECKING:
    from .service import Service


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
        found = service.evaluate(service.script.attribute(variable, name), queue=queue)
        return Method(self, name) if found.get("callable") is True else found.get("result")

    def __setattr__(self, name: str, value: Any) -> None:
        self._evaluate("set_attribute", name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self, self._proxy[1], args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self._evaluate("item", None, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._evaluate("set_item", None, key, value)

    def __len__(self) -> int:
        return int(self._evaluate("length", None))

    def __contains__(self, value: Any) -> bool:
        return bool(self._evaluate("contains", None, value))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._evaluate("items", None))

    def __dir__(self) -> list[str]:
        return list(self._evaluate("attributes", None))

    def __str__(self) -> str:
        return str(self._evaluate("text", None))

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

    def _evaluate(self, what: str, name: str | None, *values: Any) -> Any:
        service, variable, queue = self._proxy
        inputs, words = arguments(service, values)
        script: Callable[..., str] = getattr(service.script, what)
        text = script(variable, *([] if name is None else [name]), *words)
        return service.evaluate(text, inputs, queue=queue).get("result")


class Method:
    """A method of an object of the worker."""

    def __init__(self, proxy: Proxy, name: str) -> None:
        self._of, self._name = proxy, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self._of, f"{self._of._proxy[1]}.{self._name}", args, kwargs)

    def __repr__(self) -> str:
        return f"<Method {self._name} of {self._of!r}>"


def _call(proxy: Proxy, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    service, _, queue = proxy._proxy
    inputs, words = arguments(service, [*args, *kwargs.values()])
    named = dict(zip(kwargs, words[len(args) :], strict=True))
    text = service.script.call(function, words[: len(args)], named)
    return service.evaluate(text, inputs, queue=queue).get("result")


def arguments(service: Service, values: Any) -> tuple[dict[str, Any], list[str]]:
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
