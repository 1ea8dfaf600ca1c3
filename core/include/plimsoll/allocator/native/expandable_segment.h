// A segment that grows in place. It reserves address space, by default more bytes than the device's
// memory has. Its pages get memory when they are needed, and lose it when the allocator gives free
// memory back to the driver.
#pragma once

#include <vector>

#include "plimsoll/allocator/returned_handles.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll {

class ExpandableSegment {
 public:
  // Reserves `size` bytes, in whole pages. Unmapped handles go to `returned`, which outlives the
  // segment. Throws DriverError.
  ExpandableSegment(Driver& driver, ReturnedHandles& returned, StreamId stream, Bytes size,
                    Bytes page_size);
  ExpandableSegment(const ExpandableSegment&) = delete;
  ExpandableSegment& operator=(const ExpandableSegment&) = delete;
  ~ExpandableSegment();

  // Maps the pages that cover `size` bytes from `address`, which is a page's start. Returns the
  // bytes mapped. If the device has no memory for all of the pages, maps nothing and returns 0.
  [[nodiscard]] Bytes map(Address address, Bytes size);

  struct Range {
    Address address = 0;
    Bytes size = 0;
  };
  // Waits until the segment's stream is idle, then unmaps the pages that lie wholly in the given
  // range. Returns the range of these pages, with size 0 if there are none. Throws DriverError if
  // the driver refuses; then nothing has changed.
  Range unmap(Address address, Bytes size);

  [[nodiscard]] Address address() const { return address_; }
  [[nodiscard]] Bytes size() const { return page_size_ * pages_; }
  [[nodiscard]] Bytes page_size() const { return page_size_; }

 private:
  void drop_handles(std::size_t begin, std::size_t end);

  Driver& driver_;
  ReturnedHandles& returned_;
  StreamId stream_;
  Bytes page_size_;
  std::size_t pages_;
  Address address_ = 0;
  std::vector<Handle> handles_;  // one for each page; 0 if the page is not mapped
};

}  // namespace plimsoll
