// Walks the containers of a pickle's document in time linear in its size.
//
// Values can be shared in a pickle, so a small pickle can expand to a huge one. PyTorch's pickles
// share names and stacks, but contain each event and each segment once. A visitor that sees far
// more values than the document has is therefore reading a manipulated pickle, and stops.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "plimsoll/formats/pickle.h"
#include "plimsoll/formats/recording.h"

namespace plimsoll {

class DocumentVisitor {
 public:
  // Takes a document and a `poll` that outlive this object. `poll`, if set, is called at intervals.
  DocumentVisitor(const PickleDocument& document, const std::function<void()>& poll)
      : document_(document), poll_(poll), left_(kSlack + 2 * document.item_count()) {}

  // Returns the items of a container. Throws RecordingError, and whatever `poll` throws.
  std::span<const PickleValue> items(PickleValue container) {
    const auto items = document_.items(container);
    if (items.size() > left_) {
      throw RecordingError("the snapshot lists the same values again and again");
    }
    left_ -= items.size();
    visited_ += items.size() + 1;
    if (visited_ >= kValuesBetweenPolls) {
      visited_ = 0;
      if (poll_) poll_();
    }
    return items;
  }

  [[nodiscard]] const PickleDocument& document() const { return document_; }

 private:
  static constexpr std::size_t kSlack = 1 << 16;
  static constexpr std::size_t kValuesBetweenPolls = 1 << 18;

  const PickleDocument& document_;
  const std::function<void()>& poll_;
  std::size_t left_;
  std::size_t visited_ = 0;
};

}  // namespace plimsoll
