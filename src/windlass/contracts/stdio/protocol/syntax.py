"""Scripts that a client generates to read, set and call objects in a worker. One class per language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

AUTO = "_appose_auto_"  # prefix of names that a worker generates


class PythonSyntax:
    """For workers that run Python. Sets `task.outputs['result']`, since a last expression that is a dictionary would
    become all outputs."""

    name = "python"

    def get_var(self, name: str) -> str:
        return _result(_path(name))

    def put_var(self, name: str, value: str) -> str:
        return f"task.export({_name(name)}={value})"

    def forget(self, names: Sequence[str]) -> str:
        """Does nothing in workers without `forget`."""
        return f"getattr(task, 'forget', lambda *_: None)(*{list(names)!r})"

    def call(self, function: str, args: Sequence[str], kwargs: Mapping[str, str]) -> str:
        arguments = [*args, *(f"{_name(name)}={word}" for name, word in kwargs.items())]
        return _result(f"{_path(function)}({', '.join(arguments)})")

    def attribute(self, of: str, name: str) -> str:
        """Its value; for a callable only that it is one, so that nothing is exported for it."""
        return (
            f"_it = {of}.{_name(name)}\n"
            "_can = callable(_it) and not isinstance(_it, type)\n"
            "task.outputs['callable' if _can else 'result'] = _can or _it"
        )

    def set_attribute(self, of: str, name: str, value: str) -> str:
        return f"{of}.{_name(name)} = {value}"

    def item(self, of: str, key: str) -> str:
        return _result(f"{of}[{key}]")

    def set_item(self, of: str, key: str, value: str) -> str:
        return f"{of}[{key}] = {value}"

    def length(self, of: str) -> str:
        return _result(f"len({of})")

    def contains(self, of: str, value: str) -> str:
        return _result(f"{value} in {of}")

    def items(self, of: str) -> str:
        return _result(f"list({of})")

    def attributes(self, of: str) -> str:
        return _result(f"dir({of})")

    def text(self, of: str) -> str:
        return _result(f"str({of})")


PYTHON = PythonSyntax()


def _result(expression: str) -> str:
    return f"task.outputs['result'] = {expression}"


def _name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a name")
    return name


def _path(path: str) -> str:
    for part in path.split("."):
        _name(part)
    return path
