// The steps of a kernel, besides computing: memory, waiting, other operations.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <variant>

#include "device/runtime.h"

namespace plimsoll::simulated {

class Call;

// Takes the memory of a result.
struct Allocate {
  std::size_t result;
};
// Takes memory of the kernel's own, and gives it back; the size is one of a range.
struct TakeUncertain {
  UncertainMemory memory;
};
// Takes memory of the kernel's own, and keeps it under a number.
struct Take {
  std::size_t number;
  std::size_t bytes;
};
// Gives back what is kept under a number.
struct Release {
  std::size_t number;
};
// Takes the workspace of cuBLAS or cublasLt on the current stream, unless that is kept already.
struct TakeWorkspace {
  bool is_lt;
  bool is_kept;  // for later calls; otherwise it is given back at once
  std::size_t bytes;
};
// Makes the host wait for the stream, as a copy to the host does.
struct Wait {};
// Gives cached memory back to the driver, as torch.cuda.empty_cache() does.
struct EmptyCache {};
// Notes what is assumed of the operation; the text lives on.
struct Assume {
  std::string_view what;
};
// Decides on further steps by what is known once the steps before are done. These go in its place.
struct Then {
  std::function<void(Call&)> decide;
};

using Step = std::variant<Allocate, TakeUncertain, Take, Release, TakeWorkspace, Wait, EmptyCache,
                          Assume, Then>;

}  // namespace plimsoll::simulated
