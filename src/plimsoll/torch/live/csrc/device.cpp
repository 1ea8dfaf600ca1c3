#include "device.h"

#include <torch/version.h>

#include <array>
#include <cmath>

#include "plimsoll/torch_versions.h"

namespace plimsoll::live {

void check(int status) { TORCH_CHECK(status == PLIMSOLL_SUCCESS, api->last_error()); }

void Device::prepare(DeviceIndex index, size_t total, double fraction, OpenEngine open_engine) {
  index_ = index;
  total_ = total;
  fraction_ = fraction;
  open_ = open_engine;
}

plimsoll_engine* Device::open() {
  std::array<char, 1024> problem{};
  plimsoll_engine* made = open_(index_, problem.data(), problem.size());
  TORCH_CHECK(made != nullptr, "plimsoll cannot use GPU ", static_cast<int>(index_), ": ",
              problem.data());
  const std::scoped_lock lock(settings_);
  // Several threads may get here with the same engine. The first of them sets up the engine.
  if (engine_.load() == nullptr) {
    apply_fraction(made);
    for (const int peer : peers_) check(api->enable_peer(made, peer));
    api->observe(made, observe_, observe_data_);
    engine_.store(made, std::memory_order_release);
  }
  return made;
}

void Device::set_fraction(double fraction) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  const std::scoped_lock lock(settings_);
  fraction_ = fraction;
  if (plimsoll_engine* engine = engine_.load()) apply_fraction(engine);
}

void Device::apply_fraction(plimsoll_engine* engine) const {
  api->set_limit(engine, fraction_.load() < 1.0 ? 1 : 0, allowed());
}

size_t Device::allowed() const {
  const double fraction = fraction_.load();
  if (fraction >= 1.0) return total_;
  constexpr plimsoll::TorchVersion version{TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR};
  const double bytes = fraction * static_cast<double>(total_);
  return static_cast<size_t>(version.rounds_limits() ? std::round(bytes) : bytes);
}

void Device::add_peer(int device) {
  const std::scoped_lock lock(settings_);
  peers_.push_back(device);
  if (plimsoll_engine* engine = engine_.load()) check(api->enable_peer(engine, device));
}

void Device::set_observer(Observe observe, void* data) {
  const std::scoped_lock lock(settings_);
  observe_ = observe;
  observe_data_ = data;
  if (plimsoll_engine* engine = engine_.load()) api->observe(engine, observe, data);
}

std::optional<plimsoll_place> Device::locate(const void* pointer) const {
  plimsoll_place place{};
  plimsoll_engine* engine = engine_if_open();
  if (engine == nullptr || api->locate(engine, as_number(pointer), &place) != PLIMSOLL_SUCCESS) {
    return std::nullopt;
  }
  return place;
}

}  // namespace plimsoll::live
