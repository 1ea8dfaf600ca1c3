#include "plimsoll/driver/cuda_errors.h"

#include <algorithm>
#include <array>

namespace plimsoll::cuda {
namespace {

using enum Status;

// The rows of cuda_errors.txt, sorted by code.
constexpr std::array kErrors = std::to_array<Error>({
#include "plimsoll/driver/cuda_errors.inc"
});

const Error* find(Result code) {
  const auto place = std::ranges::lower_bound(kErrors, code, {}, &Error::code);
  return place != kErrors.end() && place->code == code ? &*place : nullptr;
}

}  // namespace

std::span<const Error> errors() { return kErrors; }

Status status_of(Result code) {
  if (code == kSuccess) return success;
  const Error* const error = find(code);
  return error != nullptr ? error->status : failed;
}

std::string explain(const Api& api, Result code) {
  std::string name = "unknown error";
  std::string meaning;
  if (const Error* const error = find(code)) {
    name = error->name;
    meaning = error->meaning;
  } else {
    const char* text = nullptr;
    if (api.get_error_name(code, &text) == kSuccess && text != nullptr) name = text;
    text = nullptr;
    if (api.get_error_string(code, &text) == kSuccess && text != nullptr) meaning = text;
  }
  name += " (" + std::to_string(code) + ')';
  return meaning.empty() ? name : name + ": " + meaning;
}

}  // namespace plimsoll::cuda
