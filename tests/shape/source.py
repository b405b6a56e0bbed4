"""Reads the source as data, so that tests can hold its shape."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


@dataclass(frozen=True)
class Module:
    """One Python file: `name` is its dotted name, `path` what messages show."""

    name: str
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def imports(self) -> list[str]:
        """Everything imported, wherever it is: `from a.b import c` gives a.b.c, which may be a module or a name."""
        found: list[str] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found += [f"{self._base(node)}.{alias.name}" for alias in node.names]
        return found

    @cached_property
    def imports_at_once(self) -> list[str]:
        """What is imported when the module is: not within functions, and not for type checkers only."""
        found: list[str] = []
        todo: list[ast.stmt] = list(self.tree.body)
        while todo:
            match todo.pop():
                case ast.Import(names=names):
                    found += [alias.name for alias in names]
                case ast.ImportFrom(names=names) as node:
                    found += [f"{self._base(node)}.{alias.name}" for alias in names]
                case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
                    todo += orelse
                case ast.If(body=body, orelse=orelse) | ast.Try(body=body, orelse=orelse):
                    todo += [*body, *orelse]
        return found

    def _base(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        package = self.name.split(".") if self.path.endswith("__init__.py") else self.name.split(".")[:-1]
        parts = package[: len(package) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    @cached_property
    def dotted(self) -> list[tuple[int, str]]:
        """Every dotted name that is used (`time.time`, `self.clock.now`), with its line."""
        return [
            (node.lineno, ast.unparse(node))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Attribute | ast.Name)
        ]


def modules(folder: Path = SRC) -> list[Module]:
    return list(_our_modules()) if folder == SRC else _read(folder)


@cache
def _our_modules() -> list[Module]:
    """Read and parsed once, for all tests."""
    return _read(SRC)


def _read(folder: Path) -> list[Module]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.relative_to(folder)
        found.append(Module(name, shown.as_posix(), path.read_text(encoding="utf-8")))
    return found
