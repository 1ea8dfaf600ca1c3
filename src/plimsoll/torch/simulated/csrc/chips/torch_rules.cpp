#include "chips/torch_rules.h"

#include <string>

#include "chips/nearest.h"
#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

constexpr TorchRules kVersions[] = {
#include "torch_versions.inc"
};

std::string text_of(std::int64_t version) {
  return std::to_string(version / 100) + "." + std::to_string(version % 100);
}

const TorchRules& find_rules() {
  const std::int64_t version = runtime().torch_version;
  const TorchRules& rules =
      nearest(kVersions, version, [](const TorchRules& row) { return row.version; });
  if (rules.version != version) {
    runtime().assume(runtime().name("PyTorch " + text_of(version)),
                     "its kernels are taken to be those of PyTorch " + text_of(rules.version));
  }
  return rules;
}

}  // namespace

const TorchRules& torch_rules() {
  static const TorchRules& rules = find_rules();
  return rules;
}

}  // namespace plimsoll::simulated
