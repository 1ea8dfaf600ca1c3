// What each CUresult means: the Status that a caller acts on, and a sentence for people.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "plimsoll/driver/cuda_api.h"
#include "plimsoll/driver/driver.h"

namespace plimsoll::cuda {

struct Error {
  Result code;
  std::string_view name;
  Status status;
  std::string_view meaning;
};

// Every error of the enumeration, by code.
[[nodiscard]] std::span<const Error> errors();

// The status of a code; `failed` for one that is not in the table.
[[nodiscard]] Status status_of(Result code);

// "CUDA_ERROR_OUT_OF_MEMORY (2): there is not enough memory left"; a code that is not in the table
// is explained in the driver's words.
[[nodiscard]] std::string explain(const Api& api, Result code);

}  // namespace plimsoll::cuda
