// The columns of recorded events, as Python passes them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "conversions.h"
#include "plimsoll/replay/events.h"

namespace plimsoll::python {

struct RecordedColumns {
  Column<std::uint8_t> action;
  Column<Address> address;
  Column<Bytes> size;
  Column<StreamId> stream;
  Column<std::uint64_t> pool_first;
  Column<std::uint64_t> pool_second;

  [[nodiscard]] EventSpan span() const {
    const EventSpan events{as_span(action), as_span(address),    as_span(size),
                           as_span(stream), as_span(pool_first), as_span(pool_second)};
    for (const std::size_t count : {events.address.size(), events.size.size(), events.stream.size(),
                                    events.pool_first.size(), events.pool_second.size()}) {
      if (count != events.count()) throw nanobind::value_error("the columns differ in length");
    }
    for (const std::uint8_t code : events.action) {
      if (code >= kActionCount) throw nanobind::value_error("a column holds an unknown action");
    }
    return events;
  }
};

}  // namespace plimsoll::python
