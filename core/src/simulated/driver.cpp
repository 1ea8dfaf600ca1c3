#include "plimsoll/simulated/driver.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace plimsoll {
namespace {

// Each GPU has a window of addresses. Allocations are placed from the window's end downwards,
// reservations from its middle upwards. In a replay, the first GPU also uses addresses from the
// recording, or multiples of them. These addresses lie below the middle of its window.
constexpr Bytes kWindow = Bytes{1} << 53;
constexpr Bytes kReservable = Bytes{1} << 51;

}  // namespace

SimulatedDriver::SimulatedDriver(SimulatedHost& host, Bytes dedicated_capacity, DriverModel model,
                                 std::uint32_t ordinal)
    : host_(host),
      physical_(host, dedicated_capacity, model),
      virtual_(physical_, kWindow * ordinal + kWindow / 2, kReservable),
      allocations_(physical_, virtual_, kWindow * (Address{ordinal} + 1)),
      page_locked_(physical_),
      streams_(host),
      copies_(streams_) {}

void SimulatedDriver::charge(double duration_ns) {
  driver_ns_ += duration_ns;
  host_.advance(duration_ns);
}

Status SimulatedDriver::charge_valid(Status status, double duration_ns) {
  if (status != Status::invalid_value) charge(duration_ns);
  return status;
}

// --- memory --------------------------------------------------------------------------------------

Status SimulatedDriver::allocate(Bytes size, Address& address) {
  if (const Status status = calls_.begin(Call::allocate); status != Status::success) return status;
  if (size == 0) return Status::invalid_value;
  if (size > kReservable) return Status::out_of_memory;
  charge(costs_.allocate.of(size));
  return allocations_.allocate(size, address);
}

Status SimulatedDriver::deallocate(Address address) {
  if (const Status status = calls_.begin(Call::deallocate); status != Status::success) {
    return status;
  }
  const Bytes size = allocations_.size_at(address);
  if (size == 0) return Status::invalid_value;
  synchronize_device();
  charge(costs_.deallocate.of(size));
  allocations_.deallocate(address);
  return Status::success;
}

Status SimulatedDriver::allocate_host(Bytes size, Address& address) {
  if (const Status status = calls_.begin(Call::allocate_host); status != Status::success) {
    return status;
  }
  const Status status = page_locked_.allocate(size, address);
  if (status == Status::success) charge(costs_.of_locking(page_locked_.size_at(address)));
  return status;
}

Status SimulatedDriver::deallocate_host(Address address) {
  if (const Status status = calls_.begin(Call::deallocate_host); status != Status::success) {
    return status;
  }
  const Bytes size = page_locked_.size_at(address);
  if (size == 0 || copies_.use(address, size)) return Status::invalid_value;
  page_locked_.deallocate(address);
  return Status::success;
}

Status SimulatedDriver::reserve(Bytes size, Address& address) {
  if (const Status status = calls_.begin(Call::reserve); status != Status::success) return status;
  return charge_valid(virtual_.reserve(size, address), costs_.reserve);
}

Status SimulatedDriver::unreserve(Address address, Bytes size) {
  if (const Status status = calls_.begin(Call::unreserve); status != Status::success) return status;
  return charge_valid(virtual_.unreserve(address, size), costs_.reserve);
}

Status SimulatedDriver::create(Bytes size, Tier tier, Handle& handle) {
  if (const Status status = calls_.begin(Call::create); status != Status::success) return status;
  return charge_valid(virtual_.create(size, tier, handle),
                      tier == Tier::shared ? costs_.of_locking(size) : costs_.create.of(size));
}

Status SimulatedDriver::release(Handle handle) {
  if (const Status status = calls_.begin(Call::release); status != Status::success) return status;
  const Bytes size = virtual_.size_of(handle);
  return charge_valid(virtual_.release(handle), costs_.release.of(size));
}

Status SimulatedDriver::map(Address address, Bytes size, Handle handle) {
  if (const Status status = calls_.begin(Call::map); status != Status::success) return status;
  return charge_valid(virtual_.map(address, size, handle), costs_.map_per_handle);
}

Status SimulatedDriver::set_access(Address address, Bytes size) {
  if (const Status status = calls_.begin(Call::set_access); status != Status::success) {
    return status;
  }
  const auto count = static_cast<double>(virtual_.mappings_in(address, size));
  return charge_valid(virtual_.set_access(address, size), costs_.set_access_per_handle * count);
}

Status SimulatedDriver::unmap(Address address, Bytes size) {
  if (const Status status = calls_.begin(Call::unmap); status != Status::success) return status;
  if (copies_.use(address, size)) return Status::invalid_value;
  const auto count = static_cast<double>(virtual_.mappings_in(address, size));
  return charge_valid(virtual_.unmap(address, size), costs_.unmap_per_handle * count);
}

// --- streams and events --------------------------------------------------------------------------

Status SimulatedDriver::record(StreamId stream, Event& event) {
  if (const Status status = calls_.begin(Call::record); status != Status::success) return status;
  charge(costs_.event);
  event = streams_.record(stream);
  return Status::success;
}

Status SimulatedDriver::query(Event event) {
  if (const Status status = calls_.begin(Call::query); status != Status::success) return status;
  return streams_.query(event);
}

Status SimulatedDriver::synchronize(Event event) {
  if (const Status status = calls_.begin(Call::synchronize); status != Status::success) {
    return status;
  }
  return streams_.synchronize(event);
}

Status SimulatedDriver::synchronize_stream(StreamId stream) {
  if (const Status status = calls_.begin(Call::synchronize); status != Status::success) {
    return status;
  }
  streams_.synchronize_stream(stream);
  return Status::success;
}

Status SimulatedDriver::synchronize() {
  if (const Status status = calls_.begin(Call::synchronize); status != Status::success) {
    return status;
  }
  streams_.synchronize_all();
  return Status::success;
}

// --- content -------------------------------------------------------------------------------------

std::optional<MemoryPart> SimulatedDriver::part_at(Address address) {
  if (const auto part = virtual_.part_at(address)) return part;
  if (const auto part = allocations_.part_at(address)) return part;
  return page_locked_.part_at(address);
}

MemoryPart SimulatedDriver::known_part_at(Address address) {
  const auto part = part_at(address);
  if (!part) throw std::logic_error("there is no memory at " + format_address(address));
  return *part;
}

Status SimulatedDriver::copy(Address to, Address from, Bytes size, StreamId stream) {
  if (const Status status = calls_.begin(Call::copy); status != Status::success) return status;
  if (page_locked_.leaves_allocation(to, size) || page_locked_.leaves_allocation(from, size)) {
    return Status::invalid_value;
  }
  struct Write {
    MemoryPart target;
    std::uint64_t tag;
  };
  // All tags are read before any is written, because the ranges may overlap.
  std::vector<Write> writes;
  double duration_ns = 0;
  for (Bytes done = 0; done < size; done += writes.back().target.size) {
    const auto source = part_at(from + done);
    auto target = part_at(to + done);
    if (!source || !target) return Status::invalid_value;
    const Bytes most = std::min({source->size, target->size, size - done});
    target->size = source->content->end_of(source->offset, source->offset + most) - source->offset;
    writes.push_back({*target, source->content->at(source->offset)});
    duration_ns += costs_.of_copy(target->size, target->tier, source->tier);
  }
  for (const auto& [target, tag] : writes) {
    target.content->write(target.offset, target.offset + target.size, tag);
  }
  launch(stream, duration_ns);
  copies_.add(to, from, size, streams_.point_of(stream));
  return Status::success;
}

void SimulatedDriver::write_tag(Address address, Bytes size, std::uint64_t tag) {
  const Address end = address + size;
  while (address < end) {
    const MemoryPart part = known_part_at(address);
    const Bytes length = std::min(part.size, end - address);
    part.content->write(part.offset, part.offset + length, tag);
    address += length;
  }
}

std::uint64_t SimulatedDriver::tag_at(Address address) {
  const MemoryPart part = known_part_at(address);
  return part.content->at(part.offset);
}

Bytes SimulatedDriver::shared_in(Address address, Bytes size) {
  Bytes shared = 0;
  if (shared_used() == 0) return shared;
  for (Bytes done = 0; done < size;) {
    const auto part = part_at(address + done);
    const Bytes to_next_granule = kGranule - (address + done) % kGranule;
    const Bytes length = std::min(part ? part->size : to_next_granule, size - done);
    if (part && part->tier == Tier::shared) shared += length;
    done += length;
  }
  return shared;
}

}  // namespace plimsoll
