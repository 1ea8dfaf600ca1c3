// The traits of operations for which plimsoll has a hand-written kernel (operation/written_out.h)
// and therefore no rule.
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

const RuleTable kTraitRules{
    {"copy_", kUnknown, kCopies},          {"_local_scalar_dense", kUnknown, kReadByHost},
    {"equal", kUnknown, kReadByHost},      {"set_*", kUnknown, kMovesStorage | kMixesDevices},
    {"resize_*", kUnknown, kMovesStorage}, {"record_stream", kUnknown, kMixesDevices},
};

}  // namespace
}  // namespace plimsoll::simulated
