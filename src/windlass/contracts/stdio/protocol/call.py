"""How a Python function is called in a worker: by its import path, or, for one of `__main__`, by its source.

A function with a parameter `task` gets the task that runs it.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

_RUN = """\
_code = getattr(_function, '__code__', None)
if _code and 'task' in _code.co_varnames[_code.co_posonlyargcount:_code.co_argcount + _code.co_kwonlyargcount]:
    _kwargs = {'task': task, **_kwargs}
task.outputs['result'] = _function(*_args, **_kwargs)
"""
IMPORTED = f"""\
import functools as _functools, importlib as _importlib
_module, _, _names = _path.partition(':')
_function = _functools.reduce(getattr, _names.split('.'), _importlib.import_module(_module))
{_RUN}"""


def function_script(function: Callable[..., Any] | str) -> str:
    if isinstance(function, str) or function.__module__ != "__main__":
        return IMPORTED
    if not inspect.isfunction(function) or "<" in function.__qualname__ or function.__closure__:
        raise ValueError("a function of __main__ must be defined at its top level, with a name, to be sent to a worker")
    source = textwrap.dedent(inspect.getsource(function))
    return f"{source}\n_function = {function.__name__}\n{_RUN}"


def function_inputs(function: Callable[..., Any] | str, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    if isinstance(function, str):
        path = function
        module, colon, names = path.partition(":")
        if not colon or not all(part.isidentifier() for part in [*module.split("."), *names.split(".")]):
            raise ValueError(f"{path!r} is not like module:function")
    else:
        path = f"{function.__module__}:{function.__qualname__}"
        if "<" in path:
            raise ValueError("a function must have a name in its module to be called in a worker")
    return {"_path": path, "_args": list(args), "_kwargs": dict(kwargs)}
