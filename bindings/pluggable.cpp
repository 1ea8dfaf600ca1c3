// C functions for torch.cuda.memory.CUDAPluggableAllocator. They need no library that is compiled
// against PyTorch.
//
// PyTorch does not check the result of `alloc`, so `alloc` throws when a request fails. The
// exception passes through PyTorch's C++ to its Python binding, which raises a RuntimeError with
// PyTorch's text. Destructors call `free`, so `free` must not throw. It reports errors on stderr,
// and the memory stays allocated.
//
// The parameters have the types that PyTorch passes, without PyTorch's headers. A pair of numbers
// replaces c10's MempoolId_t, and streams have CUDA's type.
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "module.h"
#include "plimsoll/engine/process_engines.h"
#include "pytorch_runtime.h"

struct CUstream_st;

namespace plimsoll::python {
namespace {

using Stream = CUstream_st*;
using Pool = std::pair<std::uint64_t, std::uint64_t>;

Address address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
StreamId id_of(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream); }
PoolId id_of(Pool pool) { return {pool.first, pool.second}; }

Engine& engine_on(int device) {
  Engine* const engine = ProcessEngines::on(device);
  if (engine == nullptr) {
    throw std::runtime_error("plimsoll has no engine on GPU " + std::to_string(device));
  }
  return *engine;
}

std::string& error_text() {
  thread_local std::string text;
  return text;
}

// Returns whether the call failed. If so, `error_text` has the reason. This function must not be
// inlined: `throw_to_pytorch` throws through its callers' frames, and those frames must have no
// cleanup code, such as that of a `try`.
template <typename Call>
[[gnu::noinline]] bool fails(Call call) noexcept {
  try {
    call();
    return false;
  } catch (const std::exception& error) {
    error_text() = error.what();
    return true;
  }
}

[[noreturn]] void throw_error() { throw_to_pytorch(error_text().c_str()); }

// The functions that PyTorch calls. They are in a class because other files have functions of these
// names.
struct Pluggable {
  static void* allocate(std::size_t size, int device, Stream stream) {
    Address address = 0;
    const auto call = [&] { address = engine_on(device).allocate(size, id_of(stream)); };
    if (size != 0 && fails(call)) throw_error();
    return reinterpret_cast<void*>(address);
  }

  static void release(void* pointer, std::size_t, int device, Stream) noexcept {
    if (pointer == nullptr) return;
    const auto call = [&] {
      if (!engine_on(device).free(address_of(pointer))) {
        throw UnknownAddress(address_of(pointer));
      }
    };
    if (fails(call)) {
      std::fprintf(stderr, "plimsoll: memory of GPU %d could not be freed: %s\n", device,
                   error_text().c_str());
    }
  }

  static void empty_caches() {
    const auto call = [] { ProcessEngines::for_each([](Engine& one) { one.empty_cache({}); }); };
    if (fails(call)) throw_error();
  }

  static void set_memory_fraction(double fraction, int device) {
    const auto call = [&] { engine_on(device).set_fraction(fraction); };
    if (fails(call)) throw_error();
  }

  static void* base_allocation(void* pointer, std::size_t* size) {
    Address segment = 0;
    const auto call = [&] {
      Engine* const engine = ProcessEngines::owner_of(address_of(pointer));
      const auto found = engine != nullptr ? engine->locate(address_of(pointer)) : std::nullopt;
      if (!found) throw UnknownAddress(address_of(pointer));
      if (size != nullptr) *size = found->segment_size;
      segment = found->segment;
    };
    if (fails(call)) throw_error();
    return reinterpret_cast<void*>(segment);
  }

  static void record_stream(void* pointer, Stream stream) {
    if (pointer == nullptr) return;
    const auto call = [&] {
      bool known = false;
      ProcessEngines::for_each([&](Engine& engine) {
        known = known || engine.record_stream(address_of(pointer), id_of(stream));
      });
      if (!known) throw UnknownAddress(address_of(pointer));
    };
    if (fails(call)) throw_error();
  }

  // Treats every pool as the pool of a graph capture, because PyTorch does not tell a pluggable
  // allocator which pools belong to captures.
  static void begin_allocate_to_pool(int device, Pool pool, const PyTorchFunction<Stream>& filter) {
    const auto call = [&] {
      const Engine::Held held = engine_on(device).hold();
      held->begin_allocate_to_pool(id_of(pool), [asks = filter](StreamId stream) {
        return asks(reinterpret_cast<Stream>(stream));
      });
      held->begin_graph_capture();
    };
    if (fails(call)) throw_error();
  }

  static void end_allocate_to_pool(int device, Pool pool) {
    const auto call = [&] {
      const Engine::Held held = engine_on(device).hold();
      held->end_allocate_to_pool(id_of(pool));
      held->end_graph_capture();
    };
    if (fails(call)) throw_error();
  }

  static void release_pool(int device, Pool pool) {
    if (fails([&] { engine_on(device).release_pool(id_of(pool)); })) throw_error();
  }
};

nanobind::dict pluggable_functions() {
  nanobind::dict functions;
  const auto add = [&](const char* name, auto* function) {
    functions[name] = reinterpret_cast<std::uintptr_t>(function);
  };
  add("alloc", &Pluggable::allocate);
  add("free", &Pluggable::release);
  add("reset", &Pluggable::empty_caches);
  add("memory_fraction", &Pluggable::set_memory_fraction);
  add("base_alloc", &Pluggable::base_allocation);
  add("record_stream", &Pluggable::record_stream);
  add("begin_allocate_to_pool", &Pluggable::begin_allocate_to_pool);
  add("end_allocate_to_pool", &Pluggable::end_allocate_to_pool);
  add("release_pool", &Pluggable::release_pool);
  return functions;
}

}  // namespace

void bind_pluggable(nanobind::module_& module) {
  module.def("pluggable_functions", &pluggable_functions,
             nanobind::sig("def pluggable_functions() -> dict[str, int]"),
             "Addresses of C functions for torch.cuda.memory.CUDAPluggableAllocator.");
}

}  // namespace plimsoll::python
