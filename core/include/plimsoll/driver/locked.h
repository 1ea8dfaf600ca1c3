// Any driver, made safe for several threads: one call at a time. CUDA's needs no such help.
#pragma once

#include <mutex>
#include <string_view>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

class LockedDriver : public Driver {
 public:
  // `driver` outlives this.
  explicit LockedDriver(Driver& driver) : driver_(driver) {}

  [[nodiscard]] std::string_view name() const override { return driver_.name(); }
  Status allocate(Bytes size, Address& address) override {
    const std::lock_guard guard(mutex_);
    return driver_.allocate(size, address);
  }
  Status deallocate(Address address) override {
    const std::lock_guard guard(mutex_);
    return driver_.deallocate(address);
  }
  Status allocate_host(Bytes size, Address& address) override {
    const std::lock_guard guard(mutex_);
    return driver_.allocate_host(size, address);
  }
  Status deallocate_host(Address address) override {
    const std::lock_guard guard(mutex_);
    return driver_.deallocate_host(address);
  }
  Status reserve(Bytes size, Address& address) override {
    const std::lock_guard guard(mutex_);
    return driver_.reserve(size, address);
  }
  Status unreserve(Address address, Bytes size) override {
    const std::lock_guard guard(mutex_);
    return driver_.unreserve(address, size);
  }
  Status create(Bytes size, Tier tier, Handle& handle) override {
    const std::lock_guard guard(mutex_);
    return driver_.create(size, tier, handle);
  }
  Status release(Handle handle) override {
    const std::lock_guard guard(mutex_);
    return driver_.release(handle);
  }
  Status map(Address address, Bytes size, Handle handle) override {
    const std::lock_guard guard(mutex_);
    return driver_.map(address, size, handle);
  }
  Status set_access(Address address, Bytes size) override {
    const std::lock_guard guard(mutex_);
    return driver_.set_access(address, size);
  }
  Status unmap(Address address, Bytes size) override {
    const std::lock_guard guard(mutex_);
    return driver_.unmap(address, size);
  }
  [[nodiscard]] bool spills() const override { return driver_.spills(); }
  [[nodiscard]] Bytes shared_in(Address address, Bytes size) override {
    const std::lock_guard guard(mutex_);
    return driver_.shared_in(address, size);
  }
  [[nodiscard]] bool has_virtual_memory() const override { return driver_.has_virtual_memory(); }
  Status export_handle(Handle handle, int& descriptor) override {
    const std::lock_guard guard(mutex_);
    return driver_.export_handle(handle, descriptor);
  }
  Status import_handle(int descriptor, Handle& handle) override {
    const std::lock_guard guard(mutex_);
    return driver_.import_handle(descriptor, handle);
  }
  Status enable_peer(int device) override {
    const std::lock_guard guard(mutex_);
    return driver_.enable_peer(device);
  }
  Status record(StreamId stream, Event& event) override {
    const std::lock_guard guard(mutex_);
    return driver_.record(stream, event);
  }
  Status query(Event event) override {
    const std::lock_guard guard(mutex_);
    return driver_.query(event);
  }
  Status synchronize(Event event) override {
    const std::lock_guard guard(mutex_);
    return driver_.synchronize(event);
  }
  Status destroy(Event event) override {
    const std::lock_guard guard(mutex_);
    return driver_.destroy(event);
  }
  Status wait(StreamId stream, Event event) override {
    const std::lock_guard guard(mutex_);
    return driver_.wait(stream, event);
  }
  Status synchronize_stream(StreamId stream) override {
    const std::lock_guard guard(mutex_);
    return driver_.synchronize_stream(stream);
  }
  Status synchronize() override {
    const std::lock_guard guard(mutex_);
    return driver_.synchronize();
  }
  Status copy(Address to, Address from, Bytes size, StreamId stream) override {
    const std::lock_guard guard(mutex_);
    return driver_.copy(to, from, size, stream);
  }
  [[nodiscard]] MemoryInfo memory_info() const override {
    const std::lock_guard guard(mutex_);
    return driver_.memory_info();
  }
  [[nodiscard]] MemoryInfo shared_info() const override {
    const std::lock_guard guard(mutex_);
    return driver_.shared_info();
  }
  [[nodiscard]] std::int64_t now_us() const override {
    const std::lock_guard guard(mutex_);
    return driver_.now_us();
  }
  [[nodiscard]] std::string last_error() const override {
    const std::lock_guard guard(mutex_);
    return driver_.last_error();
  }

 protected:
  // For what a driver offers besides these calls.
  [[nodiscard]] std::unique_lock<std::mutex> exclude_calls() const {
    return std::unique_lock(mutex_);
  }

 private:
  Driver& driver_;
  mutable std::mutex mutex_;
};

}  // namespace plimsoll
