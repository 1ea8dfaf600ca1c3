#include "plimsoll/c_api.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>

#include "module.h"
#include "plimsoll/engine/simulated_engine.h"
#include "stacks.h"

namespace plimsoll::python {
namespace {

Engine& engine_of(plimsoll_engine* handle) { return *reinterpret_cast<Engine*>(handle); }

int status_of(Status status) {
  switch (status) {
    case Status::success: return PLIMSOLL_SUCCESS;
    case Status::out_of_memory: return PLIMSOLL_OUT_OF_MEMORY;
    case Status::not_ready: return PLIMSOLL_NOT_READY;
    default: return PLIMSOLL_FAILED;
  }
}

void write_message(std::string_view text, char* message, std::size_t capacity) {
  if (capacity == 0) return;
  const std::size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(message, text.data(), length);
  message[length] = '\0';
}

int allocate(plimsoll_engine* handle, std::uint64_t size, std::uint64_t stream,
             std::uint32_t context, std::uint64_t* address, char* message, std::size_t capacity) {
  Engine& engine = engine_of(handle);
  try {
    {
      const EngineGuard guard;
      engine.allocator->set_context(context);
      *address = engine.malloc(size, stream);
    }
    engine.tell_of_spill(size);
    return PLIMSOLL_SUCCESS;
  } catch (const OutOfMemory& error) {
    write_message(error.what(), message, capacity);
    return PLIMSOLL_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    write_message(error.what(), message, capacity);
    return PLIMSOLL_FAILED;
  }
}

template <typename Call>
int guarded(Call call) {
  const EngineGuard guard;
  try {
    call();
    return PLIMSOLL_SUCCESS;
  } catch (const std::exception&) {
    return PLIMSOLL_FAILED;
  }
}

int release(plimsoll_engine* handle, std::uint64_t address, std::uint32_t context) {
  return guarded([&] {
    engine_of(handle).allocator->set_context(context);
    engine_of(handle).free(address);
  });
}

int record_stream(plimsoll_engine* handle, std::uint64_t address, std::uint64_t stream) {
  return guarded([&] {
    Engine& engine = engine_of(handle);
    engine.allocator->record_stream(engine.by_address.block(address), stream);
  });
}

void launch(plimsoll_engine* handle, std::uint64_t stream, double duration_ns) {
  const EngineGuard guard;
  engine_of(handle).driver().launch(stream, duration_ns);
}

void advance(plimsoll_engine* handle, double host_ns) {
  const EngineGuard guard;
  engine_of(handle).driver().host().advance(host_ns);
}

double done_at(plimsoll_engine* handle, std::uint64_t stream) {
  const EngineGuard guard;
  return engine_of(handle).driver().done_at_ns(stream);
}

int record_event(plimsoll_engine* handle, std::uint64_t stream, std::uint64_t* event) {
  const EngineGuard guard;
  Event recorded{};
  const Status status = engine_of(handle).driver().record(stream, recorded);
  *event = recorded;
  return status_of(status);
}

int query_event(plimsoll_engine* handle, std::uint64_t event) {
  const EngineGuard guard;
  return status_of(engine_of(handle).driver().query(event));
}

int synchronize_event(plimsoll_engine* handle, std::uint64_t event) {
  const EngineGuard guard;
  return status_of(engine_of(handle).driver().synchronize(event));
}

int destroy_event(plimsoll_engine* handle, std::uint64_t event) {
  const EngineGuard guard;
  return status_of(engine_of(handle).driver().destroy(event));
}

int wait_event(plimsoll_engine* handle, std::uint64_t stream, std::uint64_t event) {
  const EngineGuard guard;
  return status_of(engine_of(handle).driver().wait(stream, event));
}

int synchronize_stream(plimsoll_engine* handle, std::uint64_t stream) {
  const EngineGuard guard;
  return status_of(engine_of(handle).driver().synchronize_stream(stream));
}

void synchronize_device(plimsoll_engine* handle) {
  const EngineGuard guard;
  engine_of(handle).driver().synchronize_device();
}

int allocate_host(plimsoll_engine* handle, std::uint64_t size, std::uint64_t* address) {
  const EngineGuard guard;
  return status_of(engine_of(handle).driver().allocate_host(size, *address));
}

int deallocate_host(plimsoll_engine* handle, std::uint64_t address) {
  const EngineGuard guard;
  return status_of(engine_of(handle).driver().deallocate_host(address));
}

std::uint64_t shared_bytes(plimsoll_engine* handle, std::uint64_t address, std::uint64_t size) {
  const EngineGuard guard;
  SimulatedDriver& driver = engine_of(handle).driver();
  return driver.spilled() == 0 ? 0 : driver.shared_in(address, size);
}

constexpr plimsoll_c_api kEngineApi{
    PLIMSOLL_C_API_VERSION,
    allocate,
    release,
    record_stream,
    launch,
    advance,
    done_at,
    record_event,
    query_event,
    synchronize_event,
    destroy_event,
    wait_event,
    synchronize_stream,
    synchronize_device,
    allocate_host,
    deallocate_host,
    shared_bytes,
    capture_stack,
};

}  // namespace

void bind_c_api(nanobind::module_& module) {
  module.def(
      "c_api", [] { return reinterpret_cast<std::uintptr_t>(&kEngineApi); },
      "The address of the table of C functions in plimsoll/c_api.h.");
}

}  // namespace plimsoll::python
