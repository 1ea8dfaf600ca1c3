// Compares PyTorch's allocator with plimsoll's `native`:
//
//   oracle random FIRST COUNT OPERATIONS   runs COUNT random programs, whose seeds begin at
//                                          FIRST; shortens each program on which the
//                                          allocators differ
//   oracle first FIRST COUNT OPERATIONS    runs the same programs; stops at the first on which the
//                                          allocators differ, without shortening it
//   oracle run                             runs programs from the standard input, one per line
//
// Each program runs in a process of its own, since PyTorch has one allocator per process.
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "comparison.h"
#include "program.h"
#include "random_program.h"
#include "shrinking.h"
#include "side.h"

namespace {

constexpr int kMostDifferences = 5;

std::string read_all(int file) {
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(file, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

// Runs a program. Writes the number of operations, then the difference, to `result`.
[[noreturn]] void run_in_child(const Program& program, int result) {
  // Discards PyTorch's warnings.
  if (std::getenv("ORACLE_WARNINGS") == nullptr) dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
  std::string text;
  try {
    const Verdict verdict = compare(program);
    text = std::to_string(verdict.operations) + " " + verdict.difference;
  } catch (const std::exception& error) {
    text = std::string("0 an exception: ") + error.what() + "\n";
  }
  const bool is_written = write(result, text.data(), text.size()) >= 0;
  _exit(is_written ? 0 : 1);
}

Verdict run_apart(const Program& program) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("cannot make a pipe");
  const pid_t child = fork();
  if (child == 0) run_in_child(program, ends[1]);
  close(ends[1]);
  const std::string text = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    return {"the process ended by signal " + std::to_string(WTERMSIG(status)) + "\n", 0};
  }
  const std::size_t space = text.find(' ');
  return {text.substr(space + 1), std::stoull(text.substr(0, space))};
}

void print(const Program& program, const std::string& difference) {
  std::cout << to_text(program) << "\n" << difference << std::endl;
}

int run_random(std::uint64_t first, std::uint64_t count, std::size_t length) {
  const auto begin = std::chrono::steady_clock::now();
  const auto differs = [](const Program& program) {
    return !run_apart(program).difference.empty();
  };
  std::uint64_t operations = 0;
  std::uint64_t programs = 0;
  int differences = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Program program = random_program(seed, length, rules());
    const Verdict verdict = run_apart(program);
    ++programs;
    operations += verdict.operations;
    if (verdict.difference.empty()) continue;
    const Program shortest = shrink(program, differs);
    std::cout << "seed " << seed << ": ";
    print(shortest, run_apart(shortest).difference);
    if (++differences == kMostDifferences) break;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%s: %llu programs, %llu operations, %d differences, %.1f s\n", PLIMSOLL_ORACLE_TORCH,
              static_cast<unsigned long long>(programs),
              static_cast<unsigned long long>(operations), differences, seconds.count());
  return differences == 0 ? 0 : 1;
}

int run_to_first(std::uint64_t first, std::uint64_t count, std::size_t length) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Program program = random_program(seed, length, rules());
    const std::string difference = run_apart(program).difference;
    if (difference.empty()) continue;
    std::cout << "seed " << seed << ": ";
    print(program, difference);
    return 1;
  }
  return 0;
}

int run_from_input() {
  int differences = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const Verdict verdict = run_apart(program_from(line));
    if (!verdict.difference.empty()) ++differences;
    std::cout << (verdict.difference.empty() ? "same\n" : verdict.difference) << std::endl;
  }
  return differences == 0 ? 0 : 1;
}

// Restarts this program without address randomization: the order of PyTorch's hash tables of
// pointers depends on the addresses.
void keep_addresses(char** words) {
  const int before = personality(0xffffffff);
  if ((before & ADDR_NO_RANDOMIZE) != 0) return;
  if (personality(static_cast<unsigned long>(before) | ADDR_NO_RANDOMIZE) < 0) return;
  execv("/proc/self/exe", words);
}

}  // namespace

int main(int count, char** words) try {
  keep_addresses(words);
  (void)streams_in_order();  // computed once, for all child processes
  const std::string verb = count > 1 ? words[1] : "";
  if (verb == "run" && count == 2) return run_from_input();
  if (verb == "random" && count == 5) {
    return run_random(std::stoull(words[2]), std::stoull(words[3]), std::stoull(words[4]));
  }
  if (verb == "first" && count == 5) {
    return run_to_first(std::stoull(words[2]), std::stoull(words[3]), std::stoull(words[4]));
  }
  std::cerr << "usage: oracle random|first FIRST COUNT OPERATIONS, or oracle run\n";
  return 2;
} catch (const std::exception& error) {
  std::cerr << "oracle: " << error.what() << "\n";
  return 2;
}
