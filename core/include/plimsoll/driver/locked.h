// Makes any driver safe for several threads by serializing its calls. The CUDA driver needs no such
// lock.
#pragma once

#include <mutex>
#include <string_view>
#include <utility>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

class LockedDriver : public Driver {
 public:
  // Takes a driver that outlives this object.
  explicit LockedDriver(Driver& driver) : driver_(driver) {}

  [[nodiscard]] std::string_view name() const override { return driver_.name(); }
  Status allocate(Bytes size, Address& address) override {
    return alone(&Driver::allocate, size, address);
  }
  Status deallocate(Address address) override { return alone(&Driver::deallocate, address); }
  Status allocate_host(Bytes size, Address& address) override {
    return alone(&Driver::allocate_host, size, address);
  }
  Status deallocate_host(Address address) override {
    return alone(&Driver::deallocate_host, address);
  }
  Status reserve(Bytes size, Address& address) override {
    return alone(&Driver::reserve, size, address);
  }
  Status unreserve(Address address, Bytes size) override {
    return alone(&Driver::unreserve, address, size);
  }
  Status create(Bytes size, Tier tier, Handle& handle) override {
    return alone(&Driver::create, size, tier, handle);
  }
  Status release(Handle handle) override { return alone(&Driver::release, handle); }
  Status map(Address address, Bytes size, Handle handle) override {
    return alone(&Driver::map, address, size, handle);
  }
  Status set_access(Address address, Bytes size) override {
    return alone(&Driver::set_access, address, size);
  }
  Status unmap(Address address, Bytes size) override {
    return alone(&Driver::unmap, address, size);
  }
  [[nodiscard]] bool spills() const override { return driver_.spills(); }
  [[nodiscard]] Bytes shared_in(Address address, Bytes size) override {
    return alone(&Driver::shared_in, address, size);
  }
  [[nodiscard]] bool has_virtual_memory() const override { return driver_.has_virtual_memory(); }
  Status export_handle(Handle handle, int& descriptor) override {
    return alone(&Driver::export_handle, handle, descriptor);
  }
  Status import_handle(int descriptor, Handle& handle) override {
    return alone(&Driver::import_handle, descriptor, handle);
  }
  Status enable_peer(int device) override { return alone(&Driver::enable_peer, device); }
  Status record(StreamId stream, Event& event) override {
    return alone(&Driver::record, stream, event);
  }
  Status query(Event event) override { return alone(&Driver::query, event); }
  Status synchronize(Event event) override {
    const std::lock_guard guard(mutex_);
    return driver_.synchronize(event);
  }
  Status destroy(Event event) override { return alone(&Driver::destroy, event); }
  Status wait(StreamId stream, Event event) override { return alone(&Driver::wait, stream, event); }
  Status synchronize_stream(StreamId stream) override {
    return alone(&Driver::synchronize_stream, stream);
  }
  Status synchronize() override {
    const std::lock_guard guard(mutex_);
    return driver_.synchronize();
  }
  Status copy(Address to, Address from, Bytes size, StreamId stream) override {
    return alone(&Driver::copy, to, from, size, stream);
  }
  [[nodiscard]] MemoryInfo memory_info() const override { return alone(&Driver::memory_info); }
  [[nodiscard]] MemoryInfo shared_info() const override { return alone(&Driver::shared_info); }
  [[nodiscard]] std::int64_t now_us() const override { return alone(&Driver::now_us); }
  [[nodiscard]] std::string last_error() const override { return alone(&Driver::last_error); }

 protected:
  // Returns a lock that keeps out other threads' calls. Derived classes hold it around operations
  // that `Driver` lacks.
  [[nodiscard]] std::unique_lock<std::mutex> exclude_calls() const {
    return std::unique_lock(mutex_);
  }

 private:
  // Calls the driver while no other thread calls it.
  template <typename Result, typename... Parameters, typename... Arguments>
  Result alone(Result (Driver::*call)(Parameters...), Arguments&&... arguments) {
    const std::lock_guard guard(mutex_);
    return (driver_.*call)(std::forward<Arguments>(arguments)...);
  }
  template <typename Result>
  Result alone(Result (Driver::*call)() const) const {
    const std::lock_guard guard(mutex_);
    return (driver_.*call)();
  }

  Driver& driver_;
  mutable std::mutex mutex_;
};

}  // namespace plimsoll
