#include "plimsoll/allocator/native/expandable_segment.h"

#include <utility>

#include "plimsoll/allocator/allocator.h"

namespace plimsoll {
namespace {

void require(const Driver& driver, const char* call, Status status) {
  if (status != Status::success) throw DriverError(call, status, driver.last_error());
}

}  // namespace

ExpandableSegment::ExpandableSegment(Driver& driver, ReturnedHandles& returned, StreamId stream,
                                     Bytes size, Bytes page_size)
    : driver_(driver),
      returned_(returned),
      stream_(stream),
      page_size_(page_size),
      pages_(size / page_size) {
  require(driver_, "reserve address space", driver_.reserve(size, address_));
}

ExpandableSegment::~ExpandableSegment() {
  for (std::size_t page = 0; page < handles_.size(); ++page) {
    if (handles_[page] == 0) continue;
    driver_.unmap(address_ + page * page_size_, page_size_);
    returned_.add(handles_[page]);
  }
  returned_.offer();
  driver_.unreserve(address_, size());
}

Bytes ExpandableSegment::map(Address address, Bytes size) {
  const std::size_t begin = (address - address_) / page_size_;
  const std::size_t end = begin + round_up(size, page_size_) / page_size_;
  if (handles_.size() < end) handles_.resize(end, 0);
  returned_.offer();

  std::size_t created = begin;
  Status status = Status::success;
  while (created < end && status == Status::success) {
    status = driver_.create(page_size_, Tier::dedicated, handles_[created]);
    if (status == Status::success) ++created;
  }
  std::size_t mapped = begin;
  while (status == Status::success && mapped < end) {
    status = driver_.map(address_ + mapped * page_size_, page_size_, handles_[mapped]);
    if (status == Status::success) ++mapped;
  }
  if (status == Status::success) {
    status = driver_.set_access(address, (end - begin) * page_size_);
  }
  if (status == Status::success) return (end - begin) * page_size_;

  if (mapped > begin) driver_.unmap(address, (mapped - begin) * page_size_);
  drop_handles(begin, created);
  if (status != Status::out_of_memory) {
    throw DriverError("map memory", status, driver_.last_error());
  }
  return 0;
}

ExpandableSegment::Range ExpandableSegment::unmap(Address address, Bytes size) {
  const std::size_t begin = round_up(address - address_, page_size_) / page_size_;
  const std::size_t end = (address + size - address_) / page_size_;
  if (begin >= end) return {address, 0};
  const Range range{address_ + begin * page_size_, (end - begin) * page_size_};
  require(driver_, "wait for a stream", driver_.synchronize_stream(stream_));
  require(driver_, "unmap memory", driver_.unmap(range.address, range.size));
  drop_handles(begin, end);
  return range;
}

void ExpandableSegment::drop_handles(std::size_t begin, std::size_t end) {
  for (std::size_t page = begin; page < end; ++page) {
    returned_.add(std::exchange(handles_[page], 0));
  }
  returned_.offer();
}

}  // namespace plimsoll
