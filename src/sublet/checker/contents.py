"""The bytes of every value in terms of tokens, derived from the facts of the ops alone.

The output of a kernel consists of new bytes: the output's own token. A view is a slice of the input's bytes, and an
output containing its inputs (Concat) is the concatenation of their bytes. Two values have equal contents exactly if
their bytes are equal by construction, independent of placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from sublet.base.errors import SubletError
from sublet.checker.memory import Content, TokenRange
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import Op, RowForm, Share, lookup, row_form, shares_of

MAX_PIECES = 1024
"""Pieces of one value; a value with more pieces counts as new bytes. A chain of n `x = Concat(x, x)` would take 2^n."""
MAX_ALL_PIECES = 1 << 20
"""Pieces of all values together; beyond this sum every further value counts as new bytes."""


class ByteSource(NamedTuple):
    """Bytes [at, at + length) of an output are the bytes of input `input` from `start` on.

    An input of None means computed by the kernel.
    """

    at: int
    length: int
    input: int | None = None
    start: int = 0


def op_facts(node: Node) -> Op:
    """Return the op record of a node; an unknown op has no facts, the most conservative assumption."""
    try:
        return lookup(node.op)
    except SubletError:
        return Op(node.op)


def byte_sources_of(node: Node, in_rows: Collection[str] = ()) -> tuple[tuple[ByteSource, ...], ...]:
    """Return, for each output position of an op's node, the sources of the bytes in order of address.

    Scratch memory is the last position. Where an operand is among `in_rows`, every source lies within a row.
    """
    op = op_facts(node)
    form = None if all(value.name not in in_rows for value in (*node.uses, *node.defs)) else row_form(node)
    if form is not None and (op.views(form.node) or op.parts(form.node)):
        scratch = () if node.scratch is None else (_sources_of(node, node.scratch, [], []),)
        return (*(_in_all_rows(form, out) for out in _row_sources(form, op)), *scratch)
    views, parts = _by_output(shares_of(node, op.views)), _by_output(shares_of(node, op.parts))
    written = enumerate(node.outputs_and_scratch)
    return tuple(_sources_of(node, out, views.get(i, []), parts.get(i, [])) for i, out in written)


def _row_sources(form: RowForm, op: Op) -> Iterator[tuple[ByteSource, ...]]:
    """Yield the sources of the first row of every output."""
    views, parts = (
        _by_output(share for share in shares if share.input in form.inputs)
        for shares in (op.views(form.node), op.parts(form.node))
    )
    for i, out in enumerate(form.node.outputs):
        yield _sources_of(form.node, out, views.get(i, []), parts.get(i, []))


def _in_all_rows(form: RowForm, sources: tuple[ByteSource, ...]) -> tuple[ByteSource, ...]:
    """Return the sources of all rows of an output, given the sources of the first row, which cover the row."""
    width, inputs = sum(source.length for source in sources), form.node.inputs
    starts = [0 if value is None else value.nbytes for value in inputs]
    return tuple(
        source._replace(
            at=source.at + row * width,
            start=source.start + (0 if source.input is None else row * starts[source.input]),
        )
        for row in range(form.count)
        for source in sources
    )


def _by_output(shares: Iterable[Share]) -> dict[int, list[Share]]:
    """Return shares by output position."""
    by_output: dict[int, list[Share]] = {}
    for share in shares:
        by_output.setdefault(share.output, []).append(share)
    return by_output


def _sources_of(node: Node, out: Value | None, views: list[Share], parts: list[Share]) -> tuple[ByteSource, ...]:
    """Return the sources of one output: a view, parts, or the kernel."""
    if out is None or out.nbytes == 0:
        return ()
    for share in views:
        operand = _operand(node, share.input)
        if operand and 0 <= share.offset <= operand.nbytes - out.nbytes:
            return (ByteSource(0, out.nbytes, share.input, share.offset),)
    return _parts_of(node, out, parts)


def _parts_of(node: Node, out: Value, parts: list[Share]) -> tuple[ByteSource, ...]:
    """Return the parts of an output in order of address; the kernel computes the bytes between parts."""
    byte_sources: list[ByteSource] = []
    at = 0
    for share in sorted(parts, key=lambda share: (share.offset, share.input)):
        operand = _operand(node, share.input)
        if not operand or operand.nbytes == 0 or not at <= share.offset <= out.nbytes - operand.nbytes:
            continue
        if at < share.offset:
            byte_sources.append(ByteSource(at, share.offset - at))
        byte_sources.append(ByteSource(share.offset, operand.nbytes, share.input))
        at = share.offset + operand.nbytes
    if at < out.nbytes:
        byte_sources.append(ByteSource(at, out.nbytes - at))
    return tuple(byte_sources)


def _operand(node: Node, position: int) -> Value | None:
    """Return the input at a position; None for an absent input."""
    return node.inputs[position] if 0 <= position < len(node.inputs) else None


def compute_contents(
    graph: Graph, sources_by_node: Mapping[str, tuple[tuple[ByteSource, ...], ...]]
) -> dict[str, Content]:
    """Return the content of every value of the program, by name.

    A content with more than MAX_PIECES pieces, or pieces a row, counts as new bytes of the value's own token.
    """
    known = {value.name: own_content(value) for value in graph.values()}
    total = 0
    for node in graph.walk():
        if isinstance(node, While):
            known |= _equal_slices(node, known)
        if isinstance(node, While | CaseOf):
            continue
        for out, pieces in zip(node.outputs_and_scratch, sources_by_node[node.name], strict=True):
            if out is not None:
                content = concat_contents(_content(node, out, source, known) for source in pieces)
                total += len(content)
                rows = max(1, len(pieces) // max(1, len(node.inputs)))  # sources by rows: one a row for each input
                if len(content) <= rows * MAX_PIECES and total <= MAX_ALL_PIECES:
                    known[out.name] = content
    return known


def _equal_slices(node: While, known: Mapping[str, Content]) -> dict[str, Content]:
    """Return the content of each slice; slices of equal sequences, axes and directions get equal contents."""
    first: dict[object, Value] = {}
    equal: dict[str, Content] = {}
    for part, whole, axis, backwards in zip(
        node.slices, node.sequences, node.slice_axes, node.slice_reversed, strict=True
    ):
        other = first.setdefault((known[whole.name], whole.spec, axis, backwards), part)
        equal[part.name] = known[other.name]
    return equal


def _content(node: Node, out: Value, source: ByteSource, known: Mapping[str, Content]) -> Content:
    """Return the content of one source of an output."""
    operand = None if source.input is None else node.inputs[source.input]
    if operand is None:
        return (TokenRange(out.name, source.at, source.length),)
    return slice_content(known.get(operand.name) or own_content(operand), source.start, source.length)


def own_content(value: Value) -> Content:
    """Return the content of all bytes of the value's own token."""
    return (TokenRange(value.name, 0, value.nbytes),) if value.nbytes else ()


def slice_content(content: Content, begin: int, length: int) -> Content:
    """Return bytes [begin, begin + length) of a content."""
    pieces = []
    for token, start, size in content:
        low, high = max(begin, 0), min(begin + length, size)
        if low < high:
            pieces.append(TokenRange(token, start + low, high - low))
        begin -= size
    return tuple(pieces)


def concat_contents(contents_in_order: Iterable[Content]) -> Content:
    """Return the concatenation of contents; adjacent pieces that continue each other become one piece."""
    pieces: list[TokenRange] = []
    for content in contents_in_order:
        for piece in content:
            last = pieces[-1] if pieces else None
            if last and last.token == piece.token and last.start + last.length == piece.start:
                pieces[-1] = TokenRange(last.token, last.start, last.length + piece.length)
            else:
                pieces.append(piece)
    return tuple(pieces)
