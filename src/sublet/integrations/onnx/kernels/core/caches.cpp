// Kernels over caches that grow in place: an append of rows, and products of few rows with a cache.
//
// For a single new token a product reads each row of the cache once, so memory decides the time. A call enters no Python:
// between two layers of a large decoder the weights evict Python's own data from the processor's caches.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "operands.hpp"

using namespace nb::literals;

// GCC compiles loops for several processors, and glibc chooses when the module is loaded.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) && \
    !defined(__SANITIZE_ADDRESS__)
#define FOR_SEVERAL_PROCESSORS __attribute__((target_clones("avx2", "default")))
#else
#define FOR_SEVERAL_PROCESSORS
#endif

namespace {

using Places = std::vector<std::pair<size_t, size_t>>;  // the numbers of shape and address of each operand

constexpr int lanes = 16;  // partial sums of a product: the same on every processor, so the result is

// out[r][j] = alpha * sum over k of x[r][k] * w[j * pitch + k]
FOR_SEVERAL_PROCESSORS
void multiply_by_rows(const float* x, int64_t rows, int64_t inner, const float* w, int64_t pitch, float* out,
                      int64_t columns, float alpha) {
    for (int64_t j = 0; j < columns; j++) {
        const float* row = w + j * pitch;
        for (int64_t r = 0; r < rows; r++) {
            const float* left = x + r * inner;
            float sums[lanes] = {};
            int64_t k = 0;
            for (; k + lanes <= inner; k += lanes)
                for (int i = 0; i < lanes; i++) sums[i] += left[k + i] * row[k + i];
            for (int i = 0; k < inner; k++, i++) sums[i] += left[k] * row[k];
            for (int i = 0; i < 8; i++) sums[i] += sums[i + 8];
            for (int i = 0; i < 4; i++) sums[i] += sums[i + 4];
            out[r * columns + j] = alpha * ((sums[0] + sums[2]) + (sums[1] + sums[3]));
        }
    }
}

// out[r][j] = alpha * sum over k of x[r][k] * w[k * pitch + j]
FOR_SEVERAL_PROCESSORS
void multiply_by_columns(const float* x, int64_t rows, int64_t inner, const float* w, int64_t pitch, float* out,
                         int64_t columns, float alpha) {
    std::memset(out, 0, sizeof(float) * rows * columns);
    constexpr int64_t together = 4;  // rows of the cache added in one pass over the result
    int64_t k = 0;
    for (; k + together <= inner; k += together) {
        const float *w0 = w + k * pitch, *w1 = w0 + pitch, *w2 = w1 + pitch, *w3 = w2 + pitch;
        for (int64_t r = 0; r < rows; r++) {
            const float* left = x + r * inner + k;
            const float a = alpha * left[0], b = alpha * left[1], c = alpha * left[2], d = alpha * left[3];
            float* to = out + r * columns;
            for (int64_t j = 0; j < columns; j++) to[j] += (a * w0[j] + b * w1[j]) + (c * w2[j] + d * w3[j]);
        }
    }
    for (; k < inner; k++)
        for (int64_t r = 0; r < rows; r++) {
            const float factor = alpha * x[r * inner + k];
            for (int64_t j = 0; j < columns; j++) out[r * columns + j] += factor * w[k * pitch + j];
        }
}

int64_t product_of(const Shape& shape, size_t begin, size_t end) {
    int64_t product = 1;
    for (size_t i = begin; i < end; i++) product *= shape[i];
    return product;
}

// Operands at a point: shapes and addresses, both of which may change.
class Bound {
  public:
    explicit Bound(const Places& places)
        : places_(places), shapes_(places.size()), addresses_(places.size()), origins_(places.size()) {}

    // Return true if any shape or address changed.
    bool move(nb::list shapes, nb::list addresses) {
        bool moved = false;
        for (size_t i = 0; i < places_.size(); i++) {
            const auto [shape, address] = places_[i];
            if (!origins_[i].differs(shapes, addresses, shape, address)) continue;
            shapes_[i] = Origin::shape_at(shapes, shape);
            addresses_[i] = Origin::address_at(addresses, address);
            origins_[i].set(shapes, addresses, shape, address);
            moved = true;
        }
        return moved;
    }

  protected:
    template <typename Element>
    Element* at(size_t operand) const { return reinterpret_cast<Element*>(addresses_[operand]); }

    const Places& places_;
    std::vector<Shape> shapes_;
    std::vector<size_t> addresses_;

  private:
    std::vector<Origin> origins_;
};

// Operands: buffer, rows, length, result. The rows follow after the first `length` rows along `axis`.
struct Append {
    Places places;
    size_t axis, item_bytes;
};

class BoundAppend : public Bound {
  public:
    BoundAppend(const Append& op, nb::list shapes, nb::list addresses) : Bound(op.places), op_(op) {
        move(shapes, addresses);
    }

    void run() const {
        const Shape& shape = shapes_[3];
        const int64_t length = *at<const int64_t>(2), count = shapes_[1][op_.axis], room = shape[op_.axis];
        if (length < 0 || length > room - count) throw std::out_of_range("the rows have no room in the cache");
        const size_t row = product_of(shape, op_.axis + 1, shape.size()) * op_.item_bytes;
        const int64_t lists = product_of(shape, 0, op_.axis);
        char* out = at<char>(3);
        const char *buffer = at<const char>(0), *rows = at<const char>(1);
        for (int64_t i = 0; i < lists; i++) {
            char* list = out + i * room * row;
            if (out != buffer) std::memcpy(list, buffer + i * room * row, length * row);
            std::memcpy(list + length * row, rows + i * count * row, count * row);
        }
    }

  private:
    const Append& op_;
};

// Operands: rows, cache, result, in f32. `order` are the axes of the cache that are the rows and columns of a matrix; one
// of them is the last axis. Each matrix meets `repeats` consecutive matrices of rows. Products of more than `most_rows`
// rows, those of all repeats together, are left to Python.
struct Product {
    Places places;
    std::pair<size_t, size_t> order;
    int64_t repeats;
    float alpha;
    int64_t most_rows;
};

class BoundProduct : public Bound {
  public:
    // `larger` is the call in Python for products of more rows.
    BoundProduct(const Product& op, nb::object larger, nb::list shapes, nb::list addresses)
        : Bound(op.places), op_(op), larger_(std::move(larger)) {
        move(shapes, addresses);
    }

    void move(nb::list shapes, nb::list addresses) {
        if (!Bound::move(shapes, addresses)) return;
        const Shape& left = shapes_[0];
        rows_ = left[left.size() - 2] * op_.repeats;
        if (rows_ > op_.most_rows)
            larger_.attr("move")(shapes, addresses);
        else
            find_matrices();
    }

    void call() const {
        if (rows_ > op_.most_rows) {
            larger_();
            return;
        }
        nb::gil_scoped_release unlocked;
        run();
    }

  private:
    void find_matrices() {
        const Shape& cache = shapes_[1];
        if (cache == cache_) return;
        is_by_rows_ = op_.order.first + 1 == cache.size();
        const size_t outer = is_by_rows_ ? op_.order.second : op_.order.first;
        pitch_ = product_of(cache, outer + 1, cache.size());
        offsets_ = {0};
        for (size_t axis = 0; axis + 1 < cache.size(); axis++) {
            if (axis == outer) continue;
            const int64_t step = product_of(cache, axis + 1, cache.size());
            std::vector<int64_t> more;
            for (int64_t offset : offsets_)
                for (int64_t i = 0; i < cache[axis]; i++) more.push_back(offset + i * step);
            offsets_ = std::move(more);
        }
        cache_ = cache;
    }

    void run() const {
        const Shape &left = shapes_[0], &result = shapes_[2];
        const int64_t inner = left.back(), columns = result.back(), rows = left[left.size() - 2] * op_.repeats;
        const float *x = at<const float>(0), *cache = at<const float>(1);
        float* out = at<float>(2);
        const auto multiply = is_by_rows_ ? multiply_by_rows : multiply_by_columns;
        for (int64_t offset : offsets_) {
            multiply(x, rows, inner, cache + offset, pitch_, out, columns, op_.alpha);
            x += rows * inner;
            out += rows * columns;
        }
    }

    const Product& op_;
    nb::object larger_;
    int64_t rows_ = 0;
    Shape cache_;  // the shape that the following belong to
    bool is_by_rows_ = false;
    int64_t pitch_ = 0;
    std::vector<int64_t> offsets_;  // of the matrices in the cache
};

}  // namespace

void add_caches(nb::module_& module) {
    nb::class_<Append>(module, "Append")
        .def("__init__", [](Append* op, Places places, size_t axis, size_t item_bytes) {
            new (op) Append{std::move(places), axis, item_bytes};
        }, "places"_a, "axis"_a, "item_bytes"_a);
    nb::class_<Product>(module, "Product")
        .def("__init__", [](Product* op, Places places, std::pair<size_t, size_t> order, int64_t repeats, float alpha,
                            int64_t most_rows) {
            new (op) Product{std::move(places), order, repeats, alpha, most_rows};
        }, "places"_a, "order"_a, "repeats"_a, "alpha"_a, "most_rows"_a);
    nb::class_<BoundAppend>(module, "BoundAppend")
        .def(nb::init<const Append&, nb::list, nb::list>(), "op"_a, "shapes"_a, "addresses"_a, nb::keep_alive<1, 2>())
        .def("move", [](BoundAppend& self, nb::list shapes, nb::list addresses) { self.move(shapes, addresses); },
             "shapes"_a, "addresses"_a)
        .def("__call__", &BoundAppend::run, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<BoundProduct>(module, "BoundProduct")
        .def(nb::init<const Product&, nb::object, nb::list, nb::list>(), "op"_a, "larger"_a, "shapes"_a, "addresses"_a,
             nb::keep_alive<1, 2>())
        .def("move", &BoundProduct::move, "shapes"_a, "addresses"_a)
        .def("__call__", &BoundProduct::call);
}
