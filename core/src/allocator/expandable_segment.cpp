#include "plimsoll/allocator/expandable_segment.h"

#include <algorithm>

#include "plimsoll/allocator/allocator.h"

namespace plimsoll {
namespace {

void require(const char* call, Status status) {
  if (status != Status::success) throw DriverError(call, status);
}

}  // namespace

ExpandableSegment::ExpandableSegment(Driver& driver, StreamId stream, Bytes device_memory,
                                     Bytes page_size)
    : driver_(driver),
      stream_(stream),
      page_size_(page_size),
      pages_(round_up(device_memory + device_memory / 8, page_size) / page_size) {
  require("reserve address space", driver_.reserve(size(), address_));
}

ExpandableSegment::~ExpandableSegment() {
  unmap_pages(0, handles_.size());
  driver_.unreserve(address_, size());
}

Bytes ExpandableSegment::map(Address address, Bytes size) {
  const std::size_t begin = (address - address_) / page_size_;
  const std::size_t end = begin + round_up(size, page_size_) / page_size_;
  if (handles_.size() < end) handles_.resize(end, 0);

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
  for (std::size_t page = begin; page < end; ++page) {
    if (page < created) driver_.release(handles_[page]);
    handles_[page] = 0;
  }
  if (status != Status::out_of_memory) throw DriverError("map memory", status);
  return 0;
}

ExpandableSegment::Range ExpandableSegment::unmap(Address address, Bytes size) {
  const std::size_t begin = round_up(address - address_, page_size_) / page_size_;
  const std::size_t end = (address + size - address_) / page_size_;
  if (begin >= end) return {address, 0};
  require("wait for a stream", driver_.synchronize_stream(stream_));
  unmap_pages(begin, end);
  return {address_ + begin * page_size_, (end - begin) * page_size_};
}

void ExpandableSegment::unmap_pages(std::size_t begin, std::size_t end) {
  for (std::size_t page = begin; page < end; ++page) {
    if (handles_[page] == 0) continue;
    driver_.unmap(address_ + page * page_size_, page_size_);
    driver_.release(handles_[page]);
    handles_[page] = 0;
  }
}

}  // namespace plimsoll
