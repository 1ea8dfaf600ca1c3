// Traits of operations on storage, whose kernels are written out: see written_out.h.
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
