// The test framework: TEST(name) { ... } registers a test, CHECK* record failures and continue.
#pragma once

#include <exception>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace check {

struct Test {
  std::string_view name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Registration {
  Registration(std::string_view name, void (*body)()) { tests().push_back({name, body}); }
};

// Prints a failure and marks the running test as failed.
void fail(const char* file, int line, const std::string& message);

template <typename T>
std::string show(const T& value) {
  if constexpr (requires(std::ostream& out) { out << value; }) {
    std::ostringstream out;
    out << std::boolalpha << value;
    return out.str();
  } else {
    return "(not printable)";
  }
}

inline void is_true(bool value, const char* expression, const char* file, int line) {
  if (!value) fail(file, line, std::string(expression) + " is false");
}

template <typename A, typename B>
void equal(const A& a, const B& b, const char* expressions, const char* file, int line) {
  if (a == b) return;
  fail(file, line, std::string(expressions) + ": " + show(a) + " is not " + show(b));
}

template <typename Exception, typename Body>
void throws(Body body, const char* expression, const char* file, int line) {
  try {
    body();
  } catch (const Exception&) {
    return;
  } catch (const std::exception& error) {
    return fail(file, line, std::string(expression) + " throws another type: " + error.what());
  }
  fail(file, line, std::string(expression) + " does not throw");
}

}  // namespace check

#define TEST(name)                                                          \
  static void test_##name();                                                \
  static const check::Registration registration_##name{#name, test_##name}; \
  static void test_##name()

#define CHECK(expression) \
  check::is_true(static_cast<bool>(expression), #expression, __FILE__, __LINE__)

#define CHECK_EQUAL(a, b) check::equal((a), (b), #a ", " #b, __FILE__, __LINE__)

#define CHECK_THROWS(expression, type) \
  check::throws<type>([&] { static_cast<void>(expression); }, #expression, __FILE__, __LINE__)
