// A path's text, limited to the kernel's maximum. It lies on the stack and not on the heap, because
// a call of the layer may come from a child of vfork or from within malloc.
#pragma once

#include <climits>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace plimsoll::scratch {

class Path {
 public:
  // A constant expression must initialize the whole text. At run time, the constructor sets only
  // the first byte, because a call of the layer makes many paths, each of 4 KiB.
  constexpr Path() {
    if (std::is_constant_evaluated()) {
      for (char& each : text_) each = '\0';
    } else {
      text_[0] = '\0';
    }
  }
  Path(const Path& other) : size_(other.size_) { std::memcpy(text_, other.text_, other.size_ + 1); }
  Path& operator=(const Path& other) {
    std::memmove(text_, other.text_, other.size_ + 1);
    size_ = other.size_;
    return *this;
  }
  ~Path() = default;

  [[nodiscard]] const char* c_str() const { return text_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }

  // Appends text. Returns false, and changes nothing, if the result would be too long.
  [[nodiscard]] bool append(const char* text, std::size_t size) {
    if (size >= sizeof text_ - size_) return false;
    std::memcpy(text_ + size_, text, size);
    size_ += size;
    text_[size_] = '\0';
    return true;
  }
  [[nodiscard]] bool append(const char* text) { return append(text, std::strlen(text)); }
  [[nodiscard]] bool set(const char* text) {
    cut(0);
    return append(text);
  }
  // Appends a name. Puts a "/" before it if the path does not end in "/".
  [[nodiscard]] bool enter(const char* name, std::size_t size) {
    const std::size_t before = size_;
    if ((size_ == 0 || text_[size_ - 1] != '/') && !append("/", 1)) return false;
    if (append(name, size)) return true;
    cut(before);
    return false;
  }
  [[nodiscard]] bool enter(const char* name) { return enter(name, std::strlen(name)); }

  void cut(std::size_t size) {
    size_ = size;
    text_[size_] = '\0';
  }
  // Removes the last name; "/" stays.
  void leave() {
    while (size_ > 1 && text_[size_ - 1] != '/') --size_;
    if (size_ > 1) --size_;
    text_[size_] = '\0';
  }
  [[nodiscard]] const char* name() const {
    const char* slash = std::strrchr(text_, '/');
    return slash == nullptr ? text_ : slash + 1;
  }
  // Returns whether the path is `folder` or lies below it. All paths lie below "/".
  [[nodiscard]] bool is_in(const char* folder, std::size_t size) const {
    return size_ >= size && std::memcmp(text_, folder, size) == 0 &&
           (text_[size] == '\0' || text_[size] == '/' || size == 1);
  }
  [[nodiscard]] bool is_in(const Path& folder) const { return is_in(folder.text_, folder.size_); }

 private:
  char text_[PATH_MAX];
  std::size_t size_ = 0;
};

}  // namespace plimsoll::scratch
