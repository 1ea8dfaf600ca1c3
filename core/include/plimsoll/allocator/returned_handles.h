// Gives handles of physical memory back to the driver. If the driver refuses a handle, this class
// keeps it, and offers it again together with the next handle.
#pragma once

#include <vector>

#include "plimsoll/driver/driver.h"

namespace plimsoll {

class ReturnedHandles {
 public:
  explicit ReturnedHandles(Driver& driver) : driver_(driver) {}
  ReturnedHandles(const ReturnedHandles&) = delete;
  ReturnedHandles& operator=(const ReturnedHandles&) = delete;
  ~ReturnedHandles() { offer(); }

  void add(Handle handle) { handles_.push_back(handle); }
  void give_back(Handle handle) {
    add(handle);
    offer();
  }
  // Offers all handles to the driver, and keeps those that it refuses.
  void offer() {
    std::erase_if(handles_,
                  [this](Handle each) { return driver_.release(each) == Status::success; });
  }

 private:
  Driver& driver_;
  std::vector<Handle> handles_;
};

}  // namespace plimsoll
