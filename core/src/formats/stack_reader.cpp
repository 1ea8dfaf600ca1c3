#include "plimsoll/formats/stack_reader.h"

#include <algorithm>
#include <utility>

namespace plimsoll {
namespace {

using Kind = PickleValue::Kind;

// These limits keep reports on hostile files short. A file needs only one byte to refer to the same
// frame again, but a report prints the frame's names in full each time.
constexpr std::size_t kLongestName = 512;
constexpr std::size_t kMostFrames = 1024;

}  // namespace

StackReader::StackReader(DocumentVisitor& visitor, Recording& recording)
    : visitor_(visitor), document_(visitor.document()), recording_(recording) {
  recording_.stacks.emplace_back();
  recording_.names.emplace_back();
  name_numbers_.emplace(std::string_view(), 0);
}

std::uint32_t StackReader::number(PickleValue frames) {
  if (frames.kind() != Kind::list && frames.kind() != Kind::tuple) return 0;
  const PickleValue* const place = document_.items(frames).data();
  if (const auto known = by_list_.find(place); known != by_list_.end()) return known->second;
  const auto items = visitor_.items(frames);
  if (items.empty()) return 0;
  Stack stack;
  for (const PickleValue item : items.first(std::min(items.size(), kMostFrames))) {
    stack.push_back(frame_number(item));
  }
  const auto [entry, is_new] =
      stack_numbers_.try_emplace(stack, static_cast<std::uint32_t>(recording_.stacks.size()));
  if (is_new) recording_.stacks.push_back(std::move(stack));
  by_list_.emplace(place, entry->second);
  return entry->second;
}

std::uint32_t StackReader::frame_number(PickleValue value) {
  if (value.kind() != Kind::dict) return frame_number(Frame{});
  const PickleValue* const place = document_.items(value).data();
  if (const auto known = by_dict_.find(place); known != by_dict_.end()) return known->second;
  Frame frame;
  const auto items = visitor_.items(value);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i].kind() != Kind::string) continue;
    const std::string_view key = document_.text(items[i]);
    const PickleValue of_key = items[i + 1];
    if (key == "filename") frame.filename = name_number(of_key);
    if (key == "name") frame.name = name_number(of_key);
    if (key == "line" && of_key.kind() == Kind::integer) frame.line = of_key.as_int();
  }
  const std::uint32_t number = frame_number(frame);
  by_dict_.emplace(place, number);
  return number;
}

std::uint32_t StackReader::frame_number(const Frame& frame) {
  const auto [entry, is_new] =
      frame_numbers_.try_emplace(frame, static_cast<std::uint32_t>(recording_.frames.size()));
  if (is_new) recording_.frames.push_back(frame);
  return entry->second;
}

std::uint32_t StackReader::name_number(PickleValue value) {
  if (value.kind() != Kind::string) return 0;
  const std::string_view text = document_.text(value).substr(0, kLongestName);
  if (text.empty()) return 0;
  if (const auto known = by_text_.find(text.data()); known != by_text_.end()) {
    return known->second;
  }
  const auto [entry, is_new] =
      name_numbers_.try_emplace(text, static_cast<std::uint32_t>(recording_.names.size()));
  if (is_new) recording_.names.emplace_back(text);
  by_text_.emplace(text.data(), entry->second);
  return entry->second;
}

}  // namespace plimsoll
