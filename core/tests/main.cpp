// Runs all tests, or those whose name contains the first argument.

#include <cstddef>
#include <exception>
#include <iostream>

#include "check.h"

namespace {

bool running_test_failed = false;
const check::Test* running_test = nullptr;

}  // namespace

void check::fail(const char* file, int line, const std::string& message) {
  running_test_failed = true;
  std::cerr << file << ':' << line << ": " << running_test->name << ": " << message << '\n';
}

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  std::size_t passed = 0;
  std::size_t failed = 0;
  for (const check::Test& test : check::tests()) {
    if (test.name.find(filter) == std::string_view::npos) continue;
    running_test = &test;
    running_test_failed = false;
    try {
      test.body();
    } catch (const std::exception& error) {
      running_test_failed = true;
      std::cerr << test.name << ": stopped by an exception: " << error.what() << '\n';
    }
    ++(running_test_failed ? failed : passed);
  }
  if (passed + failed == 0) {
    std::cerr << "no test's name contains '" << filter << "'\n";
    return 1;
  }
  std::cout << passed << " passed, " << failed << " failed\n";
  return failed == 0 ? 0 : 1;
}
