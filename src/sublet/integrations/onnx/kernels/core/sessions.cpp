// Sessions of ONNX Runtime through its C API: operands are bound to addresses, and runs enter no Python.
//
// Python opens the library of the installed ONNX Runtime, and gives the address of its entry: the build needs no file of
// ONNX Runtime. The C API is a table of functions. New versions add functions at the end, so a function keeps its place.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "operands.hpp"

using namespace nb::literals;

namespace {

// The places of functions in the table.
enum Function : size_t {
    GetErrorMessage = 2,
    CreateSessionFromArray = 8,
    Run = 9,
    CreateSessionOptions = 10,
    SetOptimizedModelFilePath = 11,
    DisableMemPattern = 17,
    DisableCpuMemArena = 19,
    SetSessionLogSeverityLevel = 22,
    SetSessionGraphOptimizationLevel = 23,
    SetIntraOpNumThreads = 24,
    CreateRunOptions = 39,
    CreateTensorWithDataAsOrtValue = 49,
    CreateCpuMemoryInfo = 69,
    ReleaseStatus = 93,
    ReleaseSession = 95,
    ReleaseValue = 96,
    ReleaseSessionOptions = 100,
    CreateEnvWithGlobalThreadPools = 119,
    DisablePerSessionThreads = 120,
    CreateThreadingOptions = 121,
    ReleaseThreadingOptions = 122,
    SetGlobalIntraOpNumThreads = 147,
    SetGlobalInterOpNumThreads = 148,
    AddExternalInitializers = 210,
};

constexpr uint32_t api_version = 13;  // the first with all of these functions
constexpr int log_fatal = 4, disable_all = 0, device_allocator = 0, memory_default = 0;

struct ApiBase {
    void* const* (*table)(uint32_t version);
    const char* (*version)();
};

using Constant = std::tuple<std::string, int, std::vector<int64_t>, size_t>;  // name, element type, shape, address
using Numbered = std::tuple<std::string, int, size_t, size_t>;  // name, element type, numbers of shape and address

// The library, with the environment of the process and one pool of threads for all sessions that share it.
class Library {
  public:
    // `entry` is the address of OrtGetApiBase; `threads` the number of threads of the pool, 0 for all cores.
    Library(size_t entry, int threads) {
        table_ = reinterpret_cast<const ApiBase* (*)()>(entry)()->table(api_version);
        if (!table_) throw std::runtime_error("the C API is older than version 13");
        void* threading = nullptr;
        call(CreateThreadingOptions, &threading);
        call(SetGlobalIntraOpNumThreads, threading, threads);
        call(SetGlobalInterOpNumThreads, threading, 1);  // nodes run one after another
        call(CreateEnvWithGlobalThreadPools, log_fatal, "sublet", static_cast<const void*>(threading), &environment_);
        release(ReleaseThreadingOptions, threading);
        call(CreateCpuMemoryInfo, device_allocator, memory_default, &memory_);
        call(CreateRunOptions, &run_options_);
    }

    // Call a function of the table. Throws the message of ONNX Runtime for a failure.
    template <typename... Arguments>
    void call(Function which, Arguments... arguments) const {
        void* status = reinterpret_cast<void* (*)(Arguments...)>(table_[which])(arguments...);
        if (!status) return;
        const std::string message = reinterpret_cast<const char* (*)(const void*)>(table_[GetErrorMessage])(status);
        release(ReleaseStatus, status);
        throw std::runtime_error(message);
    }

    void release(Function which, void* object) const { reinterpret_cast<void (*)(void*)>(table_[which])(object); }

    // A tensor over memory of the caller. ONNX Runtime works out the number of bytes from type and shape.
    void* tensor(int type, const std::vector<int64_t>& shape, size_t address) const {
        void* value = nullptr;
        call(CreateTensorWithDataAsOrtValue, static_cast<const void*>(memory_), reinterpret_cast<void*>(address),
             SIZE_MAX, shape.data(), shape.size(), type, &value);
        return value;
    }

    const void* environment() const { return environment_; }
    const void* run_options() const { return run_options_; }

  private:
    void* const* table_ = nullptr;
    void* environment_ = nullptr;  // never released: threads of the pool end with the process
    void* memory_ = nullptr;
    void* run_options_ = nullptr;
};

class Session {
  public:
    // Open a session over bare kernels: no optimisation, no memory planning, no memory kept between runs.
    // A shared pool is the pool of the library; else the session opens `threads` threads of its own, 0 for all cores.
    Session(const Library& library, nb::bytes model, const std::vector<Constant>& constants, int threads,
            bool shared_pool, const std::string& optimized_path)
        : library_(library) {
        std::vector<void*> values;
        void* options = nullptr;
        library.call(CreateSessionOptions, &options);
        try {
            library.call(SetSessionGraphOptimizationLevel, options, disable_all);
            library.call(DisableMemPattern, options);
            library.call(DisableCpuMemArena, options);
            library.call(SetSessionLogSeverityLevel, options, log_fatal);
            if (shared_pool)
                library.call(DisablePerSessionThreads, options);
            else
                library.call(SetIntraOpNumThreads, options, threads);
            if (!optimized_path.empty()) library.call(SetOptimizedModelFilePath, options, optimized_path.c_str());
            std::vector<const char*> names;
            for (const auto& [name, type, shape, address] : constants) {
                names.push_back(name.c_str());
                values.push_back(library.tensor(type, shape, address));
            }
            if (!names.empty())
                library.call(AddExternalInitializers, options, names.data(), values.data(), names.size());
            const void* content = model.data();
            const size_t size = model.size();
            nb::gil_scoped_release unlocked;
            library.call(CreateSessionFromArray, library.environment(), content, size,
                         static_cast<const void*>(options), &session_);
        } catch (...) {
            end(options, values);
            throw;
        }
        end(options, values);
    }
    Session(const Session&) = delete;
    ~Session() { library_.release(ReleaseSession, session_); }

    const Library& library() const { return library_; }
    void* get() const { return session_; }

  private:
    void end(void* options, const std::vector<void*>& values) {
        library_.release(ReleaseSessionOptions, options);
        for (void* value : values) library_.release(ReleaseValue, value);
    }

    const Library& library_;
    void* session_ = nullptr;
};

// The operands of a session, inputs first: name, element type, and the numbers of shape and address in the lists given
// to `Binding`.
class Table {
  public:
    Table(const Session& session, std::vector<Numbered> operands, size_t inputs)
        : session_(session), operands_(std::move(operands)), inputs_(inputs) {
        if (inputs > operands_.size()) throw std::invalid_argument("more inputs than operands");
        for (const auto& operand : operands_) names_.push_back(std::get<0>(operand).c_str());
    }
    Table(const Table&) = delete;

    const Session& session() const { return session_; }
    size_t inputs() const { return inputs_; }
    const std::vector<const char*>& names() const { return names_; }
    const Numbered& operand(size_t number) const { return operands_.at(number); }

  private:
    const Session& session_;
    std::vector<Numbered> operands_;
    size_t inputs_;
    std::vector<const char*> names_;
};

// All operands of a session at their addresses.
class Binding {
  public:
    Binding(const Table& table, nb::list shapes, nb::list addresses) : table_(table) {
        values_.resize(table.names().size());
        origins_.resize(values_.size());
        try {
            move(shapes, addresses);
        } catch (...) {
            release();
            throw;
        }
    }
    Binding(const Binding&) = delete;
    ~Binding() { release(); }

    void bind(size_t number, const std::vector<int64_t>& shape, size_t address) {
        const Library& library = table_.session().library();
        void* value = library.tensor(std::get<1>(table_.operand(number)), shape, address);
        library.release(ReleaseValue, std::exchange(values_[number], value));
        origins_[number] = Origin();
    }

    // Bind the operands of which shape or address changed.
    void move(nb::list shapes, nb::list addresses) {
        for (size_t i = 0; i < values_.size(); i++) {
            const auto& [name, type, shape, address] = table_.operand(i);
            if (!origins_[i].differs(shapes, addresses, shape, address)) continue;
            bind(i, Origin::shape_at(shapes, shape), Origin::address_at(addresses, address));
            origins_[i].set(shapes, addresses, shape, address);
        }
    }

    void run() {
        const auto& names = table_.names();
        const size_t inputs = table_.inputs();
        const Session& session = table_.session();
        session.library().call(Run, session.get(), session.library().run_options(),
                               static_cast<const char* const*>(names.data()),
                               static_cast<const void* const*>(values_.data()), inputs,
                               static_cast<const char* const*>(names.data() + inputs), names.size() - inputs,
                               values_.data() + inputs);
    }

  private:
    void release() {
        for (void* value : values_) table_.session().library().release(ReleaseValue, value);
    }

    const Table& table_;
    std::vector<void*> values_;
    std::vector<Origin> origins_;
};

}  // namespace

void add_caches(nb::module_& module);  // caches.cpp

NB_MODULE(_sessions, module) {
    nb::set_leak_warnings(false);  // sessions kept open in the child of a fork are never closed
    nb::class_<Library>(module, "Library").def(nb::init<size_t, int>(), "entry"_a, "threads"_a);
    nb::class_<Session>(module, "Session")
        .def(nb::init<const Library&, nb::bytes, const std::vector<Constant>&, int, bool, const std::string&>(),
             "library"_a, "model"_a, "constants"_a, "threads"_a, "shared_pool"_a, "optimized_path"_a,
             nb::keep_alive<1, 2>());
    nb::class_<Table>(module, "Table")
        .def(nb::init<const Session&, std::vector<Numbered>, size_t>(), "session"_a, "operands"_a, "inputs"_a,
             nb::keep_alive<1, 2>());
    nb::class_<Binding>(module, "Binding")
        .def(nb::init<const Table&, nb::list, nb::list>(), "table"_a, "shapes"_a, "addresses"_a,
             nb::keep_alive<1, 2>())
        .def("bind", &Binding::bind, "number"_a, "shape"_a, "address"_a)
        .def("move", &Binding::move, "shapes"_a, "addresses"_a)
        .def("__call__", &Binding::run, nb::call_guard<nb::gil_scoped_release>());
    add_caches(module);
}
