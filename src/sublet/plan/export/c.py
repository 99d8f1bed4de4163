"""A plan as C99: a header with sizes and offsets as constants and typed pointers, and a source with the arenas.

The files need only <stddef.h> and <stdint.h>, compile as C99, C11 and C++17 without a warning, and assert at compile
time that every offset is aligned and in range. Integer constants are unsigned; casts go through void pointers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import dedent

from sublet.base.errors import PlanError
from sublet.base.tensor import DType
from sublet.plan.export.table import (
    ExportContext,
    binding_descriptions,
    body_versions,
    identifiers,
    iteration_lines,
    live_points,
    sharing_reason,
)
from sublet.plan.records import POINTER, MemoryPlan, Placement, Region, Storage, bound_storage_name
from sublet.plan.statistics import require_counted

TYPES = {
    DType.BOOL: "uint8_t", DType.I8: "int8_t", DType.I16: "int16_t", DType.I32: "int32_t", DType.I64: "int64_t",
    DType.U8: "uint8_t", DType.U16: "uint16_t", DType.U32: "uint32_t", DType.U64: "uint64_t",
    DType.F32: "float", DType.F64: "double", DType.F16: "uint16_t", DType.BF16: "uint16_t",
}  # fmt: skip
"""The C type of an element; the bits of floats without a C type. Elements of all other types are bytes."""
LEAST_ALIGNMENT = 8
"""Bytes, of an arena array, so that elements of every type may lie at the start."""


def c_sources(plan: MemoryPlan, context: ExportContext) -> dict[str, str]:
    """Return the header and the source of a plan, by file name.

    Raises PlanError for linker sections of unknown arenas, and for a plan with values not counted.
    """
    require_counted(plan, "an array in C")
    unknown = set(context.sections) - {storage.name for storage in plan.arenas}
    if unknown:
        arenas = ", ".join(storage.name for storage in plan.arenas)
        raise PlanError(f"--section: unknown memory {sorted(unknown)[0]!r} (known: {arenas})")
    writer = _CWriter(plan, context)
    return {f"{writer.name}_memory.h": writer.header(), f"{writer.name}_memory.c": writer.source()}


class _CWriter:
    """A writer of the C header and source of one plan."""

    def __init__(self, plan: MemoryPlan, context: ExportContext) -> None:
        self._plan = plan
        self._told = context
        self.name = context.base_name(plan)
        self._places: dict[str, list[Placement]] = {}
        for place in plan.in_arenas:
            self._places.setdefault(place.value, []).append(place)
        self._arenas = identifiers(storage.name for storage in plan.arenas)
        self._tensors = identifiers(self._places, self._arenas.values())

    def header(self) -> str:
        guard = f"{self.name.upper()}_MEMORY_H"
        parts = [self._about(), f"#ifndef {guard}\n#define {guard}\n", _INCLUDES, _ASSERTION, _OPEN]
        parts += [self._arena(storage) for storage in self._plan.arenas]
        parts += [self._bound_storages(), self._event_table()]
        parts += [self._tensor(value, places) for value, places in self._places.items()]
        parts += [self._binding_comments(), self._copy_comments(), _CLOSE, f"#endif /* {guard} */\n"]
        return "\n".join(part for part in parts if part)

    def source(self) -> str:
        parts = [self._about(), f'#include "{self.name}_memory.h"\n', _ALIGNED, _SECTION if self._told.sections else ""]
        for storage in self._plan.arenas:
            section = self._told.sections.get(storage.name, "")
            placed = f' SUBLET_SECTION("{section}")' if section else ""  # C++ requires the section behind alignas
            parts.append(
                f"SUBLET_ALIGNED({self._alignment}){placed} uint8_t {self._array(storage)}[{self._bytes(storage)}];\n"
            )
        return "\n".join(part for part in parts if part)

    @property
    def _alignment(self) -> int:
        return max(self._plan.alignment, LEAST_ALIGNMENT)

    def _about(self) -> str:
        sizes = ", ".join(f"{storage.name} {storage.nbytes} bytes" for storage in self._plan.arenas)
        return dedent(f"""\
            /*
             * Memory of {_comment(self._plan.graph)}: {_comment(sizes)}.
             * Generated from the memory plan with the fingerprint {self._plan.fingerprint}.
             * "alive" gives the first and the last point; the header lists the event of each point.
             */
            """)

    def _array(self, storage: Storage) -> str:
        return f"{self.name}_{self._arenas[storage.name]}"

    def _bytes(self, storage: Storage) -> str:
        return f"{self._array(storage).upper()}_BYTES"

    def _arena(self, storage: Storage) -> str:
        count = max(1, storage.nbytes)  # C has no arrays of size 0
        return (
            f"#define {self._bytes(storage)} ((size_t){count}u)\n"
            f"#define {self._array(storage).upper()}_ALIGNMENT ((size_t){self._alignment}u)\n"
            f"extern uint8_t {self._array(storage)}[{self._bytes(storage)}];\n"
        )

    def _bound_storages(self) -> str:
        """Return macros with the sizes of bound storages.

        Comments mark the storages written by runs: the remaining storages hold constants and may stay in flash.
        """
        lines = []
        bound = [storage for storage in self._plan.storages if storage not in self._plan.arenas]
        taken = {*self._arenas.values(), *self._tensors.values()}
        names = identifiers((f"{storage.kind} {storage.name}" for storage in bound), taken)
        kept = {bound_storage_name(value) for value in self._plan.updated}
        for storage in bound:
            name = f"{self.name}_{names[f'{storage.kind} {storage.name}']}".upper()
            written = ", updated by each run" if storage.name in kept else ""
            lines.append(f"/* {_comment(storage.name)}: {storage.kind} in memory of the caller{written} */")
            lines.append(f"#define {name}_BYTES ((size_t){storage.nbytes}u)")
        for cycle in self._plan.exchanged:
            turns = _comment(", ".join(cycle))
            lines.append(
                f"/* after each run each takes the storage of the next, the last that of the first: {turns} */"
            )
        return "\n".join(lines) + "\n" if lines else ""

    def _event_table(self) -> str:
        """Return a comment with the event of each point, and the body version run by each iteration of a loop."""
        lines = [f"{at:>5} {point}" for at, point in enumerate(self._plan.points)]
        lines += [line for record in self._plan.rolled for line in iteration_lines(record)]
        return "\n".join(f" * {_comment(line)}" for line in lines).join(("/*\n", "\n */\n"))

    def _binding_comments(self) -> str:
        """Return comments with the possible bindings of renamed values, which have no own bytes."""
        standing = binding_descriptions(self._plan, self._told.graph)
        specs = {place.value: place.spec for place in self._plan.placements if place.how == POINTER}
        lines = (f"{value}: {spec}{self._role(value)}; {standing[value]}" for value, spec in specs.items())
        return "".join(f"/* {_comment(line)} */\n" for line in lines)

    def _copy_comments(self) -> str:
        """Return comments with the copies that loops, branches and updates make."""
        lines = (
            f"{move.edge}: copy {move.source} to {move.destination}, {move.nbytes} bytes" for move in self._plan.moves
        )
        return "".join(f"/* {_comment(line)} */\n" for line in lines)

    def _role(self, value: str) -> str:
        role = self._told.roles_of(value)
        return f", {role}" if role else ""

    def _tensor(self, value: str, places: Sequence[Placement]) -> str:
        """Return constants, checks and the pointer function of a tensor; one set a region for a tensor with several."""
        name = f"{self.name}_{self._tensors[value]}"
        upper, first = name.upper(), places[0]
        regions = list(dict.fromkeys(place.region for place in places))
        lines = [f"/* {line} */" for line in self._comments(value, places, regions)]
        lines.append(f"#define {upper}_BYTES ((size_t){first.region.nbytes}u)")
        for i, region in enumerate(regions):
            offset = f"{upper}_OFFSET" if len(regions) == 1 else f"{upper}_OFFSET_{i}"
            array = self._arenas[region.storage]
            lines.append(f"#define {offset} ((size_t){region.offset}u)")
            size = f"{upper}_BYTES"
            if region.rows > 1:
                lines.append(f"#define {upper}_ROWS ((size_t){region.rows}u)")
                lines.append(f"#define {upper}_PITCH ((size_t){region.pitch}u)")
                size = f"({upper}_ROWS - 1u) * {upper}_PITCH + {upper}_BYTES / {upper}_ROWS"
            lines.append(f"SUBLET_ASSERT({offset} + {size} <= {self.name.upper()}_{array.upper()}_BYTES,")
            lines.append(f"              {name}_{i}_in_range);")
            if region.offset % self._plan.alignment == 0:
                lines.append(f"SUBLET_ASSERT({offset} % {self._plan.alignment}u == 0u, {name}_{i}_aligned);")
            pointer = f"{name}_ptr" if len(regions) == 1 else f"{name}_ptr_{i}"
            lines.append(self._pointer(pointer, array, offset, first))
        loops = identifiers(stride.loop for stride in first.strides)
        for stride in first.strides:
            lines.append(f"#define {upper}_STRIDE_{loops[stride.loop].upper()} ({stride.step})")
        return "\n".join(lines) + "\n"

    def _comments(self, value: str, places: Sequence[Placement], regions: Sequence[Region]) -> Iterator[str]:
        yield f"{_comment(value)}: {_comment(places[0].spec)}, {places[0].region.nbytes} bytes{self._role(value)}"
        for place in places:
            number = f"{regions.index(place.region)} " if len(regions) > 1 else ""
            at = f"in {body_versions(place)} " if place.copies else ""
            reason = f"; {sharing_reason(place)}" if sharing_reason(place) else ""
            yield _comment(f" {number}{at}alive {live_points(place)}{reason}")

    def _pointer(self, name: str, array: str, offset: str, place: Placement) -> str:
        dtype = DType.parse(place.spec.partition("[")[0])
        width, type_ = dtype.bits // 8, TYPES.get(dtype, "uint8_t")
        if width and place.region.offset % width:
            type_ = "uint8_t"  # a pointer to wider elements would be misaligned
        return (
            f"static inline {type_} *{name}(void)\n"
            f"{{\n    return ({type_} *)(void *)&{self.name}_{array}[{offset}];\n}}"
        )


def _comment(text: str) -> str:
    """Return text safe inside a C comment on one line, in ASCII."""
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ").encode("ascii", "replace").decode()


_INCLUDES = "#include <stddef.h>\n#include <stdint.h>\n"

_ASSERTION = """\
#ifndef SUBLET_ASSERT
#if defined(__cplusplus)
#define SUBLET_ASSERT(condition, name) static_assert((condition), "differs from the plan")
#elif defined(__STDC_VERSION__) && (__STDC_VERSION__ >= 201112L)
#define SUBLET_ASSERT(condition, name) _Static_assert((condition), "differs from the plan")
#else
#define SUBLET_ASSERT(condition, name) typedef char name[(condition) ? 1 : -1]
#endif
#endif
"""

_OPEN = """\
#ifdef __cplusplus
extern "C" {
#endif
"""

_CLOSE = """\
#ifdef __cplusplus
}
#endif
"""

_ALIGNED = """\
#ifndef SUBLET_ALIGNED
#if defined(__cplusplus)
#define SUBLET_ALIGNED(n) alignas(n)
#elif defined(__STDC_VERSION__) && (__STDC_VERSION__ >= 201112L)
#define SUBLET_ALIGNED(n) _Alignas(n)
#elif defined(__GNUC__) || defined(__ARMCC_VERSION)
#define SUBLET_ALIGNED(n) __attribute__((aligned(n)))
#elif defined(_MSC_VER)
#define SUBLET_ALIGNED(n) __declspec(align(n))
#else
#error "define SUBLET_ALIGNED(n): the alignment attribute of this compiler"
#endif
#endif
"""

_SECTION = """\
#ifndef SUBLET_SECTION
#if defined(__GNUC__) || defined(__ARMCC_VERSION)
#define SUBLET_SECTION(name) __attribute__((section(name)))
#else
#error "define SUBLET_SECTION(name): the section attribute of this compiler"
#endif
#endif
"""
