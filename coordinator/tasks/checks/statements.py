"""Take tests that are statements apart: what they compare, which names they use, and which they set."""

from __future__ import annotations

import ast
import builtins
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statement:
    """One test.

    Args:
        expression, wanted: of ``assert expression == wanted`` with a literal; the expression is empty for other tests.
        root: name whose call, attribute or item the expression is; empty if it is none.
        names: names that the expression takes from outside, Python's own apart.
        sets: names that the test sets itself.
    """

    code: str
    expression: str = ""
    wanted: object = None
    root: str = ""
    names: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()

    def asks_the_program(self, setup: str) -> bool:
        """Return whether the expression is a value of the program itself.

        Of anything else, such as ``math.isclose(f(2), 0.5)``, the program's value would be its own verdict.
        """
        helpers = sys.stdlib_module_names | set(dir(builtins))
        return bool(self.root) and self.root not in helpers and self.root not in names_set(parsed(setup))


def read_statement(code: str) -> Statement:
    """Take a test apart; code that does not parse has no expression and fails when it is run."""
    tree = parsed(code)
    match tree.body:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            try:
                wanted = ast.literal_eval(right)
            except (ValueError, RecursionError):
                return Statement(code, sets=names_set(tree))
            return Statement(code, ast.unparse(left), wanted, _root(left), _names(left), names_set(tree))
    return Statement(code, sets=names_set(tree))


def parsed(code: str) -> ast.Module:
    """Return the syntax tree of code; an empty one if it does not parse."""
    try:
        return ast.parse(code.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def names_set(tree: ast.AST) -> frozenset[str]:
    """Return every name that code assigns, imports or defines."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=alias):
                found.add(alias or name.partition(".")[0])
    return frozenset(found)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.expr) -> frozenset[str]:
    nodes = list(ast.walk(node))
    used = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    bound = {one.arg for one in nodes if isinstance(one, ast.arg)} | names_set(node)
    return frozenset(used - bound - set(dir(builtins)))
