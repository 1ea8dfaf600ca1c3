// Operations that fill a tensor, whatever was there.
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

constexpr RuleRow kFillingRules[] = {
    {"zero_", nothing, kOverwrites},    {"fill_", nothing, kOverwrites},
    {"arange", nothing, kOverwrites},   {"range", kUnknown, kOverwrites},
    {"linspace", nothing, kOverwrites}, {"logspace", nothing, kOverwrites},
    {"eye", nothing, kOverwrites},
};

}  // namespace

std::span<const RuleRow> filling_rules() { return kFillingRules; }

}  // namespace plimsoll::simulated
