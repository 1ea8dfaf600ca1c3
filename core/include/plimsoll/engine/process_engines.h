// The engines that serve this process, at most one for each GPU. They stay for good: tensors and
// threads may outlive all else, and still call.
#pragma once

#include <functional>
#include <memory>

#include "plimsoll/engine/engine.h"

namespace plimsoll {

class ProcessEngines {
 public:
  // Instead of the one before, if its device has one. Throws std::invalid_argument if no GPU has
  // such a number.
  static Engine& add(std::unique_ptr<Engine> engine);
  // Null if there is none.
  [[nodiscard]] static Engine* on(int device);
  [[nodiscard]] static Engine* owner_of(Address address);
  static void for_each(const std::function<void(Engine&)>& function);
};

}  // namespace plimsoll
