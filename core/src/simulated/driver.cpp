#include "plimsoll/simulated/driver.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace plimsoll {
namespace {

// Each GPU has a window of addresses: allocations come down from its end, reservations go up from
// its middle. What is fed to the first GPU, a recorded address or a multiple of one, lies below.
constexpr Bytes kWindow = Bytes{1} << 53;
constexpr Bytes kReservable = Bytes{1} << 51;
constexpr Address kFirstHostAddress = Address{0x2} << 40;
constexpr Bytes kChunk = 32 * kMiB;
constexpr Bytes kSmallAlignment = 512;

bool is_granular(Address address, Bytes size) {
  return size > 0 && address % kGranule == 0 && size % kGranule == 0;
}

}  // namespace

double Price::of(Bytes size) const {
  constexpr auto span = static_cast<double>(512 * kMiB - kGranule);
  const double beyond = std::max(0.0, static_cast<double>(size) - static_cast<double>(kGranule));
  return at_granule + (at_512_mib - at_granule) * beyond / span;
}

SimulatedDriver::SimulatedDriver(SimulatedHost& host, Bytes dedicated_capacity, DriverModel model,
                                 std::uint32_t ordinal)
    : host_(host),
      dedicated_capacity_(dedicated_capacity),
      model_(model),
      lowest_(kWindow * (Address{ordinal} + 1)),
      first_reservable_(kWindow * ordinal + kWindow / 2),
      reservable_(first_reservable_, kReservable) {}

Status SimulatedDriver::begin(Call call) {
  ++calls_[static_cast<std::size_t>(call)];
  Status status = Status::success;
  for (auto& [fault, seen] : faults_) {
    if (fault.call != call) continue;
    ++seen;
    if (seen > fault.after && seen - fault.after <= fault.times) status = fault.status;
  }
  return status;
}

void SimulatedDriver::charge(double duration_ns) {
  driver_ns_ += duration_ns;
  host_.advance(duration_ns);
}

std::optional<SimulatedDriver::Physical> SimulatedDriver::take(Bytes size, Tier tier) {
  const Bytes dedicated_free = dedicated_capacity_ - dedicated_used_;
  const Bytes shared_free = host_.shared_capacity_ - host_.shared_used_;
  Physical physical{size, 0, 0};
  if (tier == Tier::shared) {
    physical.shared = size;
  } else if (model_ == DriverModel::wddm) {
    physical.dedicated = std::min(size, round_down(dedicated_free, kGranule));
    physical.shared = size - physical.dedicated;
  } else {
    physical.dedicated = size;
  }
  if (physical.dedicated > dedicated_free || physical.shared > shared_free) return std::nullopt;
  dedicated_used_ += physical.dedicated;
  shared_used_ += physical.shared;
  host_.shared_used_ += physical.shared;
  return physical;
}

void SimulatedDriver::give_back(const Physical& physical) {
  dedicated_used_ -= physical.dedicated;
  shared_used_ -= physical.shared;
  host_.shared_used_ -= physical.shared;
}

// Whether nothing holds any part of a range: no allocation, no chunk and no mapped reservation.
bool SimulatedDriver::is_vacant(Address address, Bytes size) const {
  const auto overlaps = [&](const auto& ranges, auto length_of) {
    const auto after = ranges.lower_bound(address + size);
    if (after == ranges.begin()) return false;
    const auto& [begin, range] = *std::prev(after);
    return begin + length_of(range) > address;
  };
  return !overlaps(allocations_, [](const Physical& range) { return range.size; }) &&
         !overlaps(chunks_, [](Bytes range) { return range; }) &&
         !overlaps(mappings_, [](const Mapping& range) { return range.size; });
}

std::optional<Address> SimulatedDriver::fed_address(Bytes size) {
  if (fed_.empty() || fed_.front().size != size) return std::nullopt;
  const Address address = fed_.front().address;
  fed_.pop_front();
  if (chunk_addresses_.take_at(address, size)) return address;
  if (!is_vacant(address, size)) return std::nullopt;
  returned_.take_all_of(address, size);
  lowest_ = std::min(lowest_, address);
  return address;
}

std::optional<Address> SimulatedDriver::fed_reservation(Bytes size) {
  if (fed_reservations_.empty()) return std::nullopt;
  const Address address = fed_reservations_.front();
  fed_reservations_.pop_front();
  reservable_.take_all_of(address, size);
  return address;
}

// As the CUDA driver was seen to do on Linux: address space comes in chunks of 32 MiB and more, the
// highest that were given back first, then below all others; what is left of a chunk is used from
// its lowest address up.
Address SimulatedDriver::take_address(Bytes size) {
  if (const auto place = chunk_addresses_.take(size, kGranule)) return *place;
  const Bytes chunk_size = round_up(size, kChunk);
  const auto returned = returned_.take_highest(chunk_size, kChunk);
  if (!returned) lowest_ = round_down(lowest_ - chunk_size, kChunk);
  const Address chunk = returned.value_or(lowest_);
  chunks_.emplace(chunk, chunk_size);
  chunk_addresses_.give(chunk + size, chunk_size - size);
  return chunk;
}

void SimulatedDriver::give_address(Address address, Bytes size) {
  const auto after = chunks_.upper_bound(address);
  const auto chunk = after == chunks_.begin() ? chunks_.end() : std::prev(after);
  if (chunk == chunks_.end() || chunk->first + chunk->second <= address) {
    return returned_.give(address, size);
  }
  chunk_addresses_.give(address, size);
  const auto [begin, length] = *chunk;
  if (!chunk_addresses_.take_at(begin, length)) return;
  returned_.give(begin, length);
  chunks_.erase(chunk);
}

Status SimulatedDriver::allocate(Bytes size, Address& address) {
  if (const Status status = begin(Call::allocate); status != Status::success) return status;
  if (size == 0) return Status::invalid_value;
  if (size > kReservable) return Status::out_of_memory;
  charge(costs_.allocate.of(size));
  if (size < kGranule && fed_.empty()) return allocate_small(size, address);
  const auto physical = take(round_up(size, kGranule), Tier::dedicated);
  if (!physical) return Status::out_of_memory;
  const auto fed = fed_address(physical->size);
  address = fed ? *fed : take_address(physical->size);
  allocations_.emplace(address, *physical);
  return Status::success;
}

// Allocations below a granule share granules, as cudaMalloc's do.
Status SimulatedDriver::allocate_small(Bytes size, Address& address) {
  size = round_up(size, kSmallAlignment);
  auto place = small_addresses_.take(size, kSmallAlignment);
  if (!place) {
    const auto physical = take(kGranule, Tier::dedicated);
    if (!physical) return Status::out_of_memory;
    const Address granule = take_address(kGranule);
    small_granules_.emplace(granule, *physical);
    small_addresses_.give(granule, kGranule);
    place = small_addresses_.take(size, kSmallAlignment);
  }
  address = *place;
  small_allocations_.emplace(address, size);
  return Status::success;
}

// An allocation may lie across two granules that are neighbours.
void SimulatedDriver::deallocate_small(Address address, Bytes size) {
  small_addresses_.give(address, size);
  for (Address granule = round_down(address, kGranule); granule < address + size;
       granule += kGranule) {
    if (!small_addresses_.take_at(granule, kGranule)) continue;
    give_back(small_granules_.at(granule));
    small_granules_.erase(granule);
    give_address(granule, kGranule);
  }
}

Status SimulatedDriver::deallocate(Address address) {
  if (const Status status = begin(Call::deallocate); status != Status::success) return status;
  if (const auto small = small_allocations_.find(address); small != small_allocations_.end()) {
    synchronize_device();
    charge(costs_.deallocate.of(small->second));
    unmapped_tags_.write(address, address + small->second, 0);
    deallocate_small(address, small->second);
    small_allocations_.erase(small);
    return Status::success;
  }
  const auto allocation = allocations_.find(address);
  if (allocation == allocations_.end()) return Status::invalid_value;
  synchronize_device();
  charge(costs_.deallocate.of(allocation->second.size));
  unmapped_tags_.write(address, address + allocation->second.size, 0);
  give_back(allocation->second);
  give_address(address, allocation->second.size);
  allocations_.erase(allocation);
  return Status::success;
}

Status SimulatedDriver::reserve(Bytes size, Address& address) {
  if (const Status status = begin(Call::reserve); status != Status::success) return status;
  if (size == 0 || size % kGranule != 0) return Status::invalid_value;
  charge(costs_.reserve);
  auto place = fed_reservation(size);
  if (!place) place = reservable_.take(size, kGranule);
  if (!place) return Status::out_of_memory;
  address = *place;
  reservations_[address] = size;
  return Status::success;
}

Status SimulatedDriver::unreserve(Address address, Bytes size) {
  if (const Status status = begin(Call::unreserve); status != Status::success) return status;
  const auto reservation = reservations_.find(address);
  if (reservation == reservations_.end() || reservation->second != size) {
    return Status::invalid_value;
  }
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + size) return Status::invalid_value;
  charge(costs_.reserve);
  reservations_.erase(reservation);
  if (address >= first_reservable_) reservable_.give(address, size);  // else it was fed
  return Status::success;
}

Status SimulatedDriver::create(Bytes size, Tier tier, Handle& handle) {
  if (const Status status = begin(Call::create); status != Status::success) return status;
  if (size == 0 || size % kGranule != 0) return Status::invalid_value;
  charge(tier == Tier::shared ? static_cast<double>(size) / costs_.host_bytes_per_ns
                              : costs_.create.of(size));
  const auto physical = take(size, tier);
  if (!physical) return Status::out_of_memory;
  handle = next_handle_++;
  handles_.emplace(handle, Memory{*physical, 0, false, {}});
  return Status::success;
}

Status SimulatedDriver::release(Handle handle) {
  if (const Status status = begin(Call::release); status != Status::success) return status;
  const auto memory = handles_.find(handle);
  if (memory == handles_.end() || memory->second.released) return Status::invalid_value;
  charge(costs_.release.of(memory->second.physical.size));
  memory->second.released = true;
  if (memory->second.mappings == 0) {
    give_back(memory->second.physical);
    handles_.erase(memory);
  }
  return Status::success;
}

Status SimulatedDriver::map(Address address, Bytes size, Handle handle) {
  if (const Status status = begin(Call::map); status != Status::success) return status;
  const auto memory = handles_.find(handle);
  if (!is_granular(address, size) || memory == handles_.end() || memory->second.released ||
      memory->second.physical.size != size) {
    return Status::invalid_value;
  }
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return Status::invalid_value;
  --reservation;
  if (address + size > reservation->first + reservation->second) return Status::invalid_value;
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + size) return Status::invalid_value;
  if (next != mappings_.begin()) {
    const auto& [begin, mapping] = *std::prev(next);
    if (begin + mapping.size > address) return Status::invalid_value;
  }
  charge(costs_.map_per_handle);
  mappings_.emplace(address, Mapping{size, handle, false});
  ++memory->second.mappings;
  return Status::success;
}

std::size_t SimulatedDriver::handles_in(Address address, Bytes size) const {
  std::size_t count = 0;
  for (auto it = mappings_.lower_bound(address);
       it != mappings_.end() && it->first < address + size; ++it) {
    ++count;
  }
  return count;
}

Status SimulatedDriver::set_access(Address address, Bytes size) {
  if (const Status status = begin(Call::set_access); status != Status::success) return status;
  const std::size_t count = handles_in(address, size);
  if (!is_granular(address, size) || count == 0) return Status::invalid_value;
  charge(costs_.set_access_per_handle * static_cast<double>(count));
  for (auto it = mappings_.lower_bound(address);
       it != mappings_.end() && it->first < address + size; ++it) {
    it->second.accessible = true;
  }
  return Status::success;
}

void SimulatedDriver::forget_mapping_of(Handle handle) {
  const auto memory = handles_.find(handle);
  if (--memory->second.mappings == 0 && memory->second.released) {
    give_back(memory->second.physical);
    handles_.erase(memory);
  }
}

Status SimulatedDriver::unmap(Address address, Bytes size) {
  if (const Status status = begin(Call::unmap); status != Status::success) return status;
  if (!is_granular(address, size)) return Status::invalid_value;
  const auto first = mappings_.lower_bound(address);
  if (first != mappings_.begin()) {
    const auto& [begin, mapping] = *std::prev(first);
    if (begin + mapping.size > address) return Status::invalid_value;
  }
  const auto last = mappings_.lower_bound(address + size);
  if (first == last) return Status::invalid_value;
  if (const auto& [begin, mapping] = *std::prev(last); begin + mapping.size > address + size) {
    return Status::invalid_value;
  }
  if (is_being_copied(address, size)) return Status::invalid_value;
  charge(costs_.unmap_per_handle * static_cast<double>(handles_in(address, size)));
  for (auto it = first; it != last; ++it) forget_mapping_of(it->second.handle);
  mappings_.erase(first, last);
  return Status::success;
}

bool SimulatedDriver::is_complete(const Recorded& recorded) const {
  return !is_blocked(recorded) && host_.now_ns() >= recorded.completes_at_ns;
}

// Whether its stream was held then, and still waits for the same end.
bool SimulatedDriver::is_blocked(const Recorded& recorded) const {
  return recorded.held && streams_.at(recorded.stream).finishes == recorded.finishes;
}

Status SimulatedDriver::record(StreamId stream, Event& event) {
  if (const Status status = begin(Call::record); status != Status::success) return status;
  charge(costs_.event);
  Stream& state = streams_[stream];
  event = next_event_++;
  events_.emplace(event, Recorded{stream, state.busy_until_ns, state.held, state.finishes});
  if (state.held) {
    ++state.blocked_events;
  } else if (++state.open_events == 1) {
    streams_with_open_events_.insert(stream);
  }
  return Status::success;
}

Status SimulatedDriver::query(Event event) {
  if (const Status status = begin(Call::query); status != Status::success) return status;
  const auto recorded = events_.find(event);
  if (recorded == events_.end()) return Status::invalid_value;
  return is_complete(recorded->second) ? Status::success : Status::not_ready;
}

Status SimulatedDriver::synchronize(Event event) {
  if (const Status status = begin(Call::synchronize); status != Status::success) return status;
  const auto recorded = events_.find(event);
  if (recorded == events_.end()) return Status::invalid_value;
  if (recorded->second.held && !is_complete(recorded->second)) finish(recorded->second.stream);
  host_.advance_to(recorded->second.completes_at_ns);
  return Status::success;
}

Status SimulatedDriver::destroy(Event event) {
  const auto place = events_.find(event);
  if (place == events_.end()) return Status::invalid_value;
  const Recorded& recorded = place->second;
  Stream& state = streams_.at(recorded.stream);
  if (is_blocked(recorded)) {
    --state.blocked_events;
  } else if (--state.open_events == 0) {
    streams_with_open_events_.erase(recorded.stream);
  }
  events_.erase(place);
  return Status::success;
}

Status SimulatedDriver::synchronize_stream(StreamId stream) {
  if (const Status status = begin(Call::synchronize); status != Status::success) return status;
  const auto state = streams_.find(stream);
  if (state == streams_.end()) return Status::success;
  host_.advance_to(state->second.busy_until_ns);
  if (state->second.held) finish(stream);
  return Status::success;
}

Status SimulatedDriver::synchronize() {
  if (const Status status = begin(Call::synchronize); status != Status::success) return status;
  for (const auto& [id, stream] : streams_) {
    if (stream.held) finish(id);
  }
  synchronize_device();
  return Status::success;
}

MemoryInfo SimulatedDriver::memory_info() const {
  return {dedicated_capacity_ - dedicated_used_, dedicated_capacity_};
}

std::int64_t SimulatedDriver::now_us() const {
  return static_cast<std::int64_t>(host_.now_ns() / 1000);
}

Status SimulatedDriver::allocate_host(Bytes size, Address& address) {
  if (const Status status = begin(Call::allocate_host); status != Status::success) return status;
  if (size == 0) return Status::invalid_value;
  if (size > host_.shared_capacity_) return Status::out_of_memory;
  const Bytes rounded = round_up(size, 4 * kKiB);
  if (!take(rounded, Tier::shared)) return Status::out_of_memory;
  charge(static_cast<double>(rounded) / costs_.host_bytes_per_ns);
  address = host_allocations_.empty()
                ? kFirstHostAddress
                : host_allocations_.rbegin()->first + host_allocations_.rbegin()->second;
  host_allocations_.emplace(address, rounded);
  page_locked_ += rounded;
  return Status::success;
}

Status SimulatedDriver::deallocate_host(Address address) {
  if (const Status status = begin(Call::deallocate_host); status != Status::success) return status;
  const auto allocation = host_allocations_.find(address);
  if (allocation == host_allocations_.end() || is_being_copied(address, allocation->second)) {
    return Status::invalid_value;
  }
  give_back({allocation->second, 0, allocation->second});
  page_locked_ -= allocation->second;
  unmapped_tags_.write(address, address + allocation->second, 0);
  host_allocations_.erase(allocation);
  return Status::success;
}

void SimulatedDriver::launch(StreamId stream, double duration_ns) {
  Stream& state = streams_[stream];
  state.busy_until_ns = std::max(state.busy_until_ns, host_.now_ns()) + duration_ns;
}

// --- what memory holds -------------------------------------------------------------------------

std::optional<SimulatedDriver::Place> SimulatedDriver::place_of(Address address) {
  const auto range_at = [&](auto& ranges, auto length_of) {
    auto range = ranges.upper_bound(address);
    if (range == ranges.begin()) return ranges.end();
    --range;
    return address - range->first < length_of(range->second) ? range : ranges.end();
  };
  // Memory lies in dedicated memory as far as that went, and goes on in shared memory.
  const auto place_in = [](Tags& tags, Address offset, Bytes begin, Bytes end,
                           const Physical& physical) {
    if (begin >= physical.dedicated) return Place{&tags, offset, end - begin, Tier::shared};
    return Place{&tags, offset, std::min(end, physical.dedicated) - begin, Tier::dedicated};
  };
  const auto size_itself = [](Bytes size) { return size; };
  const auto size_in = [](const auto& range) { return range.size; };

  if (const auto it = range_at(mappings_, size_in); it != mappings_.end()) {
    if (!it->second.accessible) return std::nullopt;
    Memory& memory = handles_.at(it->second.handle);
    const Bytes begin = address - it->first;
    return place_in(memory.tags, begin, begin, it->second.size, memory.physical);
  }
  if (const auto it = range_at(allocations_, size_in); it != allocations_.end()) {
    return place_in(unmapped_tags_, address, address - it->first, it->second.size, it->second);
  }
  if (const auto it = range_at(small_allocations_, size_itself); it != small_allocations_.end()) {
    const Address granule = round_down(address, kGranule);
    const Bytes end = std::min(it->first + it->second, granule + kGranule) - granule;
    return place_in(unmapped_tags_, address, address - granule, end, small_granules_.at(granule));
  }
  if (const auto it = range_at(host_allocations_, size_itself); it != host_allocations_.end()) {
    return Place{&unmapped_tags_, address, it->first + it->second - address, Tier::shared};
  }
  return std::nullopt;
}

Bytes SimulatedDriver::shared_in(Address address, Bytes size) {
  Bytes shared = 0;
  if (shared_used_ == 0) return shared;
  for (Bytes done = 0; done < size;) {
    const auto place = place_of(address + done);
    const Bytes to_next_granule = kGranule - (address + done) % kGranule;
    const Bytes length = std::min(place ? place->size : to_next_granule, size - done);
    if (place && place->tier == Tier::shared) shared += length;
    done += length;
  }
  return shared;
}

void SimulatedDriver::forget_finished_copies() {
  std::erase_if(copies_, [&](const QueuedCopy& copy) { return is_complete(copy.done); });
}

bool SimulatedDriver::is_being_copied(Address address, Bytes size) {
  forget_finished_copies();
  return std::ranges::any_of(copies_, [&](const QueuedCopy& copy) {
    const auto overlaps = [&](Address begin) {
      return begin < address + size && address < begin + copy.size;
    };
    return overlaps(copy.to) || overlaps(copy.from);
  });
}

// Whether the bytes begin in page-locked memory and go on behind the end of that allocation.
bool SimulatedDriver::leaves_host_allocation(Address address, Bytes size) const {
  const auto next = host_allocations_.upper_bound(address);
  if (next == host_allocations_.begin()) return false;
  const auto& [first, length] = *std::prev(next);
  return address < first + length && address + size > first + length;
}

Status SimulatedDriver::copy(Address to, Address from, Bytes size, StreamId stream) {
  if (const Status status = begin(Call::copy); status != Status::success) return status;
  if (leaves_host_allocation(to, size) || leaves_host_allocation(from, size)) {
    return Status::invalid_value;
  }
  struct Piece {
    Place target;
    std::uint64_t tag;
  };
  std::vector<Piece> pieces;  // all are read before any is written, for the ranges may overlap
  double duration_ns = 0;
  for (Bytes done = 0; done < size; done += pieces.back().target.size) {
    const auto source = place_of(from + done);
    auto target = place_of(to + done);
    if (!source || !target) return Status::invalid_value;
    const Bytes most = std::min({source->size, target->size, size - done});
    target->size = source->tags->end_of(source->offset, source->offset + most) - source->offset;
    pieces.push_back({*target, source->tags->at(source->offset)});
    const bool on_card = source->tier == Tier::dedicated && target->tier == Tier::dedicated;
    duration_ns += static_cast<double>(target->size) /
                   (on_card ? costs_.device_copy_bytes_per_ns : costs_.copy_bytes_per_ns);
  }
  for (const auto& [target, tag] : pieces) {
    target.tags->write(target.offset, target.offset + target.size, tag);
  }
  forget_finished_copies();
  launch(stream, duration_ns);
  const Stream& state = streams_[stream];
  copies_.push_back({to, from, size, {stream, state.busy_until_ns, state.held, state.finishes}});
  return Status::success;
}

SimulatedDriver::Place SimulatedDriver::known_place_of(Address address) {
  const auto place = place_of(address);
  if (!place) throw std::logic_error("there is no memory at " + format_address(address));
  return *place;
}

void SimulatedDriver::write_tag(Address address, Bytes size, std::uint64_t tag) {
  const Address end = address + size;
  while (address < end) {
    const Place place = known_place_of(address);
    const Bytes length = std::min(place.size, end - address);
    place.tags->write(place.offset, place.offset + length, tag);
    address += length;
  }
}

std::uint64_t SimulatedDriver::tag_at(Address address) {
  const Place place = known_place_of(address);
  return place.tags->at(place.offset);
}

// --- streams -----------------------------------------------------------------------------------

Status SimulatedDriver::wait(StreamId stream, Event event) {
  const auto recorded = events_.find(event);
  if (recorded == events_.end()) return Status::invalid_value;
  if (is_complete(recorded->second)) return Status::success;
  Stream& state = streams_[stream];
  if (recorded->second.held) state.held = true;
  state.busy_until_ns = std::max(state.busy_until_ns, recorded->second.completes_at_ns);
  return Status::success;
}

double SimulatedDriver::done_at_ns(StreamId stream) const {
  const auto place = streams_.find(stream);
  return place == streams_.end() ? host_.now_ns()
                                 : std::max(host_.now_ns(), place->second.busy_until_ns);
}

void SimulatedDriver::synchronize_device() {
  for (const auto& [id, stream] : streams_) {
    if (!stream.held) host_.advance_to(stream.busy_until_ns);
  }
}

void SimulatedDriver::hold(StreamId stream) { streams_[stream].held = true; }

void SimulatedDriver::finish(StreamId stream) {
  Stream& state = streams_[stream];
  state.held = false;
  ++state.finishes;
  if (state.blocked_events == 0) return;
  state.open_events += std::exchange(state.blocked_events, 0);
  streams_with_open_events_.insert(stream);
}

}  // namespace plimsoll
