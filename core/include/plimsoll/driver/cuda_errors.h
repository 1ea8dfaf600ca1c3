// The meaning of each CUresult: the Status that callers act on, and a sentence for people.
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

// Returns every error of CUresult, sorted by code.
[[nodiscard]] std::span<const Error> errors();

// Returns the status of a code; `failed` for a code that is not in the table.
[[nodiscard]] Status status_of(Result code);

// Returns a text such as "CUDA_ERROR_OUT_OF_MEMORY (2): there is not enough memory left". For a
// code outside the table the text has the driver's own words.
[[nodiscard]] std::string explain(const Api& api, Result code);

}  // namespace plimsoll::cuda
