#include "plimsoll/engine/process_engines.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <stdexcept>

namespace plimsoll {
namespace {

std::array<std::atomic<Engine*>, 64> engines{};  // indexed by device

}  // namespace

Engine& ProcessEngines::add(std::unique_ptr<Engine> engine) {
  const auto device = static_cast<std::size_t>(engine->device());
  if (device >= engines.size()) throw std::invalid_argument("there is no such GPU");
  Engine* const kept = engine.release();
  engines[device] = kept;
  return *kept;
}

Engine* ProcessEngines::on(int device) {
  const auto index = static_cast<std::size_t>(device);
  return index < engines.size() ? engines[index].load() : nullptr;
}

void ProcessEngines::for_each(const std::function<void(Engine&)>& function) {
  for (const auto& engine : engines) {
    if (Engine* const found = engine.load()) function(*found);
  }
}

Engine* ProcessEngines::owner_of(Address address) {
  Engine* owner = nullptr;
  for_each([&](Engine& engine) {
    if (owner == nullptr && engine.locate(address)) owner = &engine;
  });
  return owner;
}

}  // namespace plimsoll
