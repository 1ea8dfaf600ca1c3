// Operations that fill a tensor and do not read what it contained.
#include "rules/rules.h"

namespace plimsoll::simulated {
namespace {

const RuleTable kFillingRules{
    {"zero_", nothing, kOverwrites},    {"fill_", nothing, kOverwrites},
    {"arange", nothing, kOverwrites},   {"range", kUnknown, kOverwrites},
    {"linspace", nothing, kOverwrites}, {"logspace", nothing, kOverwrites},
    {"eye", nothing, kOverwrites},
};

}  // namespace
}  // namespace plimsoll::simulated
