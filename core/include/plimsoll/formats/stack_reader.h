// Gives each name, frame and call stack of a recording a number. Equal names get the same number,
// and so do equal frames and equal stacks. An object that the pickle refers to many times is read
// only once.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>

#include "plimsoll/formats/document_visitor.h"
#include "plimsoll/formats/pickle.h"
#include "plimsoll/formats/recording.h"

namespace plimsoll {

class StackReader {
 public:
  // `visitor` and `recording` must outlive this object. The reader fills the lists `names`,
  // `frames` and `stacks` of `recording`. The number of a name, frame or stack is its index in its
  // list.
  StackReader(DocumentVisitor& visitor, Recording& recording);

  // Returns the number of the stack that a list of frames describes; 0 if the value is no such
  // list.
  std::uint32_t number(PickleValue frames);

 private:
  std::uint32_t frame_number(PickleValue value);
  std::uint32_t frame_number(const Frame& frame);
  std::uint32_t name_number(PickleValue value);

  DocumentVisitor& visitor_;
  const PickleDocument& document_;
  Recording& recording_;
  std::unordered_map<const char*, std::uint32_t> by_text_;
  // A std::map, because a hostile file could contain names with colliding hashes.
  std::map<std::string_view, std::uint32_t> name_numbers_;
  std::unordered_map<const PickleValue*, std::uint32_t> by_list_;
  std::unordered_map<const PickleValue*, std::uint32_t> by_dict_;
  std::map<Stack, std::uint32_t> stack_numbers_;
  std::map<Frame, std::uint32_t> frame_numbers_;
};

}  // namespace plimsoll
