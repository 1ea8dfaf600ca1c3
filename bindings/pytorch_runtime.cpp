#include "pytorch_runtime.h"

#ifdef __linux__
#include <dlfcn.h>
#endif

#include <cstdio>
#include <cstdlib>

namespace plimsoll::python {
namespace {

using Throw = void (*)(const char*);

// Returns the function of GCC's C++ library that throws std::runtime_error; null if the library is
// missing. PyTorch cannot run without that library.
Throw find_throw() {
#ifdef __linux__
  void* const library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Throw>(dlsym(library, "_ZSt21__throw_runtime_errorPKc"));
#else
  return nullptr;
#endif
}

}  // namespace

void throw_to_pytorch(const char* message) {
  static const Throw throws = find_throw();
  if (throws != nullptr) throws(message);
  std::fprintf(stderr, "plimsoll: there is no C++ library to throw by: %s\n", message);
  std::abort();
}

}  // namespace plimsoll::python
