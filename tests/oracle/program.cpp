#include "program.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace {

struct Spelling {
  std::string_view name;
  std::size_t numbers;
};
constexpr std::array<Spelling, static_cast<std::size_t>(Verb::count)> kSpellings{{
    {"malloc", 2},   {"malloc_at", 3}, {"free", 1},       {"record", 2},     {"hold", 1},
    {"finish", 1},   {"empty", 1},     {"use", 1},        {"begin", 2},      {"capture", 2},
    {"end", 1},      {"release", 1},   {"use_on_oom", 2}, {"no_split", 1},   {"limit", 1},
    {"fault", 3},    {"heal", 0},      {"reset_peak", 0}, {"reset_sums", 0}, {"snapshot", 0},
    {"settings", 1},
}};

std::string_view next_part(std::string_view& text) {
  const std::size_t end = std::min(text.find(';'), text.size());
  std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

Operation operation_from(const std::string& text) {
  std::istringstream words(text);
  std::string name;
  words >> name;
  const auto* const spelling =
      std::find_if(kSpellings.begin(), kSpellings.end(),
                   [&](const Spelling& candidate) { return candidate.name == name; });
  if (spelling == kSpellings.end()) throw std::invalid_argument("no operation '" + name + "'");
  Operation operation{static_cast<Verb>(std::distance(kSpellings.begin(), spelling)), {}};
  for (std::size_t i = 0; i < spelling->numbers; ++i) {
    if (!(words >> operation.numbers[i])) {
      throw std::invalid_argument("'" + text + "' needs " + std::to_string(spelling->numbers) +
                                  " numbers");
    }
  }
  return operation;
}

}  // namespace

std::string to_text(const Operation& operation) {
  const Spelling& spelling = kSpellings[static_cast<std::size_t>(operation.verb)];
  std::string text(spelling.name);
  for (std::size_t i = 0; i < spelling.numbers; ++i) {
    text += " " + std::to_string(operation.numbers[i]);
  }
  return text;
}

std::string to_text(const Program& program) {
  std::string text = "gpu " + std::to_string(program.memory) + " " + program.settings;
  for (const std::string& settings : program.later_settings) text += "; later " + settings;
  for (const Operation& operation : program.operations) text += "; " + to_text(operation);
  return text;
}

Program program_from(std::string_view text) {
  Program program;
  std::istringstream head{std::string(next_part(text))};
  std::string word;
  if (!(head >> word >> program.memory) || word != "gpu") {
    throw std::invalid_argument("a program begins with 'gpu BYTES'");
  }
  head >> program.settings;
  while (!text.empty()) {
    const std::string part(next_part(text));
    std::istringstream words(part);
    words >> word;
    if (word == "later") {
      program.later_settings.emplace_back();
      words >> program.later_settings.back();
    } else {
      program.operations.push_back(operation_from(part));
    }
  }
  return program;
}
