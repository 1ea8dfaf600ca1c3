// Operations on storage, whose kernels are written out in kernels.cpp: their traits.
#include "rules.h"

namespace plimsoll::simulated {
namespace {

constexpr RuleRow kStorageRules[] = {
    {"copy_", kUnknown, kCopies},          {"_local_scalar_dense", kUnknown, kReadByHost},
    {"equal", kUnknown, kReadByHost},      {"set_*", kUnknown, kMovesStorage | kMixesDevices},
    {"resize_*", kUnknown, kMovesStorage}, {"record_stream", kUnknown, kMixesDevices},
};

}  // namespace

std::span<const RuleRow> storage_rules() { return kStorageRules; }

}  // namespace plimsoll::simulated
