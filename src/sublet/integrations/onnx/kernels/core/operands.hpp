// Operands of a call at a point: Python gives two lists, with all shapes and all addresses of a program.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nb = nanobind;

using Shape = std::vector<int64_t>;

// The elements of both lists that an operand was bound from. A list keeps its element as long as the content stays the
// same, so the same elements need no second binding: between two tokens of a decoder most operands stay.
class Origin {
  public:
    Origin() = default;

    // True if the operand moved: elements of the lists differ from those of the latest `set`.
    bool differs(const nb::list& shapes, const nb::list& addresses, size_t shape, size_t address) const {
        return !shape_.is(element(shapes, shape)) || !address_.is(element(addresses, address));
    }
    void set(const nb::list& shapes, const nb::list& addresses, size_t shape, size_t address) {
        shape_ = nb::borrow(element(shapes, shape));
        address_ = nb::borrow(element(addresses, address));
    }

    static Shape shape_at(const nb::list& shapes, size_t number) { return nb::cast<Shape>(element(shapes, number)); }
    static size_t address_at(const nb::list& addresses, size_t number) {
        return nb::cast<size_t>(element(addresses, number));
    }

  private:
    static nb::handle element(const nb::list& list, size_t number) {
        PyObject* found = PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(number));
        if (!found) nb::raise_python_error();
        return found;
    }

    nb::object shape_, address_;
};
