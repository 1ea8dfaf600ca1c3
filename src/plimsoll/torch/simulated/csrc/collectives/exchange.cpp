#include "collectives/exchange.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <type_traits>

#include "device/runtime.h"

namespace plimsoll::simulated {
namespace {

// The first byte of a request to Python is its kind; the first byte of the answer is a status.
constexpr char kPost = 'p';
constexpr char kCollect = 'c';
constexpr char kNeed = 'n';
constexpr char kDrop = 'd';
constexpr char kWell = '+';
constexpr char kOutOfMemory = '!';

template <typename Number>
void append(std::string& bytes, Number number) {
  static_assert(std::is_trivially_copyable_v<Number>);
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void append_text(std::string& bytes, std::string_view text) {
  append(bytes, static_cast<std::uint64_t>(text.size()));
  bytes.append(text);
}

std::uint64_t take_number(std::string_view& bytes) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return number;
}

std::string ask(const std::string& question) {
  std::string answer = runtime().callbacks.exchange.ask(question);
  TORCH_CHECK_WITH(DistBackendError, !answer.empty(), "the exchange between ranks was interrupted");
  TORCH_CHECK_WITH(OutOfMemoryError, answer[0] != kOutOfMemory, answer.substr(1));
  TORCH_CHECK_WITH(DistBackendError, answer[0] == kWell, answer.substr(1));
  return answer.substr(1);
}

}  // namespace

std::uint64_t post(const Meeting& meeting, std::string_view given) {
  std::string question(1, kPost);
  append(question, meeting.group);
  append(question, meeting.to);
  append(question, meeting.from);
  append(question, meeting.tag);
  append_text(question, meeting.what);
  append_text(question, meeting.agreed);
  question.append(given);
  const std::string answer = ask(question);
  std::string_view rest = answer;
  return take_number(rest);
}

Collected collect(std::uint64_t number) {
  std::string question(1, kCollect);
  append(question, number);
  const std::string answer = ask(question);
  std::string_view rest = answer;
  Collected collected;
  collected.series = take_number(rest);
  collected.from = static_cast<std::int64_t>(take_number(rest));
  while (!rest.empty()) {
    const auto size = static_cast<std::size_t>(take_number(rest));
    collected.given.emplace_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return collected;
}

void need_communicator(std::uint64_t group, int device, std::string_view key,
                       std::string_view pattern) {
  std::string question(1, kNeed);
  append(question, group);
  append(question, device);
  append_text(question, key);
  append_text(question, pattern);
  ask(question);
}

void drop_communicators(std::uint64_t group) {
  std::string question(1, kDrop);
  append(question, group);
  ask(question);
}

}  // namespace plimsoll::simulated
