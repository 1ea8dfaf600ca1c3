#include "chips/torch_rules.h"

#include <string>

#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

std::string text_of(TorchVersion version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

TorchVersion find_rules() {
  const TorchVersion version{runtime().torch_version / 100, runtime().torch_version % 100};
  if (version <= kNewestTorch) return version;
  runtime().assume(runtime().name("PyTorch " + text_of(version)),
                   "plimsoll assumes the kernels of PyTorch " + text_of(kNewestTorch));
  return kNewestTorch;
}

}  // namespace

const TorchVersion& torch_rules() {
  static const TorchVersion rules = find_rules();
  return rules;
}

}  // namespace plimsoll::simulated
