// Traits of operations whose kernels are written out: see operation/written_out.h.
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

constexpr RuleRow kTraitRules[] = {
    {"copy_", kUnknown, kCopies},          {"_local_scalar_dense", kUnknown, kReadByHost},
    {"equal", kUnknown, kReadByHost},      {"set_*", kUnknown, kMovesStorage | kMixesDevices},
    {"resize_*", kUnknown, kMovesStorage}, {"record_stream", kUnknown, kMixesDevices},
};

}  // namespace

std::span<const RuleRow> trait_rules() { return kTraitRules; }

}  // namespace plimsoll::simulated
