"""Programs with one small bug each, made from a correct one by changing its syntax tree."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "mutants"]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.RShift: ast.LShift,
    ast.LShift: ast.RShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}


@dataclass(frozen=True)
class Mutant:
    """A changed program; `line` and `change` describe its bug."""

    line: int
    change: str
    source: str

    @property
    def name(self) -> str:
        return f"line {self.line}: {self.change}"


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every change of one place of `source` that the rules of this module allow. Annotations, docstrings, imports
    and ``__all__`` are not changed."""
    tree = ast.parse(source)
    for index, node in enumerate(_inside_functions(tree)):
        for change, edit in _edits(node):
            changed = copy.deepcopy(tree)
            place = list(_inside_functions(changed))[index]
            _apply(changed, place, edit)
            yield Mutant(node.lineno, change, ast.unparse(ast.fix_missing_locations(changed)))


def _inside_functions(tree: ast.AST) -> list[ast.AST]:
    """Return the statements and expressions that run when a function is called, in order."""
    found: list[ast.AST] = []

    def walk(node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                if isinstance(child, ast.stmt | ast.expr) and not _is_text(child):
                    found.append(child)
                walk(child)

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            nested = any(node in ast.walk(other) for other in ast.walk(tree) if _is_other(other, node))
            if not nested:
                for statement in node.body:
                    if not _is_text(statement):
                        found.append(statement)
                        walk(statement)
    return found


def _is_other(other: ast.AST, node: ast.AST) -> bool:
    return isinstance(other, ast.FunctionDef) and other is not node


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _edits(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield replacements for `node`; None: the statement is dropped."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in COMPARISONS:
        old = type(new.ops[0])
        new.ops[0] = COMPARISONS[old]()
        yield f"{old.__name__} becomes {COMPARISONS[old].__name__}", new
    elif isinstance(new, ast.BinOp) and type(new.op) in OPERATORS:
        before = type(new.op)
        new.op = OPERATORS[before]()
        yield f"{before.__name__} becomes {OPERATORS[before].__name__}", new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield "and and or change places", new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.USub | ast.Invert):
        yield f"{type(new.op).__name__} is dropped", new.operand
    elif isinstance(new, ast.Constant) and type(new.value) is int:
        yield f"{new.value} becomes {new.value + 1}", ast.Constant(new.value + 1)
    elif isinstance(new, ast.Constant) and type(new.value) is bool:
        yield f"{new.value} becomes {not new.value}", ast.Constant(not new.value)
    elif isinstance(new, ast.IfExp):
        new.body, new.orelse = new.orelse, new.body
        yield "the two cases change places", new
    elif isinstance(new, ast.If):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield "the condition is negated", new
    elif isinstance(new, ast.Expr | ast.Assign | ast.AugAssign) and not _is_text(new):
        yield f"{ast.unparse(node).splitlines()[0]} is dropped", None


def _apply(tree: ast.AST, place: ast.AST, edit: ast.AST | None) -> None:
    class Editor(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node is place:
                return ast.copy_location(ast.Pass() if edit is None else edit, place)
            self.generic_visit(node)
            return node

    Editor().visit(tree)
