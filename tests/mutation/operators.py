"""One-line mutants of a module: what could be written in place of what stands there.

Left alone by rule are texts of messages, `assert`, what is raised, `__repr__`, defaults, annotations, `strict=True`,
limits (a comparison with a name such as MOST_STEPS) and all that stands outside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMITS = ("MOST", "MAX", "SHOWN", "AGAIN")
"""Beginnings of names of limits: beyond them something is given up, on the safe side."""

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
EXCHANGED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """`new` in place of a node: field `field` (at `index`, in a list) of `holder`, in a statement of a function."""

    path: Path
    function: str
    statement: ast.stmt
    old: ast.AST
    new: ast.AST
    holder: ast.AST
    field: str
    index: int | None

    @property
    def line(self) -> int:
        return int(getattr(self.old, "lineno", self.statement.lineno))

    @property
    def lines(self) -> range:
        """The lines of which a test must run one to notice it."""
        return range(self.statement.lineno, _header(self.statement) + 1)

    def put(self, node: ast.AST) -> None:
        """Let a node stand there."""
        if self.index is None:
            setattr(self.holder, self.field, node)
        else:
            getattr(self.holder, self.field)[self.index] = node

    def told(self) -> tuple[str, str]:
        """The statement before and after, its first line."""
        before = _first_line(self.statement)
        if self.old is self.statement:
            deleted = isinstance(self.new, ast.If) and self.new.body == [self.old]
            return before, "pass" if deleted else _first_line(self.new)
        self.put(self.new)
        after = _first_line(self.statement)
        self.put(self.old)
        return before, after


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0]


def _header(statement: ast.stmt) -> int:
    """The last line of a statement without the statements in it."""
    body = getattr(statement, "body", None)
    return int(body[0].lineno - 1 if body else statement.end_lineno or statement.lineno)


def mutants(path: Path, tree: ast.Module) -> Iterator[Mutant]:
    """All mutants of a module."""
    yield from _outside(path, tree, "")


def _outside(path: Path, node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Mutant]:
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _outside(path, child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef) and child.name not in ("__repr__", "__str__"):
            yield from _Function(path, prefix + child.name, child).mutants()


class _Function:
    """The mutants of one function, those in it included."""

    def __init__(self, path: Path, name: str, node: ast.FunctionDef) -> None:
        self.path = path
        self.name = name
        self.node = node
        self.judges = isinstance(node.returns, ast.Name) and node.returns.id == "bool"

    def mutants(self) -> Iterator[Mutant]:
        documented = ast.get_docstring(self.node) is not None
        for i, statement in enumerate(self.node.body):
            if i or not documented:
                yield from self.within(statement, statement, self.node, "body", i)

    def within(
        self, node: ast.AST, statement: ast.stmt, holder: ast.AST, field: str, index: int | None
    ) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef):
            yield from _Function(self.path, self.name, node).mutants()
            return
        if isinstance(node, ast.Assert) or _is_unreachable(node) or _is_text(node) or _is_limit(node):
            return
        for new in _alternatives(node, holder, field, self.judges):
            yield Mutant(self.path, self.name, statement, node, new, holder, field, index)
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _called(node) == "Finding"):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "ctx", "decorator_list", "returns", "op", "ops"):
                continue
            for i, child in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(child, ast.AST):
                    inner = child if isinstance(child, ast.stmt) else statement
                    yield from self.within(child, inner, node, name, i if isinstance(value, list) else None)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_unreachable(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and _called(node.exc) == "AssertionError"


def _is_text(node: ast.AST) -> bool:
    """Whether it is the text of a message."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and (_is_text(node.left) or _is_text(node.right))
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) or _is_text(node.orelse)
    if isinstance(node, ast.BoolOp):
        return any(map(_is_text, node.values))
    if isinstance(node, ast.Tuple):
        return any(isinstance(one, ast.JoinedStr | ast.BoolOp) and _is_text(one) for one in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "join" and isinstance(node.func.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return _is_text(node.value)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_limit(node: ast.AST) -> bool:
    """Whether it compares with a limit, or is done beyond one."""
    if isinstance(node, ast.If):
        return _is_limit(node.test)
    return isinstance(node, ast.Compare | ast.BoolOp) and any(
        isinstance(inner, ast.Name) and inner.id.isupper() and inner.id.startswith(LIMITS) for inner in ast.walk(node)
    )


def _alternatives(node: ast.AST, holder: ast.AST, field: str, judges: bool) -> Iterator[ast.AST]:
    if isinstance(node, ast.stmt):
        yield from _statements(node, judges)
        return
    condition = field in ("test", "ifs")
    if condition and not any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node)):
        yield ast.Constant(False)
        if not isinstance(holder, ast.While):
            yield ast.Constant(True)
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARED[type(op)]:
                if not condition or len(node.ops) > 1 or other in (ast.LtE, ast.Lt, ast.GtE, ast.Gt):
                    yield ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for i in range(len(node.values)):
            kept = [*node.values[:i], *node.values[i + 1 :]]
            yield kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.BinOp):
        if type(node.op) in COMPUTED:
            yield ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)
        if isinstance(node.op, ast.Sub | ast.BitOr | ast.BitAnd):
            yield node.left
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool) and not (isinstance(holder, ast.keyword) and holder.arg == "strict"):
            yield ast.Constant(not node.value)
        elif type(node.value) is int:
            yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        yield from _displays(node, isinstance(holder, ast.Compare))


def _displays(node: ast.Tuple | ast.List | ast.Set, compared: bool) -> Iterator[ast.AST]:
    """Without one of its elements, where it is a union of several or what something is looked for in."""
    if len(node.elts) > 1 and (compared or any(isinstance(one, ast.Starred) for one in node.elts)):
        for i in range(len(node.elts)):
            left = [*node.elts[:i], *node.elts[i + 1 :]]
            yield ast.Set(left) if isinstance(node, ast.Set) else type(node)(left, ast.Load())


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    if (name := _called(node)) in EXCHANGED:
        yield ast.Call(ast.Name(EXCHANGED[name], ast.Load()), node.args, node.keywords)
    if name == "reversed":
        yield node.args[0]
    for i, (one, other) in enumerate(zip(node.args, node.args[1:], strict=False)):
        named = (ast.Name, ast.Attribute, ast.Subscript)
        if name not in ("isinstance", "Finding", *EXCHANGED) and isinstance(one, named) and isinstance(other, named):
            if ast.dump(one) == ast.dump(other):
                continue
            swapped = [*node.args[:i], other, one, *node.args[i + 2 :]]
            yield ast.Call(node.func, swapped, node.keywords)


def _statements(node: ast.stmt, judges: bool) -> Iterator[ast.stmt]:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        gone = any(isinstance(target, ast.Subscript | ast.Attribute) for target in targets)
    else:
        gone = isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break)
        gone = gone or (isinstance(node, ast.Return) and node.value is None)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # the body of a protocol
    if gone:  # not `pass`: a generator that yields nothing is one all the same
        yield ast.If(ast.Constant(False), [node], [])
    if isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Return) and judges and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(True))
        yield ast.Return(ast.Constant(False))
