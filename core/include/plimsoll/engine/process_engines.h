// The engines that serve this process, at most one for each GPU. They are never destroyed, because
// tensors and threads may call them until the process ends.
#pragma once

#include <functional>
#include <memory>

#include "plimsoll/engine/engine.h"

namespace plimsoll {

class ProcessEngines {
 public:
  // Makes the engine serve its device from now on, in place of an earlier engine if there is one.
  // Throws std::invalid_argument unless the device's number is between 0 and 63.
  static Engine& add(std::unique_ptr<Engine> engine);
  // Returns the engine of a device; null if there is none.
  [[nodiscard]] static Engine* on(int device);
  [[nodiscard]] static Engine* owner_of(Address address);
  static void for_each(const std::function<void(Engine&)>& function);
};

}  // namespace plimsoll
