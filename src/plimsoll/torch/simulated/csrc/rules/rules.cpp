#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

constexpr const char* kNoTemporaries[] = {
#include "no_temporaries.inc"
};

const RuleTable kRulesOfNothing(kNoTemporaries, nothing);

}  // namespace
}  // namespace plimsoll::simulated
