#include "operation/operation.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

std::vector<Result> results_of(const c10::FunctionSchema& schema) {
  std::vector<Result> results;
  const auto& arguments = schema.arguments();
  for (const c10::Argument& returned : schema.returns()) {
    Result result;
    if (const c10::AliasInfo* const alias = returned.alias_info()) {
      result.kind = alias->isWrite() ? Result::Kind::argument : Result::Kind::view;
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        const c10::AliasInfo* const other = arguments[i].alias_info();
        if (other != nullptr && !other->beforeSets().empty() &&
            other->beforeSets() == alias->beforeSets()) {
          result.argument = i;
          break;
        }
      }
    }
    results.push_back(result);
  }
  return results;
}

std::unique_ptr<OperationInfo> work_out(const c10::OperatorHandle& op) {
  auto info = std::make_unique<OperationInfo>();
  const c10::FunctionSchema& schema = op.schema();
  const std::string& qualified = schema.name();
  info->plain_name = qualified.substr(qualified.find("::") + 2);
  info->name = runtime().name(qualified);
  for (const c10::Argument& argument : schema.arguments()) {
    info->is_written.push_back(argument.alias_info() != nullptr &&
                               argument.alias_info()->isWrite());
    info->is_cache.push_back(argument.name().find("cache") != std::string::npos);
  }
  info->results = results_of(schema);
  for (const at::Tag tag : op.getTags()) {
    if (tag == at::Tag::pointwise) info->is_pointwise = true;
    if (tag == at::Tag::nondeterministic_seeded) info->is_random = true;
  }
  const bool ends_in_place = info->plain_name.ends_with('_') && info->is_in_place();
  info->needs_shapes = !(schema.returns().empty() || (ends_in_place && info->is_random));
  const std::string overload = schema.overload_name().empty() ? "" : "." + schema.overload_name();
  const auto [rule, traits] = find_rule(qualified + overload, info->plain_name);
  info->rule = rule;
  info->traits = traits;
  const auto is_output = [](const c10::Argument& argument) {
    return argument.alias_info() == nullptr || !argument.alias_info()->isWrite() ||
           argument.kwarg_only();
  };
  const bool writes = std::any_of(info->is_written.begin(), info->is_written.end(),
                                  [](bool written) { return written; });
  if (writes && std::all_of(schema.arguments().begin(), schema.arguments().end(), is_output)) {
    info->traits |= kOverwrites;
  }
  if (writes && (info->is_pointwise || (ends_in_place && info->is_random))) {
    info->traits |= kLikeIterator;
  }
  return info;
}

}  // namespace

const OperationInfo& info_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* const known =
      new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperationInfo>>;
  const c10::FunctionSchema* const schema = &op.schema();
  {
    const std::lock_guard lock(mutex);
    if (const auto place = known->find(schema); place != known->end()) return *place->second;
  }
  auto info = work_out(op);
  const std::lock_guard lock(mutex);
  return *known->try_emplace(schema, std::move(info)).first->second;
}

}  // namespace plimsoll::simulated
